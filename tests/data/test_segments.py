from __future__ import annotations

import numpy as np
import pytest
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import cut_segments, sample_segments, start_contexts


def numbered(steps: int, first: int = 0, *, terminated: bool = True) -> Episode:
    """Step t of the episode has the number first + t everywhere; the final frame is 255."""
    numbers = np.arange(first, first + steps)
    frames = np.append(numbers, 255).astype(np.uint8)[:, None, None, None]
    flags = np.zeros(steps, bool)
    flags[-1] = True
    return Episode(
        observations=frames + np.zeros((1, 2, 4, 3), np.uint8),
        actions=numbers.astype(np.int64),
        rewards=numbers.astype(np.float32),
        terminated=flags & terminated,
        truncated=flags & (not terminated),
    )


EPISODES = [numbered(20), numbered(3, 100), numbered(9, 200, terminated=False)]


def test_segments_stay_inside_one_episode_and_keep_their_steps_together() -> None:
    segment = sample_segments(EPISODES, 200, 6, np.random.default_rng(0))
    assert segment.observations.shape == (200, 6, 3, 2, 4)
    assert segment.observations.dtype == torch.uint8
    assert segment.actions.dtype == torch.int64
    numbers, valid = segment.observations[:, :, 0, 0, 0].long(), segment.valid
    assert torch.equal(numbers, segment.actions)
    assert torch.equal(numbers.float(), segment.rewards)
    assert torch.equal(segment.terminated, valid & ((numbers == 19) | (numbers == 102)))
    following = valid[:, 1:]
    assert (numbers.diff(dim=1)[following] == 1).all()
    assert set(numbers[valid].tolist()) == {*range(20), *range(100, 103), *range(200, 209)}


def test_only_short_episodes_are_padded_and_on_the_right() -> None:
    segment = sample_segments(EPISODES, 200, 6, np.random.default_rng(1))
    short = segment.actions[:, 0] == 100
    assert 0 < short.sum() < 100
    assert torch.equal(segment.valid.sum(1), torch.where(short, 3, 6))
    assert segment.valid[:, :3].all()
    assert not segment.observations[short, 3:].any()


def test_the_last_step_comes_up_as_often_as_theory_says() -> None:
    length, steps, rows = 8, 40, 4000
    segment = sample_segments([numbered(steps)], rows, length, np.random.default_rng(2))
    share = segment.terminated.any(1).float().mean().item()
    # Of the pairs (step, place) those with step - place >= steps - length end the segment at the episode's end.
    expected = sum(step - place >= steps - length for step in range(steps) for place in range(length))
    assert share == pytest.approx(expected / (steps * length), abs=0.015)
    assert share > 3 / (steps - length + 1)


def test_segments_of_vectors_of_actions() -> None:
    episode = EPISODES[0]
    actions = np.stack([episode.actions, -episode.actions], 1).astype(np.float32)
    vectors = Episode(**{**vars(episode), "actions": actions})
    segment = sample_segments([vectors], 3, 4, np.random.default_rng(0))
    assert segment.actions.shape == (3, 4, 2)
    assert segment.actions.dtype == torch.float32
    assert torch.equal(segment.actions[..., 0], segment.rewards)


def test_start_contexts_are_uniform_over_places_and_fully_valid() -> None:
    context = start_contexts(EPISODES, 5000, 6, np.random.default_rng(0))
    assert context.valid.all()
    starts, counts = context.actions[:, 0].unique(return_counts=True)
    assert starts.tolist() == [*range(15), *range(200, 204)]
    assert (counts - 5000 / 19).abs().max() < 80


def test_the_same_generator_gives_the_same_segments() -> None:
    first, second = (sample_segments(EPISODES, 7, 5, np.random.default_rng(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_sampler_chooses_the_segments() -> None:
    class Second:
        def draw(self, lengths: np.ndarray, rows: int, length: int, rng: np.random.Generator) -> tuple:
            assert lengths.tolist() == [20, 3, 9]
            return np.full(rows, 2), np.arange(rows)

        def counters(self) -> dict[str, np.ndarray]:
            return {}

        def restore(self, counters: object) -> None: ...

    segment = sample_segments(EPISODES, 4, 6, np.random.default_rng(0), Second())
    assert segment.actions[:, 0].tolist() == [200, 201, 202, 203]


def test_the_uniform_rule_draws_what_it_always_drew() -> None:
    segment = sample_segments(EPISODES, 8, 6, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    drawn, places = rng.integers(32, size=8), rng.integers(6, size=8)
    expected = []
    for step, place in zip(drawn, places, strict=True):
        first, length, number = (0, 20, 0) if step < 20 else (20, 3, 100) if step < 23 else (23, 9, 200)
        expected.append(number + min(max(step - first - place, 0), max(length - 6, 0)))
    assert segment.actions[:, 0].tolist() == expected


def test_what_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(ValueError, match="no episode has 21 steps"):
        start_contexts(EPISODES, 1, 21, np.random.default_rng(0))
    with pytest.raises(ValueError, match="no episodes"):
        sample_segments([], 1, 2, np.random.default_rng(0))


def test_a_share_of_start_contexts_are_beginnings() -> None:
    context = start_contexts(EPISODES, 100, 6, np.random.default_rng(0), beginnings=0.5)
    first = context.actions[:50, 0]
    assert set(first.tolist()) == {0, 200}  # the episode of 3 steps is too short
    assert context.valid.all()
    assert len(set(context.actions[50:, 0].tolist())) > 5
    with pytest.raises(ValueError, match="not 1"):
        start_contexts(EPISODES, 1, 6, np.random.default_rng(0), beginnings=1.5)


def test_contexts_that_are_padded_begin_at_any_frame() -> None:
    episodes = [numbered(5), numbered(12, 100)]
    contexts = start_contexts(episodes, 400, 4, np.random.default_rng(0), padded=True)
    lasts = contexts.observations[:, -1, 0, 0, 0]
    assert contexts.valid[:, -1].all()
    assert set(lasts.tolist()) == {*range(5), *range(100, 112)}
    for row in range(400):
        known = int(contexts.valid[row].sum())
        first = int(lasts[row]) - known + 1
        assert known == min(4, int(lasts[row]) % 100 + 1)
        assert contexts.observations[row, 4 - known :, 0, 0, 0].tolist() == list(range(first, first + known))
        assert not contexts.valid[row, : 4 - known].any()
        assert not contexts.observations[row, : 4 - known].any()


def test_the_final_frame_takes_the_first_place_of_the_padding() -> None:
    chosen, starts = np.array([0, 0]), np.array([0, 2])
    segment = cut_segments([numbered(5)], chosen, starts, 4, final=True)
    assert segment.observations[:, :, 0, 0, 0].tolist() == [[0, 1, 2, 3], [2, 3, 4, 255]]
    assert segment.valid.tolist() == [[True] * 4, [True, True, True, False]]
