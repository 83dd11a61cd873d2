"""Fidelity on a world that is known exactly."""

from __future__ import annotations

import numpy as np
import pytest

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import measure
from tests.worlds import CountingWorld


def counting_episode(steps: int = 40, seed: int = 0, offset: int = 0) -> Episode:
    """What the CountingWorld does; `offset` makes the real world differ from it."""
    actions = np.random.default_rng(seed).integers(0, 3, steps)
    counts = np.concatenate([[0], np.cumsum(actions)]) + offset * np.arange(steps + 1)
    return Episode(
        observations=np.broadcast_to(counts.astype(np.uint8)[:, None, None, None], (steps + 1, 4, 6, 3)).copy(),
        actions=actions,
        rewards=actions.astype(np.float32),
        terminated=np.zeros(steps, dtype=bool),
        truncated=np.arange(steps) == steps - 1,
    )


def test_a_perfect_model_is_perfect() -> None:
    result = measure(CountingWorld(limit=1000), [counting_episode()], np.random.default_rng(0), horizon=5)
    assert result.psnr == 100.0
    assert result.token_accuracy == 1.0
    assert (result.reward_recall, result.reward_precision) == (1.0, 1.0)
    assert result.rewards_seen > 100
    assert result.copy_psnr_by_step[0] > result.copy_psnr_by_step[4]
    assert result.copy_token_accuracy < 1.0


def test_short_episodes_give_short_comparisons() -> None:
    rng = np.random.default_rng(0)
    result = measure(CountingWorld(limit=1000), [counting_episode(7)], rng, context=4, horizon=15)
    assert len(result.psnr_by_step) == 3
    with pytest.raises(ValueError, match="beyond a context of 4"):
        measure(CountingWorld(limit=1000), [counting_episode(4)], rng, context=4)


def test_errors_add_up_as_the_dream_drifts() -> None:
    result = measure(CountingWorld(limit=1000), [counting_episode(offset=1)], np.random.default_rng(0), horizon=5)
    expected = [20 * np.log10(255 / step) for step in range(1, 6)]
    assert result.psnr_by_step == pytest.approx(expected, abs=0.01)
    assert result.psnr == pytest.approx(np.mean(expected), abs=0.01)
