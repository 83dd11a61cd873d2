"""Imagined trajectories, with literal arrays from analytic worlds and with small models of every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamenvs import tree
from dreamenvs.agents.defaults import default_recipe
from dreamenvs.agents.encoders import PixelEncoderConfig, TokenEncoderConfig
from dreamenvs.agents.imagination import Moment, imagine, start_imagination
from dreamenvs.agents.latent_actor_critic import LatentAgent, LatentConfig
from dreamenvs.agents.learner import Learner, LearningConfig
from dreamenvs.agents.protocol import agent_spec, view_of
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig
from dreamenvs.agents.saving import build_agent
from dreamenvs.types import WorldSpec
from tests.small import CONFIGS, CONTINUOUS, DISCRETE, build_small, random_segment
from tests.toy_worlds import CountingWorld, counting_contexts

LATENT = LatentConfig(actor_units=8, critic_units=8)
PIXELS = RecurrentConfig(encoder=PixelEncoderConfig(channels=(4,)), units=8, action_inputs=True)
TOKENS = RecurrentConfig(encoder=TokenEncoderConfig(width=4, channels=(4,), units=8), units=8, action_inputs=True)
KINDS: list[tuple[Any, Any]] = [(LATENT, "latent"), (PIXELS, "rgb"), (TOKENS, "tokens")]


def lively(config: Any, model: Any, obs_type: Any) -> Any:
    """An agent that is not uniform."""
    torch.manual_seed(1)
    agent = build_agent(config, agent_spec(model, obs_type))
    for head in (agent.actor, agent.critic):  # type: ignore[attr-defined]
        last = head if isinstance(head, torch.nn.Linear) else head[-1]
        torch.nn.init.normal_(last.weight)
    return agent


def count(world: CountingWorld, agent: Any, starts: tuple[int, ...], horizon: int, **kwargs: Any) -> Any:
    start = Moment(world.observe(counting_contexts(starts)), agent.begin(len(starts)))
    return imagine(world, agent, start, horizon, torch.arange(len(starts)), **kwargs)


def test_rewards_belong_to_the_actions_that_caused_them() -> None:
    world = CountingWorld(limit=1000)
    trajectory, end = count(world, lively(LATENT, world, "latent"), (0, 7, 20), 6)
    assert trajectory.actions.unique().numel() > 1
    # The reward is the action; one step late, as DRAMA's, it would be the action before.
    assert torch.equal(trajectory.rewards, trajectory.actions.float())
    assert not torch.equal(trajectory.rewards[:, 1:], trajectory.actions[:, :-1].float())
    # A view shows the count before the action that follows it, and the last one what came of all.
    counts = torch.tensor([[0], [7], [20]]) + torch.nn.functional.pad(trajectory.actions.cumsum(1), (1, 0))
    assert torch.equal(trajectory.views[..., 0], counts.float())
    assert torch.equal(end.state.count, counts[:, -1])
    assert trajectory.valid.all()


def test_nothing_is_valid_after_a_termination() -> None:
    world = CountingWorld(limit=10)
    trajectory, _ = count(world, lively(LATENT, world, "latent"), (0, 8, 9), 8)
    for row in range(3):
        ends = trajectory.terminated[row].nonzero()[:, 0].tolist()
        first = ends[0] if ends else 7
        assert ends in ([], [first])
        assert trajectory.valid[row].tolist() == [step <= first for step in range(8)]
        assert trajectory.rewards[row, first + 1 :].abs().sum() == 0
    assert trajectory.terminated.any()


def test_a_row_in_which_the_model_fails_keeps_its_last_state() -> None:
    world = CountingWorld(limit=100, broken_at=12)
    always_one = LatentAgent(agent_spec(world, "latent"), Fixed([0.0, 50.0, 0.0]), torch.nn.Linear(2, 255))
    trajectory, end = count(world, always_one, (10, 0), 4)
    assert trajectory.valid.tolist() == [[True, False, False, False], [True] * 4]
    assert trajectory.rewards.tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert not trajectory.terminated.any()
    assert end.state.count[1] == 4
    assert trajectory.rewards.isfinite().all()


class Fixed(torch.nn.Module):
    """The same outputs, whatever it sees."""

    def __init__(self, outputs: list[float]) -> None:
        super().__init__()
        self.outputs = torch.nn.Parameter(torch.tensor(outputs))

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(*views.shape[:-1], -1)


def test_a_row_is_imagined_alike_among_others() -> None:
    world = CountingWorld(limit=1000, jitter=0.5)
    agent = lively(LATENT, world, "latent")
    many, _ = count(world, agent, tuple(range(24)), 8)
    few, _ = count(world, agent, tuple(range(8)), 8)
    assert all(torch.equal(part[:8], own) for part, own in zip(many, few, strict=True))


def test_the_horizon_is_checked() -> None:
    world = CountingWorld()
    with pytest.raises(ValueError, match="at least 1, not 0"):
        count(world, lively(LATENT, world, "latent"), (0,), 0)


@pytest.mark.parametrize(("config", "obs_type"), KINDS)
def test_judging_all_at_once_is_acting_step_by_step(config: Any, obs_type: Any) -> None:
    model = build_small("REM")
    agent = lively(config, model, obs_type)
    start = start_imagination(model, agent, random_segment(rows=8, steps=3))
    trajectory, end = imagine(model, agent, start, 4, torch.arange(8))
    judged = agent.judge(trajectory.views, trajectory.actions, start.memory)
    memory = start.memory
    for step in range(4):
        outputs, memory = agent.act(trajectory.views[:, step], memory)
        torch.testing.assert_close(judged.outputs[:, step], outputs)
        memory = agent.remember(memory, trajectory.actions[:, step])
    tree.map(torch.testing.assert_close, memory, end.memory)  # type: ignore[arg-type]
    assert judged.values.shape[:2] == (8, 5)


@pytest.mark.parametrize(("config", "obs_type"), KINDS[1:])
@torch.no_grad()
def test_a_recurrent_agent_is_burnt_in_with_its_actions(config: Any, obs_type: Any) -> None:
    model, context = build_small("IRIS"), random_segment(rows=8, steps=4)
    agent = lively(config, model, obs_type)
    start = start_imagination(model, agent, context)
    memory = agent.begin(8)
    for step in range(3):
        state = model.observe(tree.map(lambda leaf, step=step: leaf[:, : step + 1], context))
        view = context.observations[:, step] if obs_type == "rgb" else view_of(model, state, obs_type)
        _, memory = agent.act(view, memory)
        memory = agent.remember(memory, context.actions[:, step])
    tree.map(torch.testing.assert_close, start.memory, memory)
    torch.testing.assert_close(model.features(start.state), model.features(model.observe(context)))
    other = context._replace(actions=(context.actions + 1) % 4)
    assert not torch.equal(start_imagination(model, agent, other).memory.hidden, memory.hidden)
    short = start_imagination(model, agent, context, warm_up=2)
    tree.map(torch.testing.assert_close, short.memory, memory)
    recent = model.observe(tree.map(lambda leaf: leaf[:, 2:], context))
    torch.testing.assert_close(model.features(short.state), model.features(recent))


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_an_agent_learns_in_every_family_and_no_gradient_reaches_the_model(family: str, spec: WorldSpec) -> None:
    model = build_small(family, spec).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    obs_type = default_recipe(family).obs_type
    config = {"latent": LATENT, "rgb": PIXELS, "tokens": TOKENS}[obs_type]
    agent = lively(config, model, obs_type)
    learner = Learner(agent, LearningConfig(horizon=3, rate=1e-2, context=2))
    weights = [parameter.clone() for parameter in agent.parameters()]
    metrics = learner.update(model, random_segment(spec, rows=8, steps=2), 0)
    assert all(torch.tensor(list(metrics.values())).isfinite())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert any(not torch.equal(old, new) for old, new in zip(weights, agent.parameters(), strict=True))


def test_no_trajectory_carries_a_gradient() -> None:
    model = build_small("STEPVQ")
    agent = lively(LATENT, model, "latent")
    start = start_imagination(model, agent, random_segment(rows=8, steps=2))
    trajectory, end = imagine(model, agent, start, 2, torch.arange(8))
    assert not any(leaf.requires_grad for leaf in tree.leaves((trajectory, end)))
    Learner(agent, LearningConfig()).losses(trajectory, start.memory).total.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in agent.parameters())
