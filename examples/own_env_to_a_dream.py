"""Your own environment as a dream: write it, play it at random, fit a world model, `gym.make` the dream by its id.

It takes about a minute. Observations are H × W × C uint8 images, actions Discrete or a one-dimensional Box.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

import dreamenvs
from dreamenvs.data.collect import RandomPolicy, collect
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
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import describe, make_source


class Catch(gym.Env[np.ndarray, int]):
    """A ball falls and a paddle goes left, stays or goes right; a catch earns 1, a miss is the end."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.paddle, self.row, self.column = 4, 0, int(self.np_random.integers(8))
        return self.draw(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = int(np.clip(self.paddle + action - 1, 1, 6))
        self.row += 1
        frame, landed, caught = self.draw(), self.row == 7, abs(self.column - self.paddle) <= 1
        if landed:
            self.row, self.column = 0, (self.column + 3) % 8
        return frame, float(landed and caught), landed and not caught, False, {}

    def draw(self) -> np.ndarray:
        cells = np.zeros((8, 8, 3), np.uint8)
        cells[7, self.paddle - 1 : self.paddle + 2] = (60, 160, 255)
        cells[self.row, self.column] = (255, 200, 40)
        return cells.repeat(4, axis=0).repeat(4, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="real steps to collect")
    parser.add_argument("--updates", type=int, default=400, help="of the tokenizer, and as many of the dynamics")
    parser.add_argument("--out", type=Path, default=Path("dreams/STEPVQ-Catch-v0"), help="where the dream goes")
    args = parser.parse_args()

    gym.register("Catch-v0", entry_point=Catch)
    source = SourceEnv(id="Catch-v0")  # kept in the dream, so that make_real finds the game again
    spec = describe(env := make_source(source), world="Catch", source=source)
    episodes = list(collect(env, RandomPolicy(env.action_space, seed=0), args.steps, seed=0))
    held_out, fitted = episodes[::10], [episode for number, episode in enumerate(episodes) if number % 10]

    conv = ConvConfig(channels=(16, 32), strides=(2, 2), kernel=3, norm="channel")  # a token for each 4 × 4 pixels
    config = StepVQConfig(
        tokenizer=VQConfig(conv=conv, codes=16, code_width=4, commitment=0.06, revival=0.5),
        sequence=Mamba2Config(width=128, layers=2, dropout=0.0),
        prior=FactorizedConfig(objective=CrossEntropyObjective(), rank=8),
        optimization=TwoStageOptimization(
            tokenizer=StageConfig(rows=32, length=1, updates=args.updates, rate=3e-3),
            dynamics=StageConfig(rows=32, length=32, updates=args.updates, rate=3e-3),
        ),
    )
    torch.manual_seed(0)
    model = FAMILIES["STEPVQ"].build(config, spec)
    for _ in tqdm(Fit(model, fitted).run(), desc="fitting", total=2 * args.updates, unit="update"):
        pass  # each update gives its losses here
    fidelity = measure(model.eval(), held_out, np.random.default_rng(0), starts=128)
    print(fidelity.table())
    contexts = start_contexts(fitted, 24, 4, np.random.default_rng(0))
    card = {"title": "Catch", "fidelity": fidelity.to_json()}
    dreamenvs.save(args.out, model, contexts, family="STEPVQ", config=config, card=card)
    name = dreamenvs.register(args.out)  # with DREAMENVS_PATH=dreams, every process knows it without this
    dream = gym.wrappers.Autoreset(gym.make(name))
    dream.reset(seed=0)
    rewards = [float(dream.step(dream.action_space.sample())[1]) for _ in range(100)]
    real = np.concatenate([episode.rewards for episode in episodes])
    print(f"100 random steps of {name} earn {sum(rewards):.2f}; real ones {100 * np.mean(real):.2f}")


if __name__ == "__main__":
    main()
