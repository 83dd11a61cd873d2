"""The teacher: what it hears, and that it changes nothing but what it should."""

from __future__ import annotations

import torch

from dreamenvs.evaluation.teacher_forcing import TeacherForcing
from dreamenvs.random import Noise


def noise(rows: int = 4) -> Noise:
    return Noise(torch.arange(rows), torch.zeros(rows, dtype=torch.int64))


def logits(rows: int = 4, tokens: int = 3, values: int = 5) -> torch.Tensor:
    return torch.randn(rows, tokens, values, generator=torch.Generator().manual_seed(0))


TARGETS = torch.tensor([[0, 1, 2], [4, 4, 4], [3, 0, 3], [1, 1, 0]])


def test_it_draws_what_the_noise_draws_and_hears_the_truth() -> None:
    given = logits()
    teacher = TeacherForcing.build(noise(), TARGETS, forcing=False)
    assert torch.equal(teacher.categorical(given), noise().categorical(given))
    assert teacher.complete
    expected = [[given[r, k].softmax(-1)[TARGETS[r, k]].log() for k in range(3)] for r in range(4)]
    assert torch.allclose(teacher.log_likelihood, torch.tensor(expected))
    assert torch.equal(teacher.guesses, given.argmax(-1))


def test_forcing_answers_one_token_after_another() -> None:
    """As an autoregressive prior asks: each question depends on the answer before."""
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))  # the next token's logits
    teacher = TeacherForcing.build(noise(), TARGETS, forcing=True)
    token, answers = torch.zeros(4, dtype=torch.int64), []
    for draw in range(3):
        token = teacher.categorical(table[token][:, None], draw)[:, 0]
        answers.append(token)
    assert torch.equal(torch.stack(answers, 1), TARGETS)
    before = torch.cat([torch.zeros(4, 1, dtype=torch.int64), TARGETS[:, :-1]], 1)
    expected = table.log_softmax(-1)[before].gather(-1, TARGETS[..., None])[..., 0]
    assert teacher.complete
    assert torch.allclose(teacher.log_likelihood, expected)


def test_tokens_that_are_drawn_twice_or_not_at_all_have_no_likelihood() -> None:
    teacher = TeacherForcing.build(noise(), TARGETS, forcing=True)
    assert not teacher.complete
    teacher.categorical(logits())
    assert torch.equal(teacher.categorical(logits(), draw=1), noise().categorical(logits(), draw=1))
    assert not teacher.complete
    assert teacher.log_likelihood.isnan().all()


def test_endings_are_the_likelier_side() -> None:
    odds = torch.tensor([-3.0, -0.1, 0.1, 3.0])
    teacher = TeacherForcing.build(noise(), TARGETS, forcing=False)
    assert teacher.bernoulli(odds).tolist() == [False, False, True, True]
