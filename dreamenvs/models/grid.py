"""GRID: exact patches, a memory with places, frames drawn jointly, outcomes of transitions.

None of the papers' families: it puts together what was found to make dreams true. A policy that learns in them earns
for real what it earned there, because two players, unpaid rewards and forgotten balls are not to be found in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.family import Family
from dreamenvs.models.frame_level import FrameLevelModel
from dreamenvs.models.mixers import GridMixer, GridMixerConfig
from dreamenvs.models.outcomes import TransitionConfig, build_outcomes
from dreamenvs.models.two_stage import DynamicsOptimization, TwoStageOptimization
from dreamenvs.nn.canvas import Layout
from dreamenvs.priors.raster import RasterConfig, RasterPrior
from dreamenvs.sequence.conv_gru import ConvGRU, ConvGRUConfig
from dreamenvs.tokenizers.patches import PatchesConfig, PatchTokenizer
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.types import WorldSpec


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """A frame-level world model with places throughout; the defaults are made for cells of 4 × 4 pixels."""

    tokenizer: PatchesConfig | VQConfig = field(default_factory=PatchesConfig)
    mixer: GridMixerConfig = field(default_factory=GridMixerConfig)
    sequence: ConvGRUConfig = field(default_factory=ConvGRUConfig)
    prior: RasterConfig = field(default_factory=RasterConfig)
    outcomes: TransitionConfig = field(default_factory=TransitionConfig)
    optimization: DynamicsOptimization | TwoStageOptimization = field(default_factory=DynamicsOptimization)

    def __post_init__(self) -> None:
        exact = isinstance(self.tokenizer, PatchesConfig)
        if exact != isinstance(self.optimization, DynamicsOptimization):
            raise ValueError("PatchesConfig goes with DynamicsOptimization, and VQConfig with TwoStageOptimization")


def build(config: GridConfig, spec: WorldSpec) -> FrameLevelModel[Any]:
    """Assemble a world model with places."""
    tokenizer: PatchTokenizer | VQTokenizer = (
        PatchTokenizer(config.tokenizer, spec.observation_shape)
        if isinstance(config.tokenizer, PatchesConfig)
        else VQTokenizer(config.tokenizer, spec.observation_shape)
    )
    channels = config.sequence.channels
    sequence = ConvGRU(config.sequence, tokenizer.grid)
    layout = Layout(grid=tokenizer.grid, memory_channels=channels)
    actions, vocabulary = ActionEncoder(spec.actions).width, tokenizer.vocabulary
    canvas = layout.canvas(sequence.width, config.prior.channels)
    return FrameLevelModel(
        spec,
        tokenizer=tokenizer,  # type: ignore[arg-type]  # patches are not trained, and have no posterior
        mixer=GridMixer(config.mixer, tokenizer.num_tokens, tokenizer.latent_width, actions, channels),
        sequence=sequence,
        prior=RasterPrior(config.prior, canvas, vocabulary),
        outcomes=build_outcomes(config.outcomes, sequence.width, layout, vocabulary),
        optimization=config.optimization,
    )


GRID = Family(name="GRID", config=GridConfig, paper=GridConfig(), build=build)
