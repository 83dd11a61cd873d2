from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dreamenvs.data.samplers import CountSampler, FrequencySampler, Sampler, UniformSampler

LENGTHS = np.array([20, 3, 9])
SAMPLERS: list[Callable[[], Sampler]] = [UniformSampler, CountSampler, FrequencySampler]


@pytest.mark.parametrize("build", SAMPLERS)
def test_excerpts_stay_inside_their_episodes_and_reach_every_step(build: Callable[[], Sampler]) -> None:
    sampler, rng = build(), np.random.default_rng(0)
    reached = [np.zeros(length, int) for length in LENGTHS]
    for _ in range(100):
        chosen, starts = sampler.draw(LENGTHS, 8, 6, rng)
        assert chosen.shape == starts.shape == (8,)
        assert ((starts >= 0) & (starts <= np.maximum(LENGTHS[chosen] - 6, 0))).all()
        for index, start in zip(chosen, starts, strict=True):
            reached[index][start : start + 6] += 1
    assert all(steps.min() > 0 for steps in reached)


@pytest.mark.parametrize("build", SAMPLERS)
def test_restored_counters_go_on_as_if_nothing_had_happened(build: Callable[[], Sampler]) -> None:
    sampler, rng = build(), np.random.default_rng(1)
    for _ in range(5):
        sampler.draw(LENGTHS, 4, 6, rng)
    counters, state = sampler.counters(), rng.bit_generator.state
    expected = [sampler.draw(LENGTHS, 4, 6, rng) for _ in range(5)]
    resumed = build()
    resumed.restore(counters)
    rng.bit_generator.state = state
    for wanted in expected:
        np.testing.assert_array_equal(np.stack(resumed.draw(LENGTHS, 4, 6, rng)), np.stack(wanted))
    again = resumed.counters()
    assert all(np.array_equal(again[name], array) for name, array in sampler.counters().items())


def test_counters_are_copies() -> None:
    sampler = CountSampler()
    sampler.draw(LENGTHS, 4, 6, np.random.default_rng(0))
    sampler.counters()["episodes"][:] = 100
    assert sampler.counters()["episodes"].sum() == 4


def test_episodes_are_drawn_by_the_power_of_their_inverse_counts() -> None:
    counts = np.array([0, 1, 3])
    drawn = np.zeros(3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        sampler = CountSampler(alpha=2.0)
        sampler.restore({"episodes": counts})
        chosen, _ = sampler.draw(LENGTHS, 20, 4, rng)
        drawn += np.bincount(chosen, minlength=3)
    expected = 1 / (1 + counts) ** 2
    np.testing.assert_allclose(drawn / drawn.sum(), expected / expected.sum(), atol=0.02)
    np.testing.assert_array_equal(sampler.counters()["episodes"], counts + np.bincount(chosen, minlength=3))


def test_new_episodes_are_drawn_until_they_have_caught_up() -> None:
    sampler, rng = CountSampler(), np.random.default_rng(0)
    for _ in range(100):
        sampler.draw(np.array([10, 10]), 4, 5, rng)
    grown = np.array([10, 10, 10])
    chosen, _ = sampler.draw(grown, 4, 5, rng)
    assert chosen.tolist() == [2] * 4
    for _ in range(100):
        sampler.draw(grown, 4, 5, rng)
    counts = sampler.counters()["episodes"]
    assert counts.sum() == 804
    assert counts.max() - counts.min() < 20


def test_steps_are_drawn_by_the_softmax_of_their_counts() -> None:
    counts = np.array([0, 10, 20, 20])
    drawn = np.zeros(4)
    rng = np.random.default_rng(0)
    for _ in range(300):
        sampler = FrequencySampler(temperature=10.0)
        sampler.restore({"steps": counts})
        sampler.draw(np.array([3, 1]), 20, 2, rng)
        drawn += sampler.counters()["steps"] - counts
    expected = np.exp(-counts / 10)
    np.testing.assert_allclose(drawn / drawn.sum(), expected / expected.sum(), atol=0.02)


def test_steps_are_used_more_evenly_than_by_chance() -> None:
    lengths, rng = np.array([30, 30]), np.random.default_rng(0)
    sampler = FrequencySampler(temperature=1.0)
    for _ in range(600):
        sampler.draw(lengths, 4, 5, rng)
    # 40 draws a step: by chance the standard deviation would be about 6.
    assert sampler.counters()["steps"].std() < 3


def test_a_frequency_sampler_without_counts_is_uniform() -> None:
    rng, lengths = np.random.default_rng(0), np.array([40])
    starts = FrequencySampler(temperature=1e9).draw(lengths, 20_000, 8, rng)[1]
    uniform = UniformSampler().draw(lengths, 20_000, 8, rng)[1]
    shares = [np.bincount(drawn, minlength=33) / 20_000 for drawn in (starts, uniform)]
    np.testing.assert_allclose(*shares, atol=0.01)


def test_very_large_counts_do_not_underflow() -> None:
    for sampler, name in ((CountSampler(), "episodes"), (FrequencySampler(), "steps")):
        sampler.restore({name: np.full(3, 10**9)})
        chosen, _ = sampler.draw(np.ones(3, np.int64), 300, 2, np.random.default_rng(0))
        assert np.bincount(chosen).min() > 60


def test_what_does_not_fit_is_refused() -> None:
    sampler = CountSampler()
    sampler.draw(LENGTHS, 1, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="3 episodes, but there are 2"):
        sampler.draw(LENGTHS[:2], 1, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="another sampler"):
        sampler.restore({"steps": np.zeros(3, np.int64)})
    with pytest.raises(ValueError, match="another sampler"):
        UniformSampler().restore(sampler.counters())
    with pytest.raises(ValueError, match="alpha"):
        CountSampler(alpha=-1)
    with pytest.raises(ValueError, match="temperature"):
        FrequencySampler(temperature=0)
