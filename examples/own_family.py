"""A family of your own: a world model with a GRU inside, whose dreams save, load and have ids as bundled ones do.

Any `dreamenvs.protocols.WorldModel` will do. This one takes the tokenizer, the prior and the heads as they are, and has
another sequence model. A program that loads its dreams registers the family first: files never import code. It needs
the real game to play in: pip install "dreamenvs[minatar]".
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

import dreamenvs
from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.frame_level import FrameLevelModel
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.mixers import ConcatMixer, ConcatMixerConfig
from dreamenvs.models.outcomes import build_outcomes
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn.canvas import layout_of
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, FactorizedPrior
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.types import WorldSpec


@dataclass(frozen=True, kw_only=True)
class GRUWorldConfig:
    """What a checkpoint of this family keeps in its config.json."""

    tokenizer: VQConfig
    prior: FactorizedConfig
    head: HeadConfig
    width: int
    """Of the GRU."""
    optimization: TwoStageOptimization


class GRUSequence(nn.Module):
    """A `dreamenvs.protocols.SequenceModel`; its cache is the hidden (B, D), so rows may have different ages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.gru = width, nn.GRU(width, width, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.extend(inputs, self.initial_cache(len(inputs)))[0]

    def initial_cache(self, rows: int) -> Tensor:
        return next(self.parameters()).new_zeros(rows, self.width)

    def extend(self, inputs: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        hidden, last = self.gru(inputs, cache[None].contiguous())
        return hidden, last[0]

    def step(self, inputs: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        _, hidden = self.extend(inputs[:, None], cache)
        return hidden, hidden


def build(config: GRUWorldConfig, spec: WorldSpec) -> FrameLevelModel[Tensor]:
    tokenizer = VQTokenizer(config.tokenizer, spec.observation_shape)
    layout, width = layout_of(tokenizer.num_tokens, tokenizer.grid), config.width
    mixed: Any = ConcatMixer(ConcatMixerConfig(), tokenizer.latent_width, ActionEncoder(spec.actions).width, width)
    prior = FactorizedPrior(config.prior, width, tokenizer.num_tokens, tokenizer.vocabulary)
    outcomes = build_outcomes(config.head, width, layout, tokenizer.vocabulary)
    parts: dict[str, Any] = {"tokenizer": tokenizer, "mixer": mixed, "prior": prior, "outcomes": outcomes}
    return FrameLevelModel(spec, sequence=GRUSequence(width), optimization=config.optimization, **parts)


CONV = ConvConfig(channels=(16, 32), strides=(2, 2), kernel=3, norm="channel")
SMALL = GRUWorldConfig(
    tokenizer=VQConfig(conv=CONV, codes=16, code_width=4, commitment=0.06, revival=0.5),
    prior=FactorizedConfig(objective=CrossEntropyObjective(), rank=8),
    head=HeadConfig(),
    width=128,
    optimization=TwoStageOptimization(
        tokenizer=StageConfig(rows=32, length=1, updates=400, rate=3e-3),
        dynamics=StageConfig(rows=32, length=32, updates=800, rate=3e-3),
    ),
)
FAMILY = dreamenvs.Family(name="GRU", config=GRUWorldConfig, paper=SMALL, build=build)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="real steps to play at random")
    parser.add_argument("--share", type=float, default=1.0, help="of the updates that the config names")
    args = parser.parse_args()

    family = dreamenvs.register_family(FAMILY)
    out = "dreams/GRU-MinAtarBreakout-v0"
    dream = dreamenvs.fit("MinAtar/Breakout-v1", family, args.steps, update_share=args.share, out=out)
    envs = gym.make_vec(dreamenvs.register(dream.path), num_envs=16, obs_type="latent")
    features, _ = envs.reset(seed=0)
    print(f"{dream.family}: PSNR {dream.card['fidelity']['psnr']:.1f} dB; 16 dreams show {features.shape}")
