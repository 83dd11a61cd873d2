"""PQN: λ-returns against a naive reference, the Q values of a known world, and players from dreams and real games."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dreamenvs
from dreamenvs.agents.pqn import PQN, PQNConfig, default_q_agent, learn_for_real, learn_in_dream, q_loss
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.q_agent import QAgentConfig, build_q_agent
from dreamenvs.agents.q_network import QNetworkConfig
from dreamenvs.agents.returns import q_lambda_returns
from dreamenvs.agents.row_source import DreamRows
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import Dream, observe_contexts
from dreamenvs.evaluation.transfer import transfer
from dreamenvs.nn.optimization import NonFiniteLossError
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import build_small, random_segment
from tests.toy_worlds import CorridorWorld, CountingWorld, counting_checkpoint, counting_contexts

TINY = PQNConfig(rows=4, length=5, minibatches=2, epochs=1)


def naive_returns(
    rewards: Any, terminated: Any, truncated: Any, following: Any, discount: float, trace: float
) -> np.ndarray[Any, Any]:
    """The forward view in float64: every n-step return, weighted by (1 - λ) λ^(n - 1), the longest by what is left."""
    rewards, following = np.asarray(rewards, np.float64), np.asarray(following, np.float64)
    rows, length = rewards.shape
    returns = np.zeros((rows, length))
    for row, start in product(range(rows), range(length)):
        earned, weight, total = 0.0, 1.0, 0.0
        for step in range(start, length):
            earned += discount ** (step - start) * rewards[row, step]
            value = 0.0 if terminated[row, step] else discount ** (step - start + 1) * following[row, step]
            if terminated[row, step] or truncated[row, step] or step == length - 1:
                total += weight * (earned + value)
                break
            total += weight * (1 - trace) * (earned + value)
            weight *= trace
        returns[row, start] = total
    return returns


@pytest.mark.parametrize("trace", [0.0, 0.65, 1.0])
def test_returns_are_those_of_the_forward_view(trace: float) -> None:
    # Every step of four goes on, terminates or truncates: all 81 ways.
    kinds = torch.tensor(list(product(range(3), repeat=4)))
    generator = torch.Generator().manual_seed(0)
    rewards, following = torch.randn(2, *kinds.shape, generator=generator)
    ends: Any = (kinds == 1, kinds == 2)
    returns = q_lambda_returns(rewards, *ends, following, discount=0.9, trace=trace)
    assert np.allclose(returns, naive_returns(rewards, *ends, following, 0.9, trace), atol=1e-5)


def test_the_loss_is_of_the_actions_that_were_taken() -> None:
    values = torch.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    loss = q_loss(values, torch.tensor([1, 0]), torch.tensor([4.0, 5.0]))
    loss.backward()
    assert float(loss.detach()) == 0.5 * (1 + 9) / 2
    assert torch.equal(values.grad, torch.tensor([[0.0, 0.5], [-1.5, 0.0]]))  # type: ignore[arg-type]


def corridor() -> Checkpoint:
    world = CorridorWorld()
    return Checkpoint(
        model=world, contexts=world.contexts(), family="Corridor", config=None, card={}, path=Path("corridor")
    )


@pytest.mark.parametrize("obs_type", ["tokens", "latent", "rgb"])
def test_the_q_values_of_a_corridor_are_learned_through_truncations(obs_type: Any) -> None:
    # Episodes of three steps: without bootstrapping at truncations no place but the last three would be worth anything.
    # With λ above 0 the values would be a little lower, since random actions are in the returns.
    config = PQNConfig(rows=64, length=4, discount=0.9, trace=0.0, epochs=4, minibatches=4, rate=3e-3, epsilon_end=0.5)
    agent = QAgentConfig(network=QNetworkConfig(channels=(8,), units=32))
    dream = corridor()
    player = learn_in_dream(dream, 16_384, config, horizon=3, obs_type=obs_type, agent=agent)
    best = 0.9 ** np.arange(4, -1, -1)
    left = np.array([0.2, *0.9 * best[:-1]])
    world = dream.model
    state = world.observe(dream.contexts)
    views = {"tokens": world.tokens, "latent": world.features, "rgb": world.decode}[obs_type](state)
    with torch.no_grad():
        values, _ = player.agent.act(views, player.agent.begin(5))
    assert np.allclose(values, np.stack([left, best], 1), atol=0.01)
    actions, _ = player.predict(np.moveaxis(views.numpy(), 1, -1) if obs_type == "rgb" else views.numpy())
    assert actions.tolist() == [1] * 5


def test_the_same_seed_gives_the_same_weights() -> None:
    before = torch.get_rng_state()
    one, same, other = (
        learn_in_dream(counting_checkpoint(jitter=0.3), 100, TINY, seed=seed).agent for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    weights, again, others = (agent.state_dict() for agent in (one, same, other))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["network.values.weight"], others["network.values.weight"])


def test_progress_and_reports() -> None:
    calls: list[tuple[int, int]] = []
    learn_in_dream(counting_checkpoint(), 90, TINY, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(20, 90), (40, 90), (60, 90), (80, 90), (90, 90)]
    world = CountingWorld(limit=6)
    rows = DreamRows(Dream(world, observe_contexts(world, counting_contexts()), num_rows=4, horizon=50), "tokens")
    agent = build_q_agent(default_q_agent(world, "tokens"), agent_spec(world, "tokens"))
    reports = list(PQN(agent, rows, TINY).learn(200))
    assert [report.steps for report in reports] == list(range(20, 201, 20))
    assert reports[0].epsilon == 1.0
    assert reports[-1].epsilon == pytest.approx(0.05)
    assert reports[-1].rate == pytest.approx(5e-5)
    assert reports[-1].episodes > 0
    assert 6 <= reports[-1].episode_return <= 7


@pytest.mark.parametrize("changes", [{"rows": 0}, {"minibatches": 5000}, {"trace": 1.5}, {"rate": 0.0}, {"clip": -1.0}])
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|minibatches|from 0 to 1|positive"):
        PQNConfig(**changes)


def test_what_does_not_belong_together_is_refused() -> None:
    dream = counting_checkpoint()
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        learn_in_dream(dream, 0, TINY)
    player = learn_in_dream(dream, 20, TINY)
    with pytest.raises(ValueError, match="of another world or sees 'tokens', not 'latent'"):
        learn_in_dream(dream, 20, TINY, agent=player.agent, obs_type="latent")  # type: ignore[arg-type]
    world = CountingWorld()
    rows = DreamRows(Dream(world, observe_contexts(world, counting_contexts()), num_rows=3, horizon=5), "tokens")
    with pytest.raises(ValueError, match="for 4 rows, the source has 3"):
        PQN(player.agent, rows, TINY)  # type: ignore[arg-type]
    torch.nn.init.constant_(player.agent.network.values.bias, float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteLossError, match="the loss is nan"):
        learn_in_dream(dream, 20, TINY, agent=player.agent)  # type: ignore[arg-type]


@pytest.mark.parametrize("obs_type", ["tokens", "latent", "rgb"])
def test_a_loaded_player_acts_identically(obs_type: Any, tmp_path: Path) -> None:
    player = learn_in_dream(counting_checkpoint(), 200, TINY, obs_type=obs_type)
    dreamenvs.save_agent(tmp_path / "agent", player.agent, dream="Counting")
    loaded = dreamenvs.load_agent(tmp_path / "agent")
    assert loaded.spec == player.agent.spec
    shape = {"tokens": (30, 2), "latent": (30, 2), "rgb": (30, 4, 6, 3)}[obs_type]
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, 10, shape).astype(np.uint8 if obs_type == "rgb" else np.float32) for _ in range(2))
    starts = rng.random(30) < 0.5
    played = []
    for agent in (player.agent, loaded):
        again = dreamenvs.Player(agent, seed=3)
        _, state = again.predict(one)
        played.append(again.predict(two, state, starts)[0])
    assert np.array_equal(*played)
    weights = loaded.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in player.agent.state_dict().items())


@pytest.fixture(scope="module")
def breakout() -> Checkpoint:
    """An untrained dream of a real game."""
    pytest.importorskip("minatar")
    source = default_source("MinAtar/Breakout-v1")
    spec = describe(make_source(source), world="MinAtarBreakout", source=source)
    contexts = random_segment(spec, rows=4, steps=2)
    model = build_small("STEPVQ", spec)
    return Checkpoint(
        model=model, contexts=contexts, family="STEPVQ", config=None, card={}, path=Path(dreamenvs.__file__)
    )


@pytest.mark.parametrize("obs_type", ["tokens", "latent", "rgb"])
def test_dreams_and_real_games_are_learned_by_the_same_code(obs_type: Any, breakout: Checkpoint) -> None:
    config = replace(TINY, length=12)
    settings: dict[str, Any] = {"obs_type": obs_type}
    player = learn_in_dream(breakout, 96, config, horizon=6, **settings)
    assert player.obs_type == obs_type
    before = {name: weight.clone() for name, weight in player.agent.state_dict().items()}
    continued = learn_for_real(breakout, 96, config, max_episode_steps=8, agent=player.agent, **settings)  # type: ignore[arg-type]
    assert continued.agent is player.agent
    assert any(not torch.equal(before[name], weight) for name, weight in player.agent.state_dict().items())
    measured = transfer(player, breakout, obs_type=obs_type, episodes=2, num_envs=2, horizon=4, max_episode_steps=10)
    assert measured.setting.obs_type == obs_type


def test_tokens_lie_where_the_tokenizer_says(breakout: Checkpoint) -> None:
    grid = breakout.model.tokenizer.grid
    assert default_q_agent(breakout.model, "tokens").network.grid == grid
    assert default_q_agent(breakout.model, "rgb").network.grid is None
    assert default_q_agent(CountingWorld(), "tokens").network.grid is None
    # A delta tokenizer's map has more places than there are tokens.
    assert default_q_agent(build_small("DeltaIRIS"), "tokens").network.grid is None
