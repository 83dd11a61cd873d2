"""STEP-VQ with Mamba-2 or a Transformer, and its categorical baselines CB-M and CB-T: sections 2 and F of the paper.

They differ in components only; the defaults are tables 8 to 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.family import Family
from dreamenvs.models.frame_level import FrameLevelModel, JointOptimization
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.mixers import ConcatMixer, ConcatMixerConfig
from dreamenvs.models.outcomes import TransitionConfig, build_outcomes
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.nn.canvas import Layout, layout_of
from dreamenvs.priors.factorized import FactorizedConfig, FactorizedPrior, KLObjective
from dreamenvs.priors.local import LocalConfig, LocalPrior
from dreamenvs.priors.raster import RasterConfig, RasterPrior
from dreamenvs.sequence.mamba2 import Mamba2, Mamba2Config
from dreamenvs.sequence.transformer import Transformer, TransformerConfig
from dreamenvs.tokenizers.categorical import CategoricalConfig, CategoricalTokenizer
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.types import WorldSpec


@dataclass(frozen=True, kw_only=True)
class StepVQConfig:
    """A frame-level world model; the defaults are STEP-VQ-M."""

    tokenizer: VQConfig | CategoricalConfig = field(default_factory=VQConfig)
    mixer: ConcatMixerConfig = field(default_factory=ConcatMixerConfig)
    sequence: Mamba2Config | TransformerConfig = field(default_factory=Mamba2Config)
    prior: FactorizedConfig | LocalConfig | RasterConfig = field(default_factory=FactorizedConfig)
    head: HeadConfig | TransitionConfig = field(default_factory=HeadConfig)
    optimization: JointOptimization | TwoStageOptimization = field(default_factory=JointOptimization)

    def __post_init__(self) -> None:
        if isinstance(self.optimization, TwoStageOptimization) and isinstance(self.prior.objective, KLObjective):
            raise ValueError(
                "in turns the dynamics see tokens and no posterior, which KLObjective compares with; "
                "use CrossEntropyObjective or JointOptimization"
            )
        if isinstance(self.prior, LocalConfig) and not isinstance(self.tokenizer, VQConfig):
            raise ValueError("LocalConfig needs tokens on a grid, which VQConfig gives and CategoricalConfig does not")


def build(config: StepVQConfig, spec: WorldSpec) -> FrameLevelModel[Any]:
    """Assemble a frame-level world model."""
    tokenizer = (
        VQTokenizer(config.tokenizer, spec.observation_shape)
        if isinstance(config.tokenizer, VQConfig)
        else CategoricalTokenizer(config.tokenizer, spec.observation_shape)
    )
    sequence: Any = (
        Mamba2(config.sequence) if isinstance(config.sequence, Mamba2Config) else Transformer(config.sequence)
    )
    width = config.sequence.width
    grid = tokenizer.grid if isinstance(tokenizer, VQTokenizer) else None
    layout = layout_of(tokenizer.num_tokens, grid)
    return FrameLevelModel(
        spec,
        tokenizer=tokenizer,
        mixer=ConcatMixer(config.mixer, tokenizer.latent_width, ActionEncoder(spec.actions).width, width),
        sequence=sequence,
        prior=_build_prior(config.prior, width, tokenizer, layout),
        outcomes=build_outcomes(config.head, width, layout, tokenizer.vocabulary),
        optimization=config.optimization,
    )


def _build_prior(
    config: FactorizedConfig | LocalConfig | RasterConfig,
    width: int,
    tokenizer: VQTokenizer | CategoricalTokenizer,
    layout: Layout,
) -> FactorizedPrior | LocalPrior | RasterPrior:
    if isinstance(config, RasterConfig):
        return RasterPrior(config, layout.canvas(width, config.channels), tokenizer.vocabulary, layout.kernel)
    if isinstance(config, FactorizedConfig):
        return FactorizedPrior(config, width, tokenizer.num_tokens, tokenizer.vocabulary)
    assert isinstance(tokenizer, VQTokenizer)  # the config has seen to it
    return LocalPrior(config, width, tokenizer.grid, tokenizer.vocabulary)


# The baselines mix 1 % of the uniform distribution into prior and posterior, as DRAMA does.
_CATEGORICAL = FactorizedConfig(unimix=0.01)

STEP_VQ = Family(name="STEPVQ", config=StepVQConfig, paper=StepVQConfig(), build=build)
STEP_VQ_T = Family(name="STEPVQT", config=StepVQConfig, paper=StepVQConfig(sequence=TransformerConfig()), build=build)
CB = Family(
    name="CB",
    config=StepVQConfig,
    paper=StepVQConfig(tokenizer=CategoricalConfig(), prior=_CATEGORICAL),
    build=build,
)
CB_T = Family(
    name="CBT",
    config=StepVQConfig,
    paper=StepVQConfig(tokenizer=CategoricalConfig(), sequence=TransformerConfig(), prior=_CATEGORICAL),
    build=build,
)
