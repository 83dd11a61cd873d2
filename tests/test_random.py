"""Randomness keyed by row."""

from __future__ import annotations

import pytest
import torch

from dreamenvs.random import GOLDEN, Noise, mix, wrap_seed


def make_noise(rows: int = 4, step: int = 3, **kwargs: float) -> Noise:
    return Noise(torch.arange(rows), torch.full((rows,), step), **kwargs)


def test_mix_gives_the_published_splitmix64_sequence() -> None:
    states = wrap_seed(1234567) + torch.arange(1, 6) * GOLDEN
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [value % 2**64 for value in mix(states).tolist()] == published


def test_mix_equals_exact_integer_arithmetic() -> None:
    def exact(bits: int) -> int:
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) % 2**64
        return bits ^ (bits >> 31)

    values = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF, 0xFEDCBA9876543210]
    mixed = mix(torch.tensor([wrap_seed(value) for value in values]))
    assert [value % 2**64 for value in mixed.tolist()] == [exact(value) for value in values]


def test_a_row_draws_the_same_numbers_in_any_batch() -> None:
    everything = make_noise(64).uniform(10, draw=5)
    alone = Noise(torch.tensor([37]), torch.tensor([3])).uniform(10, draw=5)
    assert torch.equal(everything[37:38], alone)


def test_draws_steps_and_seeds_are_different_streams() -> None:
    base = make_noise().bits(1000)
    others = [make_noise().bits(1000, draw=1), make_noise(step=4).bits(1000), make_noise(8).bits(1000)[4:]]
    assert all(not torch.isin(other, base).any() for other in others)
    assert len(base.unique()) == base.numel()


def test_uniform_is_uniform_and_uncorrelated_between_neighbours() -> None:
    numbers = Noise(torch.arange(512), torch.arange(512) * 0).uniform(512).double()
    counts = torch.histc(numbers, bins=64, min=0, max=1)
    expected = numbers.numel() / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 30 < chi_square < 110  # 63 degrees of freedom: 4.5 standard deviations either way
    centred = numbers - numbers.mean()
    for left, right in [(centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])]:
        assert abs((left * right).mean() / centred.var()) < 0.01


def test_steps_of_one_row_are_uncorrelated() -> None:
    numbers = Noise(torch.full((4096,), 7), torch.arange(4096)).uniform(8).double() - 0.5
    assert abs((numbers[1:] * numbers[:-1]).mean() * 12) < 0.02


def test_categorical_follows_its_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.2, 0.05])
    logits = probabilities.log().expand(20_000, 1, 4)
    noise = Noise(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    shares = noise.categorical(logits)[:, 0].bincount(minlength=4) / 20_000
    assert torch.allclose(shares, probabilities, atol=0.012)


def test_temperature_sharpens_and_zero_takes_the_mode() -> None:
    logits = torch.tensor([0.0, 1.0, 0.5]).expand(5_000, 1, 3)
    rows, steps = torch.arange(5_000), torch.zeros(5_000, dtype=torch.int64)
    assert (Noise(rows, steps, temperature=0.0).categorical(logits) == 1).all()
    half = Noise(rows, steps, temperature=0.5).categorical(logits)[:, 0].bincount(minlength=3) / 5_000
    assert torch.allclose(half, (logits[0, 0] / 0.5).softmax(0), atol=0.025)


def test_categorical_never_takes_an_impossible_class() -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf")]).expand(10_000, 1, 3)
    noise = Noise(torch.arange(10_000), torch.zeros(10_000, dtype=torch.int64))
    assert (noise.categorical(logits) == 1).all()


def test_bernoulli_follows_its_log_odds() -> None:
    noise = Noise(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64))
    share = noise.bernoulli(torch.full((20_000,), -1.0)).float().mean()
    assert abs(share - torch.sigmoid(torch.tensor(-1.0))) < 0.012


def test_integers_cover_their_range_evenly() -> None:
    numbers = Noise(torch.arange(30_000), torch.zeros(30_000, dtype=torch.int64)).integers(7)
    counts = numbers.bincount(minlength=7) / 30_000
    assert len(counts) == 7
    assert torch.allclose(counts, torch.full((7,), 1 / 7), atol=0.01)


def test_any_python_integer_is_a_seed() -> None:
    assert wrap_seed(2**64 + 5) == 5
    assert wrap_seed(2**63) == -(2**63)
    assert wrap_seed(-1) == -1


@pytest.mark.parametrize("how", ["coupled", "exclusive"])
def test_coupled_classes_keep_their_distributions(how: str) -> None:
    logits = torch.randn(1, 9, 5, generator=torch.Generator().manual_seed(0)) * 2
    rows = 40_000
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    drawn = noise.categorical(logits.expand(rows, -1, -1), **{how: True})
    for variable in range(9):
        shares = torch.bincount(drawn[:, variable], minlength=5) / rows
        torch.testing.assert_close(shares, logits[0, variable].softmax(-1), atol=0.01, rtol=0)


@pytest.mark.parametrize("how", ["coupled", "exclusive"])
def test_coupled_classes_make_one_event_of_one_chance(how: str) -> None:
    """A thing moves with probability 0.9, from the first place to the second: it is never in both, nor in none."""
    logits = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]]).log()
    rows = 5_000
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    there = noise.categorical(logits.expand(rows, -1, -1), **{how: True})
    assert (there.sum(1) == 1).all()
    assert 0.88 < there[:, 1].float().mean() < 0.92
    apart = noise.categorical(logits.expand(rows, -1, -1))
    assert 0.15 < (apart.sum(1) != 1).float().mean() < 0.21


def test_exclusive_classes_come_in_turn() -> None:
    """Something enters in one of sixteen places, as one of two things: one enters, each in its share of the cases."""
    logits = torch.tensor([15 / 16, 2 / 48, 1 / 48]).log().expand(1, 16, 3)
    rows = 5_000
    noise = Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))
    entered = noise.categorical(logits.expand(rows, -1, -1), exclusive=True)
    assert ((entered > 0).sum(1) == 1).float().mean() > 0.999  # but for rounding at the edges
    assert (entered == 2).sum() / rows == pytest.approx(1 / 3, abs=0.03)
    together = noise.categorical(logits.expand(rows, -1, -1), coupled=True)
    assert set((together > 0).sum(1).tolist()) == {0, 16}


@pytest.mark.parametrize("how", ["coupled", "exclusive"])
def test_coupled_classes_do_not_depend_on_the_batch(how: str) -> None:
    logits = torch.randn(16, 40, 6, generator=torch.Generator().manual_seed(1))
    noise = Noise(torch.arange(16), torch.full((16,), 3))
    alone = [
        Noise(*(part[i : i + 1] for part in noise[:2])).categorical(logits[i : i + 1], **{how: True}) for i in range(16)
    ]
    assert torch.equal(noise.categorical(logits, **{how: True}), torch.cat(alone))
