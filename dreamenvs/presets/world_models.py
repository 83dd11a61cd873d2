"""Model sizes by name: `paper`, the papers' own, and `small`, for two CPU cores and a checkpoint of a few megabytes.

Of STEP-VQ and its baselines there is one more small one: `cells`, for worlds whose patches of 4 × 4 pixels hold one
colour each, as those of MinAtar; of GRID `patches`, for screens with hundreds of different patches, and `vq`, for
pictures that are not made of patches. Small frame-level models draw the tokens of a frame jointly and read outcomes
from transitions, which the papers' do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dreamenvs import families
from dreamenvs.models import FAMILIES
from dreamenvs.models.delta_iris import DeltaIRISConfig
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.frame_token import FrameTokenConfig
from dreamenvs.models.grid import GridConfig
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.iris import TokenLevelConfig
from dreamenvs.models.outcomes import TransitionConfig
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.storm import StormConfig
from dreamenvs.models.two_stage import DynamicsOptimization, StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.delta_iris import FrameNetworkConfig
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.nn.frame_networks.storm import BatchConvConfig
from dreamenvs.priors.factorized import KLObjective
from dreamenvs.priors.maskgit import MaskGITConfig
from dreamenvs.priors.raster import RasterConfig
from dreamenvs.sequence.mamba2 import Mamba2Config
from dreamenvs.sequence.retnet import RetNetConfig
from dreamenvs.sequence.transformer import BlockTransformerConfig, TransformerConfig
from dreamenvs.tokenizers.categorical import CategoricalConfig
from dreamenvs.tokenizers.delta import DeltaConfig
from dreamenvs.tokenizers.patches import PatchesConfig
from dreamenvs.tokenizers.vq import VQConfig

PRESETS = ("small", "cells", "patches", "vq", "paper")
OPTIMIZATION = TwoStageOptimization(
    tokenizer=StageConfig(rows=32, length=1, updates=1500),
    dynamics=StageConfig(rows=32, length=32, updates=2000, weight_decay=1e-3),
)
"""Of the small preset: about ten minutes on one core for MinAtar."""
AT_ONCE = JointOptimization(
    tokenizer_rate=1e-3, dynamics_rate=1e-3, clip=100.0, rows=16, length=32, updates=1500, warmup=100, decay=0.1
)
"""Of small models whose parts are fitted together."""
CELLS = VQConfig(
    conv=ConvConfig(channels=(32, 48), strides=(2, 2), kernel=2, norm="channel"),
    codes=16,
    code_width=8,
    commitment=0.25 / 8,
    decay=0.5,
    revival=0.5,
)
"""A code for each colour and a token for each cell. Kernels that overlap let a token depend on its neighbours: in
MinAtar Freeway 15.5 % of the tokens then change from frame to frame while 7.2 % of the cells do. In eight numbers the
mixer, which is linear, can tell the colours apart; and the codes follow fast, for else colours that come near each
other in a young encoder are given one code."""


GRID_DYNAMICS = StageConfig(
    rows=16, length=16, updates=3000, rate=3e-3, weight_decay=1e-4, clip=10.0, warmup=100, decay=0.02
)
"""With a rate of 1e-3 the same model is after 1,000 updates where it is after 500 with this one."""
EXACT_PATCHES = {"small": PatchesConfig(), "patches": PatchesConfig(size=8, codes=1024, threshold=8.0)}
"""Of GRID, by preset."""
GRID_STALE = 0.1
"""What was lost or doubled for a step is then repaired in the next one, nine times in ten, instead of staying so."""
PATCHES = VQConfig(
    conv=ConvConfig(channels=(32, 64, 96), strides=(2, 2, 2), kernel=2, norm="channel"),
    codes=128,
    code_width=16,
    commitment=0.25 / 16,
    decay=0.9,
    revival=0.5,
)
"""A token for each patch of 8 × 8 pixels: token-level models pay for every one."""


def model_config(family: str, preset: str, frame: tuple[int, ...] = (3, 40, 40)) -> Any:
    """The config of a family under a preset, for frames (C, H, W)."""
    paper = FAMILIES[family].paper
    if preset == "paper":
        return paper
    if preset not in PRESETS:
        raise ValueError(f"there are the presets {', '.join(PRESETS)}, not {preset!r}")
    entry = families.FAMILIES[family]
    if preset not in entry.presets:
        known = " and ".join(entry.presets)
        raise SystemExit(f"the preset {preset} is for STEP-VQ and its baselines; {family} has {known}")
    return families.resolve(entry.small)(paper, preset, frame)


def small_step_vq(paper: StepVQConfig, preset: str, frame: tuple[int, ...]) -> StepVQConfig:
    """STEP-VQ and its baselines with about a million weights: the presets `small` and `cells`."""
    # Every patch of 4 × 4 pixels, a cell of MinAtar, is a token, and no token depends on what is far away from it.
    conv = ConvConfig(channels=(32, 48), strides=(2, 2), kernel=3, norm="channel")
    tokenizer: VQConfig | CategoricalConfig = VQConfig(
        conv=conv, codes=32, code_width=4, commitment=0.25 / 4, revival=0.5
    )
    if preset == "cells":
        tokenizer = CELLS
    if isinstance(paper.tokenizer, CategoricalConfig):
        conv = ConvConfig(channels=(24, 48, 32), strides=(2, 2, 2))
        tokenizer = CategoricalConfig(conv=conv, categories=16, classes=16)
    sequence: Mamba2Config | TransformerConfig = Mamba2Config(width=256, layers=2, dropout=0.0)
    if isinstance(paper.sequence, TransformerConfig):
        sequence = TransformerConfig(width=256, layers=2, heads=4, feed_forward=512, window=64)
    # With the tokenizer fitted first and then left alone there is no posterior to move: equation 6 is what remains.
    return replace(
        paper,
        tokenizer=tokenizer,
        sequence=sequence,
        prior=RasterConfig(),
        head=TransitionConfig(),
        optimization=OPTIMIZATION,
    )


def small_grid(paper: GridConfig, preset: str, frame: tuple[int, ...]) -> GridConfig:
    """GRID for cells of 4 × 4 pixels (`small`), for screens with hundreds of patches of 8 × 8 (`patches`), or for any
    pictures, with a tokenizer that is trained (`vq`)."""
    if preset == "small":
        optimization = DynamicsOptimization(dynamics=GRID_DYNAMICS, stale=GRID_STALE)
        return replace(paper, prior=replace(paper.prior, channels=64), optimization=optimization)
    dynamics = replace(GRID_DYNAMICS, rows=10)
    optimization = DynamicsOptimization(dynamics=dynamics, stale=GRID_STALE)
    return replace(
        paper,
        tokenizer=PATCHES if preset == "vq" else EXACT_PATCHES[preset],
        prior=replace(paper.prior, code_width=16),
        outcomes=replace(paper.outcomes, code_width=16),
        optimization=optimization
        if preset != "vq"
        else TwoStageOptimization(
            tokenizer=StageConfig(rows=64, length=1, updates=1000), dynamics=dynamics, stale=GRID_STALE
        ),
    )


def small_storm(paper: StormConfig, preset: str, frame: tuple[int, ...]) -> StormConfig:
    """STORM and GIT-STORM with less than two million weights, fitted all at once as the paper does."""
    # Small worlds have little news in a frame: the paper's nat of free bits would leave it to chance.
    objective = KLObjective(dynamics=0.5, free_bits=0.1)
    # Halved once more where it can be: all positions of the last map meet in one matrix, and another in the decoder.
    channels = (16, 32, 32) if any(side % 16 for side in frame[1:]) else (16, 32, 32, 32)
    prior: RasterConfig | MaskGITConfig = RasterConfig(objective=objective)
    if isinstance(paper.prior, MaskGITConfig):
        # As many weights as a linear prior has at this size, and drafts in which tokens can agree.
        prior = replace(paper.prior, objective=objective, width=48, heads=4, feed_forward=48, draft=4)
    assert isinstance(paper.tokenizer, CategoricalConfig)
    return replace(
        paper,
        tokenizer=replace(paper.tokenizer, conv=BatchConvConfig(channels=channels), categories=16, classes=16),
        sequence=replace(paper.sequence, width=256, heads=4, feed_forward=512, dropout=0.0),
        prior=prior,
        head=TransitionConfig(),
        optimization=AT_ONCE,
    )


def small_token_level(paper: TokenLevelConfig, preset: str, frame: tuple[int, ...]) -> TokenLevelConfig:
    """IRIS and REM with less than a million weights, and rewards of any size."""
    sequence: BlockTransformerConfig | RetNetConfig = BlockTransformerConfig(
        width=128, layers=3, heads=4, feed_forward=512, dropout=0.0, blocks=8
    )
    if isinstance(paper.sequence, RetNetConfig):
        sequence = RetNetConfig(width=128, layers=3, heads=4, feed_forward=512, dropout=0.0, chunk=104)
    return replace(
        paper,
        tokenizer=PATCHES,
        sequence=sequence,
        rewards="two_hot",
        head=HeadConfig(units=128),
        optimization=TwoStageOptimization(
            tokenizer=StageConfig(rows=64, length=1, updates=1000),
            dynamics=StageConfig(rows=16, length=12, updates=1500, weight_decay=1e-2, clip=10.0),
        ),
    )


def small_delta_iris(paper: DeltaIRISConfig, preset: str, frame: tuple[int, ...]) -> DeltaIRISConfig:
    """Δ-IRIS with about a million weights, whose networks see a frame in patches of 4 × 4 pixels."""
    network = FrameNetworkConfig(channels=(48, 48), strides=(1, 1), groups=8, patch=4)
    return DeltaIRISConfig(
        tokenizer=DeltaConfig(
            network=network, condition=network, channels=16, codes=128, code_width=32, revival_updates=1000
        ),
        frame_token=FrameTokenConfig(
            network=FrameNetworkConfig(channels=(32, 32), strides=(1, 2), groups=8, patch=4), channels=8
        ),
        sequence=BlockTransformerConfig(width=128, layers=2, heads=4, feed_forward=512, dropout=0.0, blocks=16),
        head=HeadConfig(units=128),
        optimization=TwoStageOptimization(
            tokenizer=StageConfig(rows=16, length=3, updates=2000, clip=10.0),
            dynamics=StageConfig(rows=16, length=16, updates=1200, weight_decay=1e-2, clip=10.0),
        ),
    )
