"""How each family is trained online: the loops of the papers, and small ones for two cores.

What the papers leave open is as in their published code; where the two differ, the paper's number stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dreamenvs.agents.defaults import AgentRecipe, default_recipe
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.data.samplers import CountSampler, FrequencySampler, Sampler, UniformSampler
from dreamenvs.evaluation.online_results import Evaluation
from dreamenvs.families import FAMILIES, resolve
from dreamenvs.fitting.schedule import Pace, Schedule
from dreamenvs.models.delta_iris import DeltaIRISConfig
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.frame_token import FrameTokenConfig
from dreamenvs.models.two_stage import DynamicsOptimization, StageConfig, TwoStageOptimization
from dreamenvs.nn.frame_networks.delta_iris import FrameNetworkConfig
from dreamenvs.presets.world_models import model_config
from dreamenvs.sequence.transformer import BlockTransformerConfig
from dreamenvs.tokenizers.delta import DeltaConfig
from dreamenvs.types import Scalar, SourceEnv
from dreamenvs.worlds.source import choose_source

PresetName = Literal["small", "paper"]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How an Atari game is played; other environments have none of this."""

    sticky: float = 0.0
    noop_max: int = 0
    test_noop_max: int = 0
    life_loss: bool = True
    """Whether a lost life ends a training episode; a test is always a whole game."""
    max_episode_steps: int | None = None
    """Of a training episode."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """All that decides a run, besides the environment and the seed."""

    config: Any
    """The world model's."""
    agent: AgentRecipe
    schedule: Schedule
    evaluation: Evaluation = field(default_factory=Evaluation)
    protocol: Protocol = field(default_factory=Protocol)
    sampler: Literal["uniform", "count", "frequency"] = "uniform"
    alpha: float = 1.0
    """Of the count sampler."""
    num_envs: int = 1
    """Real environments that are played side by side."""

    def __post_init__(self) -> None:
        if self.sampler == "frequency" and self.num_envs > 1:
            raise ValueError(
                "the frequency sampler counts steps by their place, which several open episodes would move"
            )


IRIS_PROTOCOL = Protocol(noop_max=30, test_noop_max=1, max_episode_steps=5_000)
"""Of IRIS, Δ-IRIS and REM: 20,000 emulator frames at most in a training episode."""

DRAMA_LOOP = Schedule(
    steps=100_000,
    warmup=1_032,
    stages={"world_model": Pace(start=1_032)},
    agent=Pace(start=1_032),
    context=16,
    evaluate_every=1_000,
)
"""STEP-VQ builds on DRAMA: an update of everything for every real step."""

STORM_LOOP = replace(
    DRAMA_LOOP,
    steps=102_000,
    warmup=1_024,
    stages={"world_model": Pace(start=1_024)},
    agent=Pace(start=1_024),
    evaluate_every=2_500,
)

IRIS_LOOP = Schedule(
    steps=100_000,
    chunk=200,
    after=20_000,
    stages={"tokenizer": Pace(start=1_000), "dynamics": Pace(start=5_000)},
    agent=Pace(start=10_000),
    epsilon=0.01,
    context=20,
    evaluate_every=1_000,
)
"""600 epochs, of which 500 collect 200 steps; the parts begin after 5, 25 and 50 epochs."""

REM_LOOP = replace(IRIS_LOOP, agent=Pace(rate=0.5, start=10_000), evaluate_every=2_000)
"""Tables 2 and 3: IRIS's epochs with half of the agent's updates."""

DELTA_IRIS_ATARI_LOOP = Schedule(
    steps=100_000,
    chunk=200,
    after=21_800,
    warmup=2_000,
    stages={"tokenizer": Pace(start=2_800), "dynamics": Pace(rate=0.6, start=11_800)},
    agent=Pace(start=16_800),
    epsilon=0.01,
    context=5,
    evaluate_every=5_000,
)
"""600 epochs, of which the first collects 2,000 random steps and 490 more 200 each."""

DELTA_IRIS_CRAFTER_LOOP = Schedule(
    steps=10_000_000,
    chunk=10_000,
    after=90_000,
    warmup=100_000,
    stages={
        "tokenizer": Pace(rate=0.05, start=100_000, first=5_000),
        "dynamics": Pace(rate=0.05, start=100_000, first=2_500),
    },
    agent=Pace(rate=0.05, start=100_000, first=500),
    epsilon=0.01,
    context=5,
    evaluate_every=500_000,
)
"""Table 5: 1,000 epochs of 10,000 steps and 500 updates of each part, after 100,000 random steps."""

SMALL_LOOP = Schedule(
    steps=20_000,
    chunk=500,
    warmup=1_000,
    stages={
        "tokenizer": Pace(rate=0.0, start=1_000, first=800),
        "dynamics": Pace(rate=0.12, start=1_000, first=300),
    },
    agent=Pace(rate=0.03, start=2_000),
    epsilon=0.02,
    context=8,
    evaluate_every=4_000,
)
"""A quarter of an hour of one core in MinAtar. The tokenizer is fitted once, on the first steps, and then stays: when
it went on, codes changed their meaning and the dynamics lost in ten updates what they had learned in three hundred."""


def find_preset(family: str, name: PresetName, env: str) -> Preset:
    """The preset of a family for an environment."""
    return paper_preset(family, env) if name == "paper" else small_preset(family)


def paper_preset(family: str, env: str) -> Preset:
    """The loop of a family's paper."""
    loop: Callable[[Any, AgentRecipe, str], Preset] = resolve(FAMILIES[family].paper_loop)
    return loop(model_config(family, "paper"), default_recipe(family, "paper"), env)


def step_vq_preset(config: Any, agent: AgentRecipe, env: str) -> Preset:
    """Of STEP-VQ and its baselines."""
    evaluation = Evaluation(final=10, temperature=0.0)
    return Preset(config=config, agent=agent, schedule=DRAMA_LOOP, evaluation=evaluation, sampler="frequency")


def grid_preset(config: Any, agent: AgentRecipe, env: str) -> Preset:
    """Of GRID, which no paper has: the loop for two cores."""
    return small_preset("GRID")


def storm_preset(config: Any, agent: AgentRecipe, env: str) -> Preset:
    """Of STORM and GIT-STORM."""
    # 500,000 real steps in the DeepMind Control Suite, a million frames at an action repeat of two.
    schedule = replace(STORM_LOOP, steps=500_000) if env.startswith("dm_control/") else STORM_LOOP
    evaluation = Evaluation(episodes=20, final=20)
    return Preset(config=config, agent=agent, schedule=schedule, evaluation=evaluation, protocol=Protocol(sticky=0.25))


def iris_preset(config: Any, agent: AgentRecipe, env: str, schedule: Schedule = IRIS_LOOP) -> Preset:
    """Of IRIS."""
    evaluation = Evaluation(episodes=16, temperature=0.5)
    return Preset(config=config, agent=agent, schedule=schedule, evaluation=evaluation, protocol=IRIS_PROTOCOL)


def rem_preset(config: Any, agent: AgentRecipe, env: str) -> Preset:
    """Of REM."""
    return iris_preset(config, agent, env, REM_LOOP)


def delta_iris_preset(config: Any, agent: AgentRecipe, env: str) -> Preset:
    """Of Δ-IRIS, in Crafter or in Atari."""
    if env == "Crafter":
        return Preset(
            config=config,
            agent=agent,
            schedule=DELTA_IRIS_CRAFTER_LOOP,
            evaluation=Evaluation(episodes=64, num_envs=32, max_episode_steps=10_000),
            sampler="count",
            alpha=5.0,
            num_envs=16,
        )
    learning = replace(agent.learning, rows=64, horizon=20, discount=0.995, entropy=2e-3)
    return Preset(
        config=delta_iris_atari(),
        agent=replace(agent, agent=replace(agent.agent, values="scalar"), learning=learning),
        schedule=DELTA_IRIS_ATARI_LOOP,
        evaluation=Evaluation(episodes=32),
        protocol=IRIS_PROTOCOL,
        sampler="count",
    )


def delta_iris_atari() -> DeltaIRISConfig:
    """Δ-IRIS for Atari: smaller than for Crafter. The published one knows a reward's sign only, this one its size."""
    narrow = FrameNetworkConfig(channels=(32, 32, 64, 64, 128))
    turn = StageConfig(rows=16, length=21, updates=119_000, rate=1e-4, clip=10.0, warmup=0, decay=1.0)
    return DeltaIRISConfig(
        tokenizer=DeltaConfig(condition=narrow, condition_channels=16, revival_updates=400),
        frame_token=FrameTokenConfig(channels=4),
        sequence=BlockTransformerConfig(width=256, layers=3, heads=4, feed_forward=1024, dropout=0.0, blocks=26),
        optimization=TwoStageOptimization(
            tokenizer=turn, dynamics=replace(turn, rows=64, length=26, updates=66_000, weight_decay=0.01)
        ),
    )


def small_preset(family: str) -> Preset:
    """A loop for two cores; of the frame-level families with a token for each cell of MinAtar."""
    name = FAMILIES[family].small_loop
    config = model_config(family, name)
    schedule, turns, agent = SMALL_LOOP, config.optimization, default_recipe(family, "small")
    if isinstance(turns, JointOptimization):
        schedule = replace(schedule, stages={"world_model": schedule.stages["dynamics"]})
    elif isinstance(turns, DynamicsOptimization):
        schedule = replace(schedule, stages={"dynamics": schedule.stages["dynamics"]})
    elif name == "cells":
        config = replace(config, optimization=replace(turns, dynamics=replace(turns.dynamics, rows=16, length=24)))
    if isinstance(agent.agent, LatentConfig):
        # The features change their meaning while the world model is fitted, and a normalizer would follow late.
        agent = replace(agent, agent=replace(agent.agent, normalized=False))
    learning = replace(agent.learning, decay_updates=schedule.agent.due(schedule.end))
    evaluation = Evaluation(episodes=20, num_envs=20, max_episode_steps=2_000)
    return Preset(config=config, agent=replace(agent, learning=learning), schedule=schedule, evaluation=evaluation)


def sources(env: str, preset: Preset) -> tuple[SourceEnv, SourceEnv]:
    """The environment that is learned from, and the one that agents are measured in."""
    source, protocol = choose_source(env), preset.protocol
    if source.preprocessing != "atari":
        return source, source
    base = replace(source, kwargs={**source.kwargs, "repeat_action_probability": protocol.sticky})
    limit: dict[str, Scalar] = (
        {} if protocol.max_episode_steps is None else {"max_episode_steps": protocol.max_episode_steps}
    )
    learn = {"noop_max": protocol.noop_max, "terminal_on_life_loss": protocol.life_loss, **limit}
    test = {"noop_max": protocol.test_noop_max, "terminal_on_life_loss": False}
    return (
        replace(base, options={**source.options, **learn}),
        replace(base, options={**source.options, **test}),
    )


def build_samplers(preset: Preset, stages: tuple[str, ...]) -> Mapping[str, Sampler]:
    """A sampler for each stage, with counters of its own."""
    if preset.sampler == "count":
        return {stage: CountSampler(preset.alpha) for stage in stages}
    return {stage: FrequencySampler() if preset.sampler == "frequency" else UniformSampler() for stage in stages}
