"""Players: Stable-Baselines3's `predict`, in dreams and in real environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

import dreamenvs
from dreamenvs.agents.player import Player
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.collect import EpsilonPolicy, collect
from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.evaluation.transfer import transfer
from dreamenvs.worlds.source import default_source, describe, make_source
from dreamenvs.worlds.watching import WatchingPolicy
from tests.agents.test_imagination import KINDS, LATENT, PIXELS, lively
from tests.small import CONTINUOUS, build_small, random_segment
from tests.toy_worlds import CountingWorld, counting_checkpoint, point_checkpoint


@pytest.fixture(scope="module")
def breakout() -> Checkpoint:
    """An untrained dream of a real game."""
    pytest.importorskip("minatar")
    source = default_source("MinAtar/Breakout-v1")
    spec = describe(make_source(source), world="MinAtarBreakout", source=source)
    contexts = random_segment(spec, rows=4, steps=2)
    model = build_small("STEPVQ", spec)
    return Checkpoint(model=model, contexts=contexts, family="STEPVQ", config=None, card={}, path=dreamenvs.__file__)  # type: ignore[arg-type]


@pytest.mark.parametrize(("config", "obs_type"), KINDS)
def test_sb3_evaluates_a_player_in_a_dream_and_for_real(config: Any, obs_type: Any, breakout: Checkpoint) -> None:
    player = Player(lively(config, breakout.model, obs_type), seed=0)
    dream = VecMonitor(DreamVecEnv(breakout, num_envs=3, obs_type=player.obs_type, horizon=5))
    returns, lengths = evaluate_policy(player, dream, 4, return_episode_rewards=True)  # type: ignore[arg-type]
    assert len(returns) == 4  # type: ignore[arg-type]
    assert max(lengths) <= 5  # type: ignore[arg-type]
    real = dreamenvs.make_real(breakout, obs_type=player.obs_type)
    mean, _ = evaluate_policy(player, real, 2, deterministic=False, warn=False)  # type: ignore[arg-type]
    assert mean >= 0  # type: ignore[operator]
    measured = transfer(player, breakout, obs_type=obs_type, episodes=2, num_envs=2, horizon=4, max_episode_steps=10)
    assert measured.setting.obs_type == obs_type


def test_sb3_evaluates_a_player_with_continuous_actions() -> None:
    world = point_checkpoint()
    player = Player(lively(LATENT, world.model, "latent"))
    env = VecMonitor(DreamVecEnv(world, num_envs=2, obs_type="latent", horizon=4))
    mean, _ = evaluate_policy(player, env, 2)  # type: ignore[arg-type]
    assert mean <= 0  # type: ignore[operator]


def test_actions_are_drawn_or_the_most_likely() -> None:
    world = CountingWorld()
    agent = lively(LATENT, world, "latent")
    views = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    likely = agent.choice.mode(agent.act(torch.from_numpy(views), agent.begin(40))[0]).numpy()
    assert np.array_equal(Player(agent).predict(views, deterministic=True)[0], likely)
    assert np.array_equal(Player(agent, temperature=0.0).predict(views)[0], likely)
    drawn, again, other = (Player(agent, seed=seed).predict(views)[0] for seed in (0, 0, 1))
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, other)
    torch.manual_seed(3)
    first = Player(agent).predict(views)[0]
    torch.manual_seed(3)
    assert np.array_equal(Player(agent).predict(views)[0], first)
    single, _ = Player(agent, seed=0).predict(views[0], deterministic=True)
    assert single.shape == ()
    assert single == likely[0]


def test_continuous_actions_stay_inside_their_bounds() -> None:
    model = build_small("STEPVQ", CONTINUOUS)
    player = Player(lively(LATENT, model, "latent"), seed=0)
    actions, _ = player.predict(np.random.default_rng(0).normal(size=(500, model.num_features)).astype(np.float32))
    assert actions.dtype == np.float32
    assert (actions >= (-2, 0)).all()
    assert (actions <= (2, 1)).all()
    assert actions[:, 0].min() < -1
    assert actions[:, 0].max() > 1


def test_a_recurrent_player_forgets_where_an_episode_starts() -> None:
    world = counting_checkpoint().model
    player = Player(lively(PIXELS, world, "rgb"))
    views = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 6, 3), dtype=np.uint8)
    _, state = player.predict(views[0])
    _, fresh = player.predict(views[1])
    _, both = player.predict(views[1], state, np.array([False, True, False, False]))
    assert torch.equal(both.memory.hidden[1], fresh.memory.hidden[1])
    assert not torch.equal(both.memory.hidden[0], fresh.memory.hidden[0])
    told = player.took(state, (state.actions.numpy() + 1) % 3)
    _, other = player.predict(views[1], told, np.array([False, True, False, False]))
    assert torch.equal(other.memory.hidden[1], both.memory.hidden[1])
    assert not torch.equal(other.memory.hidden[0], both.memory.hidden[0])
    with pytest.raises(ValueError, match="shape"):
        player.took(state, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="the state is of 4 rows, the observation of 2"):
        player.predict(views[1][:2], state)


def test_a_player_collects_real_episodes_with_random_moves(breakout: Checkpoint) -> None:
    player = Player(lively(LATENT, breakout.model, "latent"), seed=0)
    env = dreamenvs.make_real(breakout)
    watching = EpsilonPolicy(WatchingPolicy(player, breakout.model, "latent"), env.action_space, 0.5, 0)
    assert sum(map(len, collect(env, watching, 20, 0))) == 20
    sighted = EpsilonPolicy(Player(lively(PIXELS, breakout.model, "rgb"), seed=0), env.action_space, 0.5, 0)
    assert sum(map(len, collect(env, sighted, 20, 0))) == 20


def test_what_is_seen_must_be_what_was_learned_on() -> None:
    player = Player(lively(LATENT, CountingWorld(), "latent"))
    with pytest.raises(ValueError, match=r"obs_type 'latent' of shape \(2,\), not \(4, 6, 3\)"):
        player.predict(np.zeros((5, 4, 6, 3), np.uint8))
    with pytest.raises(ValueError, match="temperature"):
        Player(player.agent, temperature=-1.0)
    with pytest.raises(ValueError, match="sees obs_type 'latent', not 'rgb'"):
        lively(LATENT, CountingWorld(), "rgb")
    with pytest.raises(ValueError, match="is for obs_type 'rgb', not 'latent'"):
        lively(PIXELS, CountingWorld(), "latent")
    assert agent_spec(CountingWorld(), "rgb").observation_shape == (3, 4, 6)
