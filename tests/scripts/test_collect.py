from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dreamenvs.data.storage import load_episodes, load_notes, load_spec

TRAINING = Path(__file__).parents[2] / "training"


def run_collect(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAINING / "collect.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_random_episodes_of_minatar(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    out = tmp_path / "breakout"
    result = run_collect("--env", "MinAtar/Breakout-v1", "--steps", "120", "--out", str(out), "--seed", "3")
    assert result.returncode == 0, result.stderr
    episodes = load_episodes(out)
    assert sum(map(len, episodes)) == 120
    assert load_spec(out).world == "MinAtarBreakout"
    assert load_notes(out) == {"policy": "random", "seed": 3, "steps": 120}
    assert f"{len(episodes)} episodes, 120 steps" in result.stdout


def test_the_tracker_plays_pong_only(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    result = run_collect("--env", "MinAtar/Breakout-v1", "--out", str(tmp_path / "out"), "--policy", "tracker")
    assert result.returncode != 0
    assert "ALE/Pong only" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_tracker_moves_to_the_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TRAINING))
    from policies import PongTracker

    def frame(ball: tuple[int, int], paddle: int) -> np.ndarray:
        image = np.full((64, 64, 3), (144, 72, 17), np.uint8)
        image[ball] = 236
        image[paddle - 2 : paddle + 3, 56] = (92, 186, 92)
        return image

    rng = np.random.default_rng(0)
    tracker = PongTracker(epsilons=(0.0,))
    tracker.begin(rng)
    assert tracker(frame((20, 30), 40), rng) in PongTracker.up
    tracker.begin(rng)
    assert tracker(frame((50, 30), 40), rng) in PongTracker.down
    tracker.begin(rng)
    assert tracker(frame((40, 30), 40), rng) in PongTracker.idle
    # The ball now rises one row a column, and will arrive 23 columns on at row 14.
    assert tracker(frame((37, 33), 40), rng) in PongTracker.up


def test_a_share_epsilon_of_the_moves_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TRAINING))
    from policies import PongTracker

    rng = np.random.default_rng(0)
    tracker = PongTracker(epsilons=(0.4,))
    tracker.begin(rng)
    blank = np.zeros((64, 64, 3), np.uint8)  # nothing to see: every move that is not random is idle
    moves = np.array([tracker(blank, rng) for _ in range(8000)])
    assert (moves > 1).mean() == pytest.approx(0.4 * 4 / 6, abs=0.03)
