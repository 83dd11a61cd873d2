"""Transfer between a world that is known exactly and its real counterpart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.evaluation.transfer import first_frames, transfer
from dreamenvs.types import DiscreteActions, SourceEnv, WorldSpec
from tests.toy_worlds import counting_checkpoint


class RealCounting(gym.Env[NDArray[np.uint8], np.int64]):
    """The CountingWorld for real; its episodes start at 0 or at 2."""

    observation_space = gym.spaces.Box(0, 255, (4, 6, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, limit: int = 10, starts: int = 1) -> None:
        self.limit, self.starts, self.count = limit, starts, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 2 * int(self.np_random.integers(self.starts))
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.count += int(action)
        return self._frame(), float(action), self.count >= self.limit, False, {}

    def _frame(self) -> NDArray[np.uint8]:
        return np.full((4, 6, 3), self.count, np.uint8)


@pytest.fixture
def counting_id() -> Iterator[str]:
    gym.register("test/RealCounting-v0", RealCounting, disable_env_checker=True)
    yield "test/RealCounting-v0"
    gym.registry.pop("test/RealCounting-v0")


def counting(env_id: str, limit: int = 10, **kwargs: Any) -> Checkpoint:
    """A dream that ends at 10, of a real world that ends at `limit`; its own contexts are at 7."""
    checkpoint = counting_checkpoint(starts=(7,))
    checkpoint.model.spec = WorldSpec(  # type: ignore[misc]
        world="Counting",
        observation_shape=(3, 4, 6),
        actions=DiscreteActions(count=3),
        source=SourceEnv(id=env_id, kwargs={"limit": limit, **kwargs}),
    )
    return checkpoint


def always(action: int) -> Any:
    return lambda observations: np.full(len(observations), action)


class Chaser:
    """Moves by two below a count of 4, by one above; it sees the count as latent, tokens or pixels."""

    def __init__(self, read: Any) -> None:
        self.read = read

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        return np.where(self.read(observation) < 4, 2, 1), None


def test_a_true_dream_has_no_gap(counting_id: str) -> None:
    result = transfer(always(2), counting(counting_id), episodes=6, num_envs=4)
    assert result.dream.episode_return == result.real.episode_return == result.real_early == (10.0, 10.0, 10.0)
    assert result.gap == (0.0, 0.0, 0.0)
    assert result.dream.length.mean == result.real.length.mean == 5.0
    assert (result.dream.truncated, result.real.truncated, result.failed) == (0, 0, 0)


def test_a_dream_that_ends_too_early_shows_in_the_gap(counting_id: str) -> None:
    result = transfer(always(2), counting(counting_id, limit=16), episodes=4, num_envs=4)
    assert result.gap.mean == 10 - 16
    assert result.real.episode_return.mean == 16


def test_a_cut_dream_is_compared_with_the_first_steps_of_real_episodes(counting_id: str) -> None:
    result = transfer(always(1), counting(counting_id), episodes=4, num_envs=2, horizon=3)
    assert result.dream.episode_return.mean == result.real_early.mean == 3
    assert result.dream.truncated == 4
    assert result.gap.mean == 0
    assert result.real.episode_return.mean == 10


def test_a_real_episode_can_be_cut(counting_id: str) -> None:
    result = transfer(always(0), counting(counting_id), episodes=2, num_envs=2, horizon=5, max_episode_steps=7)
    assert result.real.length.mean == 7
    assert result.real.truncated == 2


@pytest.mark.parametrize(
    ("obs_type", "read"),
    [
        ("rgb", lambda frames: frames[:, 0, 0, 0]),
        ("latent", lambda features: features[:, 0]),
        ("tokens", lambda tokens: 10 * tokens[:, 0] + tokens[:, 1]),
    ],
)
def test_a_policy_sees_the_same_in_both_worlds(counting_id: str, obs_type: Any, read: Any) -> None:
    result = transfer(Chaser(read), counting(counting_id), obs_type=obs_type, episodes=5, num_envs=3)
    assert result.dream.length.mean == result.real.length.mean == 2 + 6
    assert result.gap == (0.0, 0.0, 0.0)


def test_dreams_start_where_real_episodes_do(counting_id: str) -> None:
    checkpoint = counting(counting_id, starts=2)
    contexts = first_frames(checkpoint, 20, seed=3)
    assert contexts.observations.shape == (20, 1, 3, 4, 6)
    assert set(contexts.observations[:, 0, 0, 0, 0].tolist()) == {0, 2}
    result = transfer(always(2), checkpoint, episodes=40, num_envs=8)
    assert 8 < result.dream.episode_return.mean < 10
    assert result.gap.low < 0 < result.gap.high
    assert result.gap.high - result.gap.low > 0.1


def test_the_same_seed_gives_the_same_result_and_torch_is_left_alone(counting_id: str) -> None:
    def drawn(observations: Any) -> Any:
        return torch.randint(3, (len(observations),)).numpy()

    torch.manual_seed(1)
    first = transfer(drawn, counting(counting_id), episodes=6, num_envs=3, seed=5)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    assert transfer(drawn, counting(counting_id), episodes=6, num_envs=3, seed=5) == first
    assert transfer(drawn, counting(counting_id), episodes=6, num_envs=3, seed=6) != first


def test_the_result_says_how_it_was_measured(counting_id: str) -> None:
    told: list[tuple[int, int]] = []
    result = transfer(
        "random",
        counting(counting_id),
        episodes=3,
        num_envs=16,
        seed=2,
        temperature=0.5,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (6, 6)
    plain = result.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    setting = plain["setting"]
    assert (setting["env"], setting["episodes"], setting["num_envs"], setting["seed"]) == (counting_id, 3, 3, 2)
    assert (setting["temperature"], setting["deterministic"]) == (0.5, False)
    assert setting["source"] == {"limit": 10, "preprocessing": "none"}
    assert plain["returns"]["real"]["mean"] == pytest.approx(result.real.episode_return.mean, abs=1e-4)
    assert "bootstrap over episodes" in result.table()


def test_a_dream_that_breaks_down_is_counted(counting_id: str) -> None:
    checkpoint = counting(counting_id)
    checkpoint.model.broken_at = 6  # type: ignore[attr-defined]
    result = transfer(always(2), checkpoint, episodes=4, num_envs=2)
    assert result.failed == 4
    assert result.dream.episode_return.mean == 4


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match="does not say which real environment"):
        transfer("random", counting_checkpoint(), episodes=2)
    with pytest.raises(ValueError, match="at least 1"):
        transfer("random", counting_checkpoint(), episodes=0)
