"""Small models of every family, for tests: built in milliseconds, shaped like the real ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dreamenvs.models import FAMILIES
from dreamenvs.models.actions import sample_actions
from dreamenvs.models.delta_iris import DeltaIRISConfig
from dreamenvs.models.frame_token import FrameTokenConfig
from dreamenvs.models.grid import GridConfig
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.iris import TokenLevelConfig
from dreamenvs.models.outcomes import TransitionConfig, TransitionOutcomes
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.storm import StormConfig
from dreamenvs.models.token_blocks import SharedCodesConfig
from dreamenvs.models.two_stage import DynamicsOptimization
from dreamenvs.nn.frame_networks.delta_iris import FrameNetworkConfig
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.nn.frame_networks.storm import BatchConvConfig
from dreamenvs.priors.factorized import FactorizedConfig, KLObjective
from dreamenvs.priors.local import LocalConfig, LocalPrior
from dreamenvs.priors.maskgit import MaskGITConfig
from dreamenvs.priors.parallel import ParallelConfig
from dreamenvs.priors.raster import RasterConfig, RasterPrior
from dreamenvs.protocols import Stage
from dreamenvs.sequence.conv_gru import ConvGRUConfig
from dreamenvs.sequence.mamba2 import Mamba2Config
from dreamenvs.sequence.retnet import RetNetConfig
from dreamenvs.sequence.transformer import BlockTransformerConfig, TransformerConfig
from dreamenvs.tokenizers.categorical import CategoricalConfig
from dreamenvs.tokenizers.delta import DeltaConfig
from dreamenvs.tokenizers.patches import PatchesConfig, PatchTokenizer
from dreamenvs.tokenizers.vq import VQConfig
from dreamenvs.tokenizers.vqgan import DiscreteConfig
from dreamenvs.types import ContinuousActions, DiscreteActions, Segment, WorldSpec

CONV = ConvConfig(channels=(8, 16), strides=(2, 2), kernel=3, groups=4)
MAMBA2 = Mamba2Config(width=32, layers=2, heads=2, state_size=4, chunk=4)
TRANSFORMER = TransformerConfig(width=32, layers=2, heads=2, feed_forward=64, window=6)
VQ = VQConfig(conv=CONV, codes=16, code_width=8, sharpness=50.0)  # narrow codes lie close together
CATEGORICAL = CategoricalConfig(conv=CONV, categories=8, classes=6)
UNIMIX = FactorizedConfig(unimix=0.01)
HEAD = HeadConfig(units=16)

# The local preset's choices: each position normalised by itself, and a prior that looks at what was near a token.
LOCAL = VQConfig(
    conv=ConvConfig(channels=(8, 16), strides=(2, 2), kernel=3, norm="channel"), codes=16, code_width=4, sharpness=50.0
)

FRAMES = FrameNetworkConfig(channels=(8, 16), strides=(2, 1), groups=4)
DELTA = DeltaConfig(
    network=FRAMES, condition=FRAMES, channels=4, condition_channels=2, action_channels=1, codes=16, code_width=8
)

STORM = StormConfig(
    tokenizer=CategoricalConfig(conv=BatchConvConfig(channels=(8, 16)), categories=8, classes=6),
    sequence=TransformerConfig(
        width=32, layers=2, heads=2, feed_forward=64, window=6, layer="post", positions="learned"
    ),
    head=HeadConfig(units=16, layers=2, activation="relu"),
)

MASKGIT = MaskGITConfig(
    objective=KLObjective(
        dynamics=0.5, free_bits=0.0
    ),  # young ones differ by less than a nat, which would teach nothing
    width=16,
    layers=2,
    heads=2,
    feed_forward=24,
    draft=2,
    repetitions=1,
)

CONFIGS: dict[str, Any] = {
    "STEPVQ": StepVQConfig(tokenizer=VQ, sequence=MAMBA2, head=HEAD),
    "STEPVQT": StepVQConfig(
        tokenizer=LOCAL,
        sequence=TRANSFORMER,
        head=HEAD,
        prior=LocalConfig(reach=1, code_width=3, units=12, rank=4),
    ),
    "CB": StepVQConfig(tokenizer=CATEGORICAL, sequence=MAMBA2, head=HEAD, prior=UNIMIX),
    "CBT": StepVQConfig(tokenizer=CATEGORICAL, sequence=TRANSFORMER, head=HEAD, prior=UNIMIX),
    "STORM": STORM,
    "GITSTORM": replace(STORM, prior=MASKGIT),
    "IRIS": TokenLevelConfig(
        tokenizer=LOCAL,
        sequence=BlockTransformerConfig(width=32, layers=2, heads=2, feed_forward=64, blocks=3),
        rewards="two_hot",
        head=HEAD,
    ),
    "REM": TokenLevelConfig(
        tokenizer=DiscreteConfig(
            network=PlainNetworkConfig(channels=8, halvings=2, groups=4), codes=16, code_width=32, reconstruction="l2"
        ),
        embedding=SharedCodesConfig(),
        sequence=RetNetConfig(width=32, layers=2, heads=2, feed_forward=64, chunk=26),
        prior=ParallelConfig(coupled=True),
        head=HEAD,
        context=2,
    ),
    "DeltaIRIS": DeltaIRISConfig(
        tokenizer=DELTA,
        frame_token=FrameTokenConfig(network=FRAMES, channels=2),
        sequence=BlockTransformerConfig(width=32, layers=2, heads=2, feed_forward=64, dropout=0.0, blocks=4),
        head=HEAD,
    ),
}

JOINT = RasterConfig(channels=12, code_width=6)
TRANSITION = TransitionConfig(channels=12, code_width=6, units=16)
PATCHES = PatchesConfig(size=4, codes=24, threshold=4.0, code_width=6)
CONFIGS["GRID"] = GridConfig(
    tokenizer=PATCHES,
    sequence=ConvGRUConfig(channels=12),
    prior=JOINT,
    outcomes=TRANSITION,
    optimization=DynamicsOptimization(),
)

DISCRETE = WorldSpec(world="Small", observation_shape=(3, 12, 16), actions=DiscreteActions(count=4))
CONTINUOUS = WorldSpec(
    world="SmallContinuous", observation_shape=(1, 8, 12), actions=ContinuousActions(low=(-2.0, 0.0), high=(2.0, 1.0))
)


def build_small(family: str, spec: WorldSpec = DISCRETE, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """An untrained model with lively heads: a fresh one says reward 0 and even odds, whatever happens."""
    torch.manual_seed(seed)
    model = FAMILIES[family].build(CONFIGS[family], spec)
    liven_outcomes(model.outcomes)
    if isinstance(model.prior, RasterPrior):
        torch.nn.init.normal_(model.prior.guess.weight, std=0.6)
        torch.nn.init.normal_(model.prior.answer.weight, std=0.6)
    else:
        local = isinstance(model.prior, LocalPrior)
        torch.nn.init.normal_((model.prior.answer if local else model.prior.project).weight, std=0.4)
        if local:
            torch.nn.init.normal_(model.prior.condition.weight, std=0.4)
    if isinstance(model.tokenizer, PatchTokenizer):
        model.tokenizer.grow(random_segment(spec).observations.flatten(0, 1))
    return model.to(dtype).eval()


def liven_outcomes(outcomes: Any) -> None:
    """Rewards that differ, and ends that are rare."""
    if isinstance(outcomes, TransitionOutcomes):
        outcomes.grow(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
        torch.nn.init.normal_(outcomes.reward.weight)
        torch.nn.init.constant_(outcomes.end.bias, -4.0)
        torch.nn.init.ones_(outcomes.trust)
        return
    for head in (outcomes.reward, outcomes.termination):
        torch.nn.init.normal_(head.output.weight, std=0.3)
    torch.nn.init.constant_(outcomes.termination.output.bias, -4.0)


def stage_segment(stage: Stage, segment: Segment) -> Segment:
    """A segment as a stage takes it: with tokens in the place of frames where it asks for them."""
    if stage.prepare is None:
        return segment
    with torch.no_grad():
        tokens = stage.prepare(segment.observations.flatten(0, 1))
    return segment._replace(observations=tokens.unflatten(0, segment.rewards.shape))


def random_segment(spec: WorldSpec = DISCRETE, rows: int = 8, steps: int = 5, seed: int = 0) -> Segment:
    """Noise in the shape of experience."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    actions = sample_actions(spec.actions, rows * steps, generator)
    frames = rng.integers(0, 256, (rows, steps, *spec.observation_shape), dtype=np.uint8)
    return Segment(
        observations=torch.from_numpy(frames),
        actions=actions.unflatten(0, (rows, steps)),
        rewards=torch.from_numpy(rng.normal(size=(rows, steps)).astype(np.float32)),
        terminated=torch.from_numpy(rng.random((rows, steps)) < 0.05),
        valid=torch.ones(rows, steps, dtype=torch.bool),
    )
