"""IRIS (Micheli et al., 2023): a GPT over blocks of 16 tokens and an action, which draws a frame token by token.

The config is that of every token-level family. Positions are rotary and the window slides with each row: learned ones,
as in the original, would force all rows to drop their past whenever it is full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dreamenvs.models.family import Family
from dreamenvs.models.heads import HeadConfig, RewardHead, SignRewardHead, TerminationHead
from dreamenvs.models.outcomes import HiddenOutcomes
from dreamenvs.models.token_blocks import SharedCodes, SharedCodesConfig, TokenTable, TokenTableConfig
from dreamenvs.models.token_level import TokenLevelModel
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.iris import ResidualNetworkConfig
from dreamenvs.priors.autoregressive import AutoregressiveConfig, AutoregressivePrior
from dreamenvs.priors.parallel import ParallelConfig, ParallelPrior
from dreamenvs.sequence.retnet import RetNet, RetNetConfig
from dreamenvs.sequence.transformer import BlockTransformerConfig, Transformer
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.tokenizers.vqgan import DiscreteConfig, DiscreteTokenizer
from dreamenvs.types import WorldSpec

Rewards = Literal["sign", "two_hot"]

OPTIMIZATION = TwoStageOptimization(
    tokenizer=StageConfig(rows=256, length=1, updates=119_000, rate=1e-4, clip=10.0, warmup=0, decay=1.0),
    dynamics=StageConfig(
        rows=64, length=20, updates=115_000, rate=1e-4, weight_decay=0.01, clip=10.0, warmup=0, decay=1.0
    ),
)
"""IRIS's, with as many updates as its 600 epochs have, one part after the other."""


@dataclass(frozen=True, kw_only=True)
class TokenLevelConfig:
    """A token-level world model; the defaults are IRIS's."""

    tokenizer: DiscreteConfig | VQConfig = field(default_factory=DiscreteConfig)
    embedding: TokenTableConfig | SharedCodesConfig = field(default_factory=TokenTableConfig)
    sequence: BlockTransformerConfig | RetNetConfig = field(default_factory=BlockTransformerConfig)
    prior: AutoregressiveConfig | ParallelConfig = field(default_factory=AutoregressiveConfig)
    rewards: Rewards = "sign"
    """`sign`, as in IRIS and REM, learns whether a reward is negative, zero or positive; `two_hot` learns its size."""
    head: HeadConfig = field(default_factory=HeadConfig)
    context: int = 1
    """Frames of a training segment after which predictions count, and which a dream should start from."""
    optimization: TwoStageOptimization = field(default_factory=lambda: OPTIMIZATION)

    def __post_init__(self) -> None:
        self.optimization.refuse_stale()
        if isinstance(self.prior, ParallelConfig) and not isinstance(self.sequence, RetNetConfig):
            raise ValueError("the parallel prior asks without moving on, which a RetNet can and a Transformer cannot")
        if self.rewards not in get_args(Rewards):
            raise ValueError(f"rewards are 'sign' or 'two_hot', not {self.rewards!r}")
        if self.context < 1:
            raise ValueError(f"context is at least one frame, not {self.context}")


def build(config: TokenLevelConfig, spec: WorldSpec) -> TokenLevelModel:
    """Assemble a token-level world model."""
    tokenizer: DiscreteTokenizer | VQTokenizer = (
        DiscreteTokenizer(config.tokenizer, spec.observation_shape)
        if isinstance(config.tokenizer, DiscreteConfig)
        else VQTokenizer(config.tokenizer, spec.observation_shape)
    )
    width, tokens, vocabulary = config.sequence.width, tokenizer.num_tokens, tokenizer.vocabulary
    sequence: Any = (
        RetNet(config.sequence)
        if isinstance(config.sequence, RetNetConfig)
        else Transformer(config.sequence.for_blocks(tokens + 1))
    )
    return TokenLevelModel(
        spec,
        tokenizer=tokenizer,
        embedding=(
            TokenTable(vocabulary, width)
            if isinstance(config.embedding, TokenTableConfig)
            else SharedCodes(tokenizer.latent_width // tokens, width)
        ),
        sequence=sequence,
        prior=(
            AutoregressivePrior(config.prior, width, tokens, vocabulary)
            if isinstance(config.prior, AutoregressiveConfig)
            else ParallelPrior(config.prior, width, tokens, vocabulary)
        ),
        outcomes=HiddenOutcomes(
            (SignRewardHead if config.rewards == "sign" else RewardHead)(config.head, width),
            TerminationHead(config.head, width),
        ),
        context=config.context,
        optimization=config.optimization,
    )


def iris_on_rem_grid() -> TokenLevelConfig:
    """IRIS with REM's 8 × 8 tokens per frame: the paper's fair comparison (REM, figure 11)."""
    network = ResidualNetworkConfig(channels=(64,) * 4)
    return TokenLevelConfig(tokenizer=DiscreteConfig(network=network))


IRIS = Family(name="IRIS", config=TokenLevelConfig, paper=TokenLevelConfig(), build=build)
