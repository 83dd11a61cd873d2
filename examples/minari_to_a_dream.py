"""A Minari data set as a dream: recorded episodes are enough, no environment. pip install "dreamenvs[minari,train]".

Without a data set of yours it records a small one of MinAtar Breakout first, which needs the extra minatar.

    python examples/minari_to_a_dream.py --dataset my/dataset-v0
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

import dreamenvs
from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.minari import episodes_from_minari, spec_from_minari, to_minari
from dreamenvs.data.replay import Replay
from dreamenvs.data.segments import start_contexts
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.sequence.mamba2 import Mamba2Config
from dreamenvs.tokenizers.vq import VQConfig
from dreamenvs.worlds.source import default_source, describe, make_source


def record(dataset: str, steps: int, directory: Path) -> None:
    """Random play in the real game as a local Minari data set, bit for bit."""
    source = default_source("MinAtar/Breakout-v1")
    env = make_source(source)
    replay = Replay.create(directory / "replay", describe(env, world="MinAtarBreakout", source=source))
    replay.append(collect(env, RandomPolicy(env.action_space, seed=0), steps, seed=0), {"policy": "random"})
    print(replay.budget())
    to_minari(replay, dataset, description="random play", author="dreamenvs")


def choose_config(updates: int) -> StepVQConfig:
    """A small STEP-VQ: a token for each 4 × 4 pixels, the tokenizer fitted first and the dynamics then."""
    conv = ConvConfig(channels=(16, 32), strides=(2, 2), kernel=3, norm="channel")
    return StepVQConfig(
        tokenizer=VQConfig(conv=conv, codes=16, code_width=4, commitment=0.06, revival=0.5),
        sequence=Mamba2Config(width=128, layers=2, dropout=0.0),
        prior=FactorizedConfig(objective=CrossEntropyObjective(), rank=8),
        optimization=TwoStageOptimization(
            tokenizer=StageConfig(rows=32, length=1, updates=updates, rate=3e-3),
            dynamics=StageConfig(rows=32, length=32, updates=updates, rate=3e-3),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a local Minari data set whose observations are images")
    parser.add_argument("--steps", type=int, default=5_000, help="steps to record where none is named")
    parser.add_argument("--updates", type=int, default=300, help="of the tokenizer, and as many of the dynamics")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        if args.dataset is None:
            args.dataset = "minatar/breakout-v0"
            os.environ["MINARI_DATASETS_PATH"] = directory
            record(args.dataset, args.steps, Path(directory))
        spec, episodes = spec_from_minari(args.dataset), list(episodes_from_minari(args.dataset))
    held_out, fitted = episodes[::10], [episode for number, episode in enumerate(episodes) if number % 10]
    print(f"{args.dataset}: {len(episodes)} episodes of {spec.world}, {spec.observation_shape}, {spec.actions}")

    torch.manual_seed(0)
    model = FAMILIES["STEPVQ"].build(config := choose_config(args.updates), spec)
    for _ in tqdm(Fit(model, fitted).run(), desc="fitting", total=2 * args.updates, unit="update"):
        pass  # each update gives its losses here
    fidelity = measure(model.eval(), held_out, np.random.default_rng(0), starts=128)
    print(fidelity.table())
    out = Path("dreams") / f"STEPVQ-{spec.world}-v1"  # version 0 is bundled with the package
    contexts = start_contexts(fitted, 24, 4, np.random.default_rng(0))
    card = {"title": f"STEPVQ dream of {args.dataset}", "fidelity": fidelity.to_json()}
    dreamenvs.save(out, model, contexts, family="STEPVQ", config=config, card=card)

    dream = gym.make(name := dreamenvs.register(out))
    frame, _ = dream.reset(seed=0)
    print(f"gymnasium.make({name!r}) dreams {frame.shape} frames")


if __name__ == "__main__":
    main()
