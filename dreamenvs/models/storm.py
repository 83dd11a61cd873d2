"""STORM (Zhang et al., 2023) and GIT-STORM, as the latter's paper has them: sections 3 and A.1, tables 8 to 14.

A categorical autoencoder, a state mixer, a causal Transformer over frames and a prior, all fitted at once. The prior is
linear in STORM and a MaskGIT in GIT-STORM; VQ tokens under either are the paper's table 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.family import Family
from dreamenvs.models.frame_level import FrameLevelModel, JointOptimization
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.mixers import MixerConfig, StateMixerConfig, build_mixer
from dreamenvs.models.outcomes import TransitionConfig, build_outcomes
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.nn.canvas import Layout, layout_of
from dreamenvs.nn.frame_networks.storm import BatchConvConfig
from dreamenvs.priors.factorized import FactorizedConfig, FactorizedPrior, KLObjective
from dreamenvs.priors.maskgit import MaskGITConfig, MaskGITPrior
from dreamenvs.priors.raster import RasterConfig, RasterPrior
from dreamenvs.sequence.transformer import Transformer, TransformerConfig
from dreamenvs.tokenizers.categorical import CategoricalConfig, CategoricalTokenizer
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.types import WorldSpec

PriorConfig = FactorizedConfig | MaskGITConfig | RasterConfig
"""What predicts the next frame's tokens."""


@dataclass(frozen=True, kw_only=True)
class StormConfig:
    """A frame-level world model with categorical latents and a Transformer; the defaults are STORM's."""

    tokenizer: CategoricalConfig | VQConfig = field(default_factory=lambda: CategoricalConfig(conv=BatchConvConfig()))
    mixer: MixerConfig = field(default_factory=StateMixerConfig)
    sequence: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(
            layers=2, feed_forward=1024, window=64, layer="post", positions="learned"
        )
    )
    prior: PriorConfig = field(
        # Free bits apply to the mean over a batch, as published: a frame may have less where another has more.
        default_factory=lambda: FactorizedConfig(objective=KLObjective(dynamics=0.5), unimix=0.01, norm=False)
    )
    head: HeadConfig | TransitionConfig = field(
        default_factory=lambda: HeadConfig(units=512, layers=2, activation="relu")
    )
    optimization: JointOptimization | TwoStageOptimization = field(
        default_factory=lambda: JointOptimization(dynamics_rate=1e-4, warmup=0)
    )

    def __post_init__(self) -> None:
        if isinstance(self.optimization, TwoStageOptimization) and isinstance(self.prior.objective, KLObjective):
            raise ValueError(
                "in turns the dynamics see tokens and no posterior, which KLObjective compares with; "
                "use CrossEntropyObjective or JointOptimization"
            )


def build(config: StormConfig, spec: WorldSpec) -> FrameLevelModel[Any]:
    """Assemble a world model of STORM's kind."""
    tokenizer = (
        VQTokenizer(config.tokenizer, spec.observation_shape)
        if isinstance(config.tokenizer, VQConfig)
        else CategoricalTokenizer(config.tokenizer, spec.observation_shape)
    )
    actions, width = ActionEncoder(spec.actions).width, config.sequence.width
    # The tokens of a VQ lie on a grid, as TECO's do; categoricals have no places.
    grid = tokenizer.grid if isinstance(tokenizer, VQTokenizer) else None
    layout = layout_of(tokenizer.num_tokens, grid)
    return FrameLevelModel(
        spec,
        tokenizer=tokenizer,
        mixer=build_mixer(config.mixer, tokenizer.num_tokens, tokenizer.latent_width, actions, width),
        sequence=Transformer(config.sequence),
        prior=_build_prior(config.prior, width, tokenizer, layout),
        outcomes=build_outcomes(config.head, width, layout, tokenizer.vocabulary),
        optimization=config.optimization,
    )


def _build_prior(
    config: PriorConfig, width: int, tokenizer: CategoricalTokenizer | VQTokenizer, layout: Layout
) -> FactorizedPrior | MaskGITPrior | RasterPrior:
    if isinstance(config, RasterConfig):
        return RasterPrior(config, layout.canvas(width, config.channels), tokenizer.vocabulary, layout.kernel)
    if isinstance(config, FactorizedConfig):
        return FactorizedPrior(config, width, tokenizer.num_tokens, tokenizer.vocabulary)
    grid = tokenizer.grid if isinstance(tokenizer, VQTokenizer) else None
    return MaskGITPrior(config, width, tokenizer.num_tokens, tokenizer.vocabulary, grid)


STORM = Family(name="STORM", config=StormConfig, paper=StormConfig(), build=build)
GIT_STORM = Family(name="GITSTORM", config=StormConfig, paper=StormConfig(prior=MaskGITConfig()), build=build)
