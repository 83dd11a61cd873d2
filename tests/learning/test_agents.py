"""Learning: agents find the optimum of analytic worlds in a bounded number of updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamenvs import tree
from dreamenvs.agents.encoders import PixelEncoderConfig, TokenEncoderConfig
from dreamenvs.agents.imagination import Moment, imagine
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.agents.learner import Learner, LearningConfig
from dreamenvs.agents.protocol import agent_spec, view_of
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig
from dreamenvs.agents.saving import build_agent
from dreamenvs.types import Segment
from tests.toy_worlds import CorridorWorld, PointWorld, RecallWorld, point_checkpoint

LATENT = LatentConfig(actor_units=32, critic_units=32)
PIXELS = RecurrentConfig(encoder=PixelEncoderConfig(channels=(8,)), units=32)
TOKENS = RecurrentConfig(
    encoder=TokenEncoderConfig(width=8, channels=(8,), units=32),
    units=32,
    action_inputs=True,
)
FAST: dict[str, Any] = {"rows": 64, "rate": 1e-2, "entropy": 3e-3, "discount": 0.95}


def learn(world: Any, config: Any, obs_type: Any, contexts: Segment, updates: int, **settings: Any) -> Learner:
    torch.manual_seed(0)
    learner = Learner(build_agent(config, agent_spec(world, obs_type)), LearningConfig(**FAST | settings))
    rows = torch.arange(learner.config.rows) % len(contexts.rewards)
    for update in range(updates):
        learner.update(world, tree.take_rows(contexts, rows), update)
    return learner


@pytest.mark.parametrize(("config", "obs_type"), [(LATENT, "latent"), (PIXELS, "rgb"), (TOKENS, "tokens")])
def test_the_corridors_optimum_is_found(config: Any, obs_type: Any) -> None:
    world = CorridorWorld()
    learner = learn(world, config, obs_type, world.contexts(), 60, horizon=8)
    agent = learner.agent
    state = world.observe(world.contexts())
    outputs, _ = agent.act(view_of(world, state, obs_type), agent.begin(world.length))
    assert agent.choice.mode(outputs).tolist() == [1] * world.length
    rows = torch.arange(200)
    start = Moment(tree.take_rows(state, rows % world.length), agent.begin(200))
    trajectory, _ = imagine(world, agent, start, 30, rows)
    assert trajectory.rewards.sum(1).mean() > 0.95


@pytest.mark.parametrize("slow", [{}, {"bootstrap": "slow", "slow_weight": 0.0, "scaled": False}])
def test_the_value_of_the_optimum_is_learned(slow: dict[str, Any]) -> None:
    world = CorridorWorld()
    learner = learn(world, LATENT, "latent", world.contexts(), 120, horizon=8, slow_decay=0.9, **slow)
    features = world.features(world.observe(world.contexts()))
    values = learner.agent.values.mean(learner.agent.critic(features))  # type: ignore[attr-defined]
    expected = torch.tensor([0.95 ** (world.length - 1 - place) for place in range(world.length)])
    torch.testing.assert_close(values.detach(), expected, atol=0.06, rtol=0)


@pytest.mark.parametrize(("config", "obs_type"), [(PIXELS, "rgb"), (TOKENS, "tokens")])
def test_a_recurrent_agent_remembers_what_it_saw(config: Any, obs_type: Any) -> None:
    world = RecallWorld()
    settings = {"rows": 256, "slow_weight": 0.0, "standardised": True, "entropy": 1e-2}
    learner = learn(world, config, obs_type, world.contexts(), 80, horizon=2, **settings)
    rows = torch.arange(200)
    start = Moment(tree.take_rows(world.observe(world.contexts()), rows % 2), learner.agent.begin(200))
    trajectory, _ = imagine(world, learner.agent, start, 2, rows)
    assert trajectory.rewards.sum(1).mean() > 0.95


def test_the_small_recipe_finds_the_optimum_in_few_updates() -> None:
    world = CorridorWorld()
    settings = {"rows": 64, "standardised": True, "epochs": 4, "minibatches": 2, "slow_weight": 0.0}
    learner = learn(world, LATENT, "latent", world.contexts(), 12, horizon=8, **settings)
    outputs, _ = learner.agent.act(torch.eye(world.length), learner.agent.begin(world.length))
    assert learner.agent.choice.mode(outputs).tolist() == [1] * world.length


@pytest.mark.parametrize(("config", "obs_type"), [(LATENT, "latent")])
def test_continuous_actions_are_learned(config: Any, obs_type: Any) -> None:
    world = PointWorld()
    contexts = point_checkpoint().contexts
    frames = contexts.observations.repeat(16, 1, 1, 1, 1)
    frames[:, :, :, :, :2] = torch.randint(0, 256, (16, 1, 3, 4, 2), generator=torch.Generator().manual_seed(0))
    spread = tree.map(lambda leaf: leaf.repeat(16, *[1] * (leaf.dim() - 1)), contexts)._replace(observations=frames)
    learner = learn(world, config, obs_type, spread, 80, horizon=12, rows=128)
    agent = learner.agent
    start = torch.tensor([[0.8, 0.8], [0.9, 0.1], [0.1, 0.9], [0.6, 0.3]])
    outputs, _ = agent.act(start, agent.begin(4))
    actions = agent.choice.mode(outputs)
    toward = -(actions * start).sum(1) / start.norm(dim=1)
    assert (toward > 0.7).all()  # towards the origin, with most of the force there is
