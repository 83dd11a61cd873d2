"""Q networks and the agents that act on them: shapes, what they see, and ε-greedy actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs import tree
from dreamenvs.agents.acting import Acting, ActingPolicy
from dreamenvs.agents.player import Player
from dreamenvs.agents.protocol import AgentSpec, agent_spec, view_dtype, view_shape
from dreamenvs.agents.q_agent import EpsilonGreedy, LastView, QAgentConfig, build_q_agent
from dreamenvs.agents.q_network import QNetwork, QNetworkConfig
from dreamenvs.random import Noise
from dreamenvs.types import ContinuousActions, DiscreteActions
from tests.small import CONTINUOUS, build_small
from tests.toy_worlds import CountingWorld

MINATAR = AgentSpec(
    world="W",
    obs_type="tokens",
    observation_shape=(3, 40, 40),
    num_features=7,
    num_tokens=100,
    vocabulary=6,
    actions=DiscreteActions(count=5),
)
CASES: list[tuple[QNetworkConfig, AgentSpec]] = [
    (QNetworkConfig(grid=(10, 10)), MINATAR),
    (QNetworkConfig(grid=(10, 10), channels=(8, 12)), replace(MINATAR, vocabulary=64)),
    (QNetworkConfig(), MINATAR),
    (QNetworkConfig(grid=(2, 2)), replace(MINATAR, num_tokens=4)),
    (QNetworkConfig(), replace(MINATAR, obs_type="rgb")),
    (QNetworkConfig(channels=(4,)), replace(MINATAR, obs_type="rgb", observation_shape=(1, 9, 30))),
    (QNetworkConfig(), replace(MINATAR, obs_type="latent")),
]


def views(spec: AgentSpec, rows: int, seed: int = 0) -> torch.Tensor:
    """Random views."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, *view_shape(spec))
    if spec.obs_type == "latent":
        return torch.randn(shape, generator=generator)
    high = spec.vocabulary if spec.obs_type == "tokens" else 256
    return torch.randint(high, shape, generator=generator).to(view_dtype(spec))


def lively(config: QAgentConfig, spec: AgentSpec) -> Any:
    """An agent whose Q values differ."""
    agent = build_q_agent(config, spec)
    torch.nn.init.normal_(agent.network.values.weight)
    return agent


@pytest.mark.parametrize(("config", "spec"), CASES)
def test_values_are_of_both_views(config: QNetworkConfig, spec: AgentSpec) -> None:
    network = QNetwork(config, spec)
    torch.nn.init.normal_(network.values.weight)
    one, two = views(spec, 6), views(spec, 6, seed=1)
    values = network(one, two)
    assert values.shape == (6, 5)
    assert not torch.allclose(values, network(two, two))
    assert not torch.allclose(values, network(one, one))
    assert torch.allclose(values[2:3], network(one[2:3], two[2:3]), atol=1e-5)
    values.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_defaults_are_the_network_for_minatar() -> None:
    network = QNetwork(QNetworkConfig(grid=(10, 10)), MINATAR)
    body = 2 * 6 * 16 * 9 + 16 + 2 * 16 * 64 + 1024 * 128 + 128 + 2 * 128 + 128 * 5 + 5
    assert sum(parameter.numel() for parameter in network.parameters()) == body
    convolution, linear = network.layers[0], network.layers[4]
    assert torch.allclose(convolution.weight.flatten(1) @ convolution.weight.flatten(1).T, 2 * torch.eye(16), atol=1e-5)  # type: ignore[operator, union-attr]
    assert torch.allclose(linear.weight @ linear.weight.T, 2 * torch.eye(128), atol=1e-4)  # type: ignore[operator, union-attr]
    assert network.values.weight.norm(dim=1).allclose(torch.full((5,), 0.01))
    assert not network.values.bias.any()


def test_a_patch_is_a_cell() -> None:
    spec = replace(MINATAR, obs_type="rgb")
    cells = QNetwork(QNetworkConfig(), spec).cells
    frames = views(spec, 1)
    changed = frames.clone()
    changed[0, :, 12:16, 20:24] = 255 - changed[0, :, 12:16, 20:24]
    differs = (cells(frames) != cells(changed)).any(1)[0]
    assert differs.nonzero().tolist() == [[3, 5]]
    assert cells(frames).shape == (1, 16, 10, 10)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="sizes of a Q network"):
        QNetworkConfig(channels=(0,))
    with pytest.raises(ValueError, match="no place for 100 tokens"):
        QNetwork(QNetworkConfig(grid=(8, 8)), MINATAR)
    with pytest.raises(ValueError, match="only tokens have a grid"):
        QNetwork(QNetworkConfig(grid=(10, 10)), replace(MINATAR, obs_type="rgb"))
    with pytest.raises(ValueError, match="continuous actions have none"):
        QNetwork(QNetworkConfig(), replace(MINATAR, actions=ContinuousActions(low=(0.0,), high=(1.0,))))
    with pytest.raises(ValueError, match="epsilon is a share"):
        QAgentConfig(epsilon=1.5)
    with pytest.raises(ValueError, match="continuous"):
        build_q_agent(QAgentConfig(), agent_spec(build_small("STEPVQ", CONTINUOUS), "latent"))


@pytest.mark.parametrize(("config", "spec"), CASES)
def test_the_first_view_of_an_episode_is_also_the_one_before(config: QNetworkConfig, spec: AgentSpec) -> None:
    agent = lively(QAgentConfig(network=config), spec)
    one, two = views(spec, 4), views(spec, 4, seed=1)
    values, memory = agent.act(one, agent.begin(4))
    assert torch.equal(values, agent.network(one, one))
    rows = torch.tensor([2])
    memory = tree.put_rows(agent.remember(memory, values.argmax(1)), rows, agent.begin(1))
    values, memory = agent.act(two, memory)
    before = one.clone()
    before[2] = two[2]
    assert torch.equal(values, agent.network(before, two))
    assert isinstance(memory, LastView)
    assert torch.equal(memory.view, two)
    assert not memory.fresh.any()


def test_actions_are_the_best_or_random() -> None:
    values = torch.randn(20_000, 4)
    seeds = torch.arange(20_000)
    noise = Noise(seeds, torch.zeros_like(seeds))
    best = values.argmax(1)
    assert torch.equal(EpsilonGreedy(0.0).sample(values, noise), best)
    assert torch.equal(EpsilonGreedy(1.0).sample(values, noise._replace(temperature=0.0)), best)
    everything = EpsilonGreedy(1.0).sample(values, noise)
    assert np.allclose(everything.bincount(minlength=4) / 20_000, 0.25, atol=0.02)
    some = EpsilonGreedy(0.4).sample(values, noise)
    assert np.isclose((some != best).float().mean(), 0.4 * 0.75, atol=0.02)
    alone = EpsilonGreedy(0.4).sample(values[7:8], Noise(seeds[7:8], torch.zeros(1, dtype=torch.int64)))
    assert torch.equal(alone, some[7:8])


def test_a_player_draws_few_random_actions() -> None:
    spec = agent_spec(CountingWorld(), "latent")
    agent = lively(QAgentConfig(epsilon=0.3), spec)
    shown = views(spec, 2_000).numpy()
    best, _ = Player(agent).predict(shown, deterministic=True)
    drawn, _ = Player(agent, seed=0).predict(shown)
    assert np.isclose((drawn != best).mean(), 0.3 * 2 / 3, atol=0.04)
    assert np.array_equal(drawn, Player(agent, seed=0).predict(shown)[0])


def test_a_model_watches_for_a_q_agent() -> None:
    world = CountingWorld()
    agent = lively(QAgentConfig(), agent_spec(world, "tokens"))
    policy = ActingPolicy(Acting(agent, world))
    frames = np.broadcast_to(np.array([12, 34], np.uint8)[:, None, None, None], (2, 4, 6, 3))
    _, state = policy.predict(frames, deterministic=True)
    actions, _ = policy.predict(frames + 1, state, np.array([False, True]), deterministic=True)
    expected = agent.network(torch.tensor([[1, 2], [3, 5]]), torch.tensor([[1, 3], [3, 5]])).argmax(1)
    assert np.array_equal(actions, expected)
