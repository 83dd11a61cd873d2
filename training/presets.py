"""Model sizes by name: `paper`, the papers' own, and `small`, for two CPU cores and a checkpoint of a few megabytes.

`local` is `small` for worlds in which little things move across a large screen, such as the ball of Pong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dreamenvs.heads import HeadConfig
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import TurnConfig, TurnsOptimization
from dreamenvs.nn.conv import ConvConfig
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.priors.local import LocalConfig
from dreamenvs.sequence.mamba2 import Mamba2Config
from dreamenvs.sequence.transformer import TransformerConfig
from dreamenvs.tokenizers.categorical import CategoricalConfig
from dreamenvs.tokenizers.vq import VQConfig

PRESETS = ("small", "local", "paper")
OPTIMIZATION = TurnsOptimization(
    tokenizer=TurnConfig(rows=32, length=1, updates=1500),
    dynamics=TurnConfig(rows=32, length=32, updates=2000, weight_decay=1e-3),
)
"""Of the small preset: about ten minutes on one core for MinAtar."""


def model_config(family: str, preset: str) -> Any:
    """The config of a family under a preset."""
    paper = FAMILIES[family].paper
    if preset == "paper":
        return paper
    if preset not in PRESETS:
        raise ValueError(f"there are the presets {', '.join(PRESETS)}, not {preset!r}")
    return local_config(small_config(paper)) if preset == "local" else small_config(paper)


def small_config(paper: Any) -> Any:
    """The small sizes in place of a paper's."""
    # Every patch of 4 × 4 pixels, a cell of MinAtar, is a token, and no token depends on what is far away from it.
    conv = ConvConfig(channels=(32, 48), strides=(2, 2), kernel=3, norm="channel")
    tokenizer: VQConfig | CategoricalConfig = VQConfig(
        conv=conv, codes=32, code_width=4, commitment=0.25 / 4, revival=0.5
    )
    if isinstance(paper.tokenizer, CategoricalConfig):
        conv = ConvConfig(channels=(24, 48, 32), strides=(2, 2, 2))
        tokenizer = CategoricalConfig(conv=conv, categories=16, classes=16)
    sequence: Mamba2Config | TransformerConfig = Mamba2Config(width=256, layers=2, dropout=0.0)
    if isinstance(paper.sequence, TransformerConfig):
        sequence = TransformerConfig(width=256, layers=2, heads=4, feed_forward=512, window=64)
    # With the tokenizer fitted first and then left alone there is no posterior to move: equation 6 is what remains.
    prior = FactorizedConfig(objective=CrossEntropyObjective(sampled=32), rank=8, coupled=True)
    return replace(
        paper,
        tokenizer=tokenizer,
        sequence=sequence,
        prior=prior,
        head=HeadConfig(units=128),
        optimization=OPTIMIZATION,
    )


def local_config(small: Any) -> Any:
    """A small config whose prior looks where things were; for the families with a VQ tokenizer."""
    if not isinstance(small.tokenizer, VQConfig):
        raise ValueError("the preset local is for families with a VQ tokenizer, whose tokens lie on a grid")
    return replace(small, prior=LocalConfig(objective=small.prior.objective, rank=small.prior.rank))
