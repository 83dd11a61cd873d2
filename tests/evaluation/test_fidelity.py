"""Fidelity on worlds that are known exactly, and against plain loops over rows."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.evaluation.one_step import PIECE, cut_pieces
from dreamenvs.evaluation.open_loop import draw_starts, imagine_beside
from dreamenvs.random import Noise
from dreamenvs.types import Outcome, Segment
from tests.small import DISCRETE, build_small
from tests.toy_worlds import Count, CountingWorld


def counting_episode(steps: int = 40, seed: int = 0, offset: int = 0, terminated: bool = False) -> Episode:
    """What the CountingWorld does; `offset` makes the real world differ from it."""
    actions = np.random.default_rng(seed).integers(0, 3, steps)
    counts = np.concatenate([[0], np.cumsum(actions)]) + offset * np.arange(steps + 1)
    ends = np.arange(steps) == steps - 1
    return Episode(
        observations=np.broadcast_to(counts.astype(np.uint8)[:, None, None, None], (steps + 1, 4, 6, 3)).copy(),
        actions=actions,
        rewards=actions.astype(np.float32),
        terminated=ends & terminated,
        truncated=ends & (not terminated),
    )


def ended_episode(seed: int, limit: int = 20) -> Episode:
    """An episode of a CountingWorld with that limit, to its end."""
    actions = np.random.default_rng(seed).integers(0, 3, 100)
    steps = int(np.searchsorted(np.cumsum(actions), limit)) + 1
    return counting_episode(steps, seed, terminated=True) if steps < 100 else counting_episode(40, seed)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class StillWorld(CountingWorld):
    """Nothing moves, nothing is earned, nothing ends."""

    def step(self, state: Count, actions: Tensor, noise: Noise) -> tuple[Count, Outcome]:
        none = torch.zeros(len(actions), dtype=torch.bool)
        return state, Outcome(torch.zeros(len(actions)), none, ~none)


def test_a_perfect_model_is_perfect() -> None:
    episodes = [ended_episode(seed) for seed in range(6)]
    result = measure(CountingWorld(limit=20), episodes, rng(), horizon=5)
    assert result.psnr == 100.0
    assert [figures.change_psnr for figures in result.pixels] == [100.0] * 5
    assert result.one_step_tokens.accuracy == 1.0
    assert result.tokens[4].accuracy == 1.0 > result.tokens[4].copy_accuracy
    for events in (result.one_step_events, result.all_events, result.events[0]):
        assert events.rewards.model == (1.0, 1.0, 1.0)
        assert events.terminations.model == (1.0, 1.0, 1.0)
        assert events.terminations.copy.recall == events.terminations.majority.recall == 0.0
    assert result.copy_psnr_by_step[0] > result.copy_psnr_by_step[4]
    assert result.one_step_reward_errors.model == result.reward_errors[4].model == 0.0


def test_a_broken_model_is_not() -> None:
    episodes = [ended_episode(seed) for seed in range(6)]
    result = measure(StillWorld(), episodes, rng(), horizon=3)
    for step, (pixels, tokens) in enumerate(zip(result.pixels, result.tokens, strict=True)):
        assert pixels.psnr == pixels.copy_psnr < 50
        assert tokens.accuracy == tokens.copy_accuracy < 1, step
    assert result.one_step_events.rewards.model.recall == 0.0
    assert result.one_step_events.terminations.model.f1 == 0.0
    rewards, before = (np.concatenate([e.rewards[first : len(e) + first - 3] for e in episodes]) for first in (3, 2))
    errors = result.one_step_reward_errors
    assert errors.steps == len(rewards)
    assert errors.model == pytest.approx(np.abs(rewards).mean())
    assert errors.copy == pytest.approx(np.abs(rewards - before).mean())
    assert errors.mean == pytest.approx(np.abs(rewards - rewards.mean()).mean())
    # Two of three actions earn something, so that always claiming it is right as often as there is something.
    rewards = result.one_step_events.rewards
    assert rewards.majority == pytest.approx((rewards.positives / rewards.steps, 1.0, rewards.majority.f1))


def test_every_step_of_an_episode_counts_once_and_the_last_one_too() -> None:
    episodes = [ended_episode(seed) for seed in range(8)] + [counting_episode(3), counting_episode(4)]
    lengths = [len(episode) for episode in episodes]
    result = measure(CountingWorld(limit=20), episodes, rng(), starts=4, horizon=2, context=4)
    assert result.setting.steps == result.one_step_events.rewards.steps == sum(max(0, n - 3) for n in lengths)
    assert result.setting.terminations == 8
    assert result.setting.episodes == 9
    assert result.setting.rewards == sum(np.count_nonzero(episode.rewards[3:]) for episode in episodes)


def test_pieces_cover_each_step_once_after_a_warm_up() -> None:
    lengths = [3, 9, PIECE + 3, 200]
    pieces = cut_pieces(lengths, context=4, warmup=16)
    counted = [(piece.episode, step) for piece in pieces for step in range(piece.counted, piece.end)]
    assert counted == [(i, step) for i, length in enumerate(lengths) for step in range(3, length)]
    assert all(piece.counted - piece.begin == min(piece.counted, 15) for piece in pieces)


def test_starts_are_uniform_over_what_has_a_step_after_it() -> None:
    places = draw_starts([3, 4, 6], 6000, 4, 2, rng())
    assert {(place.episode, place.begin, place.end) for place in places} == {(1, 0, 4), (2, 0, 5), (2, 1, 6), (2, 2, 6)}
    share = np.mean([place.episode == 1 for place in places])
    assert share == pytest.approx(1 / 4, abs=0.03)
    with pytest.raises(ValueError, match="beyond a context of 4"):
        measure(CountingWorld(), [counting_episode(3)], rng(), context=4)
    with pytest.raises(ValueError, match="horizon must be at least 1, not 0"):
        measure(CountingWorld(), [counting_episode(9)], rng(), horizon=0)


def test_short_episodes_give_short_comparisons() -> None:
    result = measure(CountingWorld(limit=1000), [counting_episode(7)], rng(), context=4, horizon=15)
    assert len(result.psnr_by_step) == 4
    assert [figures.frames for figures in result.pixels] == sorted((f.frames for f in result.pixels), reverse=True)
    assert result.pixels[0].frames == 256 > result.pixels[3].frames


def test_errors_add_up_as_the_dream_drifts() -> None:
    result = measure(CountingWorld(limit=1000), [counting_episode(offset=1)], rng(), horizon=5)
    expected = [20 * np.log10(255 / step) for step in range(1, 6)]
    assert result.psnr_by_step == pytest.approx(expected)
    assert result.psnr == pytest.approx(np.mean(expected))


def test_changes_are_where_two_real_frames_in_a_row_differ() -> None:
    """A dot walks along a line of 24 black pixels; neither the model, which sees black, nor the copy moves it."""
    steps = 20
    frames = np.zeros((steps + 1, 24, 3), np.uint8)
    frames[np.arange(steps + 1), 3 + np.arange(steps + 1)] = 255
    episode = Episode(
        observations=frames.reshape(steps + 1, 4, 6, 3),
        actions=np.zeros(steps, np.int64),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )
    result = measure(StillWorld(), [episode], rng(), horizon=3, context=2)
    half = -10 * math.log10(1 / 2)  # the pixel that lights up is wrong, the one that goes out is right
    assert [figures.change_psnr for figures in result.pixels] == pytest.approx([half] * 3)
    assert [figures.copy_change_psnr for figures in result.pixels] == pytest.approx([0.0, half, half])
    assert result.pixels[0].psnr == pytest.approx(-10 * math.log10(1 / 24))
    assert result.one_step_events.rewards.positives == 0


def test_json_is_plain_and_has_none_for_what_is_not_known() -> None:
    result = measure(CountingWorld(limit=1000), [counting_episode()], rng(), horizon=2)
    plain = result.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["psnr"] == 100.0
    assert plain["one_step"]["model"]["reward_f1"] == 1.0
    assert plain["one_step"]["model"]["perplexity"] is None  # the world draws no tokens
    assert plain["terminations"][-1] == plain["terminations"][-1] | {"horizon": "all", "positives": 0, "f1": None}
    assert [row["horizon"] for row in plain["pixels"]] == [row["horizon"] for row in plain["reward_errors"]] == [1, 2]
    assert plain["one_step"]["model"]["reward_error"] == 0.0
    assert "one step ahead" in result.table()


def noisy_episode(steps: int, seed: int) -> Episode:
    generator = np.random.default_rng(seed)
    channels, height, width = DISCRETE.observation_shape
    ends = np.arange(steps) == steps - 1
    return Episode(
        observations=generator.integers(0, 256, (steps + 1, height, width, channels), dtype=np.uint8),
        actions=generator.integers(0, 4, steps),
        rewards=generator.choice([-1.0, 0.0, 0.5], steps).astype(np.float32),
        terminated=ends & (seed % 2 == 0),
        truncated=ends & (seed % 2 == 1),
    )


def segment(episode: Episode, begin: int, end: int) -> Segment:
    frames = torch.from_numpy(episode.observations[begin:end]).permute(0, 3, 1, 2)[None]
    actions = np.append(episode.actions, 0)[begin:end]  # the last one is not read
    flags = torch.zeros(1, end - begin, dtype=torch.bool)
    return Segment(frames, torch.from_numpy(actions)[None], torch.zeros(1, end - begin), flags, ~flags)


@torch.no_grad()
def naive_steps(model: Any, episodes: list[Episode]) -> list[dict[str, Any]]:
    """One step ahead, one step and one row at a time, from the whole piece before it."""
    found = []
    for piece in cut_pieces([len(episode) for episode in episodes], context=3, warmup=5):
        episode = episodes[piece.episode]
        for step in range(piece.counted, piece.end):
            state = model.observe(segment(episode, piece.begin, step + 1))
            following = model.observe(segment(episode, piece.begin, step + 2))
            chances = model.prior.logits(following.hidden).double().log_softmax(-1)[0]
            tokens = following.tokens[0]
            found.append(
                {
                    "surprise": -float(chances[torch.arange(len(tokens)), tokens].mean()),
                    "accuracy": float((chances.argmax(-1) == tokens).double().mean()),
                    "copied": float((state.tokens[0] == tokens).double().mean()),
                    "reward": float(model.outcomes.reward(following.hidden)),
                    "real_reward": float(episode.rewards[step]),
                    "last_reward": float(episode.rewards[step - 1]),
                    "tokens": tokens.tolist(),
                    "ends": float(model.outcomes.termination(following.hidden) > 0),
                    "real_end": float(episode.terminated[step]),
                }
            )
    return found


@pytest.mark.parametrize("family", ["STEPVQ", "CBT"])
def test_one_step_figures_against_a_loop(family: str) -> None:
    model = build_small(family, dtype=torch.float64)
    torch.nn.init.constant_(model.outcomes.termination.output.bias, 0.0)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((9, 4, 2, 12))]
    result = measure(model, episodes, rng(), context=3, warmup=5, rows=3, starts=4, horizon=2)
    found = naive_steps(model, episodes)
    framed = [row for row in found if not row["real_end"]]
    tokens = result.one_step_tokens
    assert tokens.perplexity == pytest.approx(math.exp(np.mean([row["surprise"] for row in framed])), rel=1e-5)
    assert tokens.accuracy == pytest.approx(np.mean([row["accuracy"] for row in framed]))
    assert tokens.copy_accuracy == pytest.approx(np.mean([row["copied"] for row in framed]))
    claimed = [np.sign(row["reward"]) if abs(row["reward"]) > 0.25 else 0 for row in found]
    right = sum(own == np.sign(row["real_reward"]) != 0 for own, row in zip(claimed, found, strict=True))
    rewards = result.one_step_events.rewards
    assert rewards.positives == sum(row["real_reward"] != 0 for row in found)
    assert rewards.model.precision == pytest.approx(right / np.count_nonzero(claimed))
    assert rewards.model.recall == pytest.approx(right / rewards.positives)
    copied = [(np.sign(row["last_reward"]), np.sign(row["real_reward"])) for row in found]
    assert rewards.copy.precision == pytest.approx(
        sum(last == real != 0 for last, real in copied) / sum(last != 0 for last, _ in copied)
    )
    places = np.array([row["tokens"] for row in framed]).T
    most = np.mean([np.bincount(place).max() / len(framed) for place in places])
    assert tokens.majority_accuracy == pytest.approx(most)
    ends = [(row["ends"], row["real_end"]) for row in found]
    terminations = result.one_step_events.terminations
    assert terminations.positives == sum(real for _, real in ends)
    assert terminations.model.precision == pytest.approx(sum(a * b for a, b in ends) / sum(a for a, _ in ends))


@torch.no_grad()
def naive_dreams(
    model: Any, episodes: list[Episode], seed: int, places: list[Any], context: int
) -> dict[int, list[Any]]:
    """Squared errors by horizon, one dream at a time; the dreams are numbered from the longest to the shortest."""
    errors: dict[int, list[Any]] = {}
    for number, place in enumerate(sorted(places, key=lambda place: place.begin - place.end)):
        episode = episodes[place.episode]
        state = model.observe(segment(episode, place.begin, place.begin + context))
        for step in range(place.counted, place.end):
            noise = Noise(torch.tensor([seed + number]), torch.tensor([step - place.counted]))
            state, _ = model.step(state, torch.from_numpy(episode.actions[step : step + 1]), noise)
            if not episode.terminated[step]:
                imagined = model.decode(state)[0].permute(1, 2, 0).double().numpy()
                real, copied = (episode.observations[t].astype(float) for t in (step + 1, place.counted))
                tokens = model.observe(segment(episode, step + 1, step + 2)).tokens
                figures = (
                    np.square((imagined - real) / 255).mean(),
                    np.square((copied - real) / 255).mean(),
                    float((state.tokens == tokens).double().mean()),
                )
                errors.setdefault(step - place.counted, []).append(figures)
    return errors


def test_open_loop_rewards_are_compared_with_the_last_real_one() -> None:
    """Rewards only at even steps: after an even number of imagined steps the last reward is right, or there is none."""
    episode = counting_episode(21)
    rewards = np.where(np.arange(21) % 2 == 0, 1, 0).astype(np.float32)
    episode = Episode(**{**vars(episode), "rewards": rewards})
    result = measure(StillWorld(), [episode], rng(), horizon=4, context=4)
    assert [step.rewards.copy.f1 for step in result.events] == [0.0, 1.0, 0.0, 1.0]


def test_open_loop_figures_against_a_loop() -> None:
    model = build_small("STEPVQ", dtype=torch.float64)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((9, 4, 2, 12))]
    result = measure(model, episodes, rng(), context=3, starts=7, horizon=4, rows=3)
    drawn = rng()
    seed = int(drawn.integers(2**31))
    places = draw_starts([len(episode) for episode in episodes], 7, 3, 4, drawn)
    errors = naive_dreams(model, episodes, seed, places, context=3)
    assert result.setting.seed == seed
    for step, found in errors.items():
        own, copied, accuracy = np.array(found).mean(0)
        assert result.pixels[step].frames == len(found)
        assert result.pixels[step].psnr == pytest.approx(-10 * math.log10(own))
        assert result.pixels[step].copy_psnr == pytest.approx(-10 * math.log10(copied))
        assert result.tokens[step].accuracy == pytest.approx(accuracy)
    assert sum(map(len, errors.values())) == sum(figures.frames for figures in result.pixels)


def test_the_number_of_rows_changes_nothing() -> None:
    model = build_small("STEPVQT", dtype=torch.float64)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((9, 4, 12))]
    few, many = (measure(model, episodes, rng(), context=3, starts=9, horizon=3, rows=rows) for rows in (2, 64))
    assert few.to_json() == many.to_json()


def test_codes_and_their_frequencies() -> None:
    """Counts from 0 to 9 and nothing else: the first digit is always 0."""
    steps = 9
    frames = np.broadcast_to(np.arange(steps + 1, dtype=np.uint8)[:, None, None, None], (steps + 1, 4, 6, 3)).copy()
    episode = Episode(
        observations=frames,
        actions=np.ones(steps, np.int64),
        rewards=np.ones(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )
    result = measure(CountingWorld(limit=1000), [episode], rng(), context=1, horizon=1)
    shares = np.array([9, *[1] * 9]) / 18  # eighteen digits: nine zeros, then 1 to 9
    assert result.codebook.codes == 10
    assert result.codebook.used == 1.0
    assert result.codebook.perplexity == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert result.one_step_tokens.majority_accuracy == pytest.approx(10 / 18)
    smoothed = [10 / 19] * 9 + [2 / 19] * 9
    assert result.one_step_tokens.marginal_perplexity == pytest.approx(math.exp(-np.log(smoothed).mean()))


def test_progress_reaches_the_end() -> None:
    told: list[tuple[int, int]] = []
    measure(
        CountingWorld(limit=1000),
        [counting_episode(), counting_episode(9)],
        rng(),
        rows=8,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1][0] == told[-1][1]
    assert told == sorted(told)
    assert len(told) > 2


def test_a_dream_beside_reality() -> None:
    episode = counting_episode(12)
    real, imagined = imagine_beside(CountingWorld(limit=1000), episode, start=2, context=3, horizon=5)
    assert real.shape == imagined.shape == (3 + 5, 4, 6, 3)
    assert np.array_equal(real, episode.observations[2:10])
    assert np.array_equal(imagined, real)
    assert len(imagine_beside(CountingWorld(), episode, start=8, context=3, horizon=50).real) == 5
