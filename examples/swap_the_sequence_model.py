"""One world model with two sequence models, Mamba-2 and a Transformer: a field of the config makes the difference.

Both are fitted briefly on the same random play of MinAtar Breakout and compared on episodes that neither has seen:
pip install "dreamenvs[minatar,train]".
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import Fidelity, measure
from dreamenvs.fitting.fit import Fit
from dreamenvs.models.frame_level import FrameLevelModel
from dreamenvs.models.step_vq import StepVQConfig, build
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.sequence.mamba2 import Mamba2Config
from dreamenvs.sequence.transformer import TransformerConfig
from dreamenvs.tokenizers.vq import VQConfig
from dreamenvs.types import WorldSpec
from dreamenvs.worlds.source import default_source, describe, make_source


def fit(name: str, config: StepVQConfig, spec: WorldSpec, episodes: Sequence[Episode]) -> FrameLevelModel[Any]:
    """Fit a model; the same seed gives both the same tokenizer, so that they differ in their dynamics alone."""
    torch.manual_seed(0)
    model = build(config, spec)
    work = Fit(model, episodes)
    for _ in tqdm(work.run(), desc=name, total=sum(stage.updates for stage in work.stages), unit="update"):
        pass  # each update gives its losses here
    return model.eval()


def report(name: str, model: FrameLevelModel[Any], fidelity: Fidelity, seconds: float) -> None:
    """One line: size, and how well it foresees held-out episodes."""
    size = sum(parameter.numel() for parameter in model.get_submodule("sequence").parameters())
    tokens, rewards = fidelity.one_step_tokens, fidelity.one_step_events.rewards.model
    print(
        f"{name:<12} {size:>9,} parameters, {seconds:4.0f} s; one step ahead: {tokens.accuracy:.2%} of tokens, "
        f"perplexity {tokens.perplexity:.3f}, reward F1 {rewards.f1:.2f}; open loop: PSNR {fidelity.psnr:.1f} dB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6_000, help="real steps to collect")
    parser.add_argument("--updates", type=int, default=200, help="of the tokenizer, and as many of the dynamics")
    args = parser.parse_args()

    source = default_source("MinAtar/Breakout-v1")
    env = make_source(source)
    spec = describe(env, world="MinAtarBreakout", source=source)
    episodes = list(collect(env, RandomPolicy(env.action_space, seed=0), args.steps, seed=0))
    held_out, fitted = episodes[::10], [episode for number, episode in enumerate(episodes) if number % 10]

    conv = ConvConfig(channels=(16, 32), strides=(2, 2), kernel=3, norm="channel")
    mamba = StepVQConfig(
        tokenizer=VQConfig(conv=conv, codes=16, code_width=4, commitment=0.06, revival=0.5),
        sequence=Mamba2Config(width=128, layers=2, dropout=0.0),
        prior=FactorizedConfig(objective=CrossEntropyObjective(), rank=8),
        optimization=TwoStageOptimization(
            tokenizer=StageConfig(rows=32, length=1, updates=args.updates, rate=3e-3),
            dynamics=StageConfig(rows=32, length=32, updates=args.updates, rate=3e-3),
        ),
    )
    transformer = TransformerConfig(width=128, layers=2, heads=4, feed_forward=256, window=32, dropout=0.0)
    configs = {"Mamba-2": mamba, "Transformer": replace(mamba, sequence=transformer)}
    for name, config in configs.items():
        begin = perf_counter()
        model = fit(name, config, spec, fitted)
        seconds = perf_counter() - begin
        report(name, model, measure(model, held_out, np.random.default_rng(0), starts=128), seconds)


if __name__ == "__main__":
    main()
