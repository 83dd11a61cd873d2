"""REM (Cohen et al., 2024): a RetNet over blocks of 64 tokens and an action, which draws a frame in one pass (POP).

Its ablations are other components: `TokenTableConfig` for separate embeddings, `AutoregressiveConfig` for no POP.
"""

from __future__ import annotations

from dreamenvs.models.family import Family
from dreamenvs.models.iris import TokenLevelConfig, build
from dreamenvs.models.token_blocks import SharedCodesConfig
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig
from dreamenvs.priors.parallel import ParallelConfig
from dreamenvs.sequence.retnet import RetNetConfig
from dreamenvs.tokenizers.vqgan import DiscreteConfig

PAPER = TokenLevelConfig(
    tokenizer=DiscreteConfig(network=PlainNetworkConfig(), code_width=256, reconstruction="l2"),
    embedding=SharedCodesConfig(),
    sequence=RetNetConfig(),
    prior=ParallelConfig(),
    context=2,
    optimization=TwoStageOptimization(
        tokenizer=StageConfig(
            rows=128, length=1, updates=119_000, rate=1e-4, weight_decay=0.01, clip=10.0, warmup=0, decay=1.0
        ),
        dynamics=StageConfig(
            rows=64, length=10, updates=115_000, rate=2e-4, weight_decay=0.05, clip=100.0, warmup=0, decay=1.0
        ),
    ),
)

REM = Family(name="REM", config=TokenLevelConfig, paper=PAPER, build=build)
