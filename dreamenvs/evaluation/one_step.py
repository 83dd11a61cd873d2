"""One step ahead: a teacher-forced pass over whole held-out episodes, in which every step counts once.

Rewards and endings are rare; from here their figures stand on thousands of steps, the last one of each episode among
them. Episodes are cut into pieces that are watched side by side, each after a warm-up on the frames before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.excerpts import Excerpts, Place, batches
from dreamenvs.evaluation.teacher_forcing import TeacherForcing, surprise
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Outcome

PIECE = 64


class OneStep(NamedTuple):
    """What was predicted for every counted step, and what came."""

    histogram: NDArray[np.int64]  # (K, V) how often each token took each value
    accuracy: NDArray[np.float64]  # (N,) the share of the next frame's tokens that were the most likely ones
    copy_accuracy: NDArray[np.float64]  # (N,) the same, had the frame stayed
    surprise: NDArray[np.float64]  # (N,) nats for each true token, NaN where the family has no likelihood
    framed: NDArray[np.bool_]  # (N,) False where the episode terminated: no model learns the frame after its end
    rewards: NDArray[np.float32]  # (N,)
    real_rewards: NDArray[np.float32]
    last_rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    real_terminated: NDArray[np.bool_]


def cut_pieces(lengths: Sequence[int], context: int, warmup: int) -> list[Place]:
    """Pieces that cover every step after `context` real frames once, with up to `warmup` frames seen before each."""
    return [
        Place(episode=index, begin=max(0, first - warmup + 1), end=min(first + PIECE, length), counted=first)
        for index, length in enumerate(lengths)
        for first in range(context - 1, length, PIECE)
    ]


@torch.inference_mode()
def predict_steps(
    model: WorldModel[Any],
    episodes: Sequence[Episode],
    *,
    context: int,
    warmup: int,
    rows: int,
    device: torch.device | str,
    progress: Callable[[int], None],
) -> OneStep:
    """Watch all episodes and predict each next step; `progress` is told the number of steps that were counted."""
    pieces = cut_pieces([len(episode) for episode in episodes], context, warmup)
    parts, histogram = [], torch.zeros(model.num_tokens, model.vocabulary, dtype=torch.int64, device=device)
    for excerpts in batches(episodes, pieces, rows, device):
        for step in _watch(model, excerpts, histogram):
            parts.append(step)
        progress(int(excerpts.counted.sum()))
    arrays = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return OneStep(histogram.cpu().numpy(), *arrays)


def _watch(model: WorldModel[Any], excerpts: Excerpts, histogram: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The columns of a OneStep for one step after another, of the rows in which the step counts."""
    state = model.observe(excerpts.context(1))
    for step in range(excerpts.actions.shape[1]):
        actions, counted = excerpts.actions[:, step], excerpts.counted[:, step]
        following = model.update(state, actions, excerpts.observations[:, step + 1])
        if counted.any():
            tokens, framed = model.tokens(following), ~excerpts.terminated[:, step]
            guesses, nats, outcome = _predict(model, state, actions, tokens)
            _count(tokens[counted & framed], histogram)
            columns = (
                (guesses == tokens).double().mean(1),
                (model.tokens(state) == tokens).double().mean(1),
                nats,
                framed,
                outcome.rewards,
                excerpts.rewards[:, step],
                excerpts.rewards[:, step - 1] if step else torch.zeros_like(excerpts.rewards[:, 0]),
                outcome.terminated,
                excerpts.terminated[:, step],
            )
            yield tuple(column[counted] for column in columns)
        state = following


def _predict(model: WorldModel[Any], state: Any, actions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Outcome]:
    """The most likely tokens (B, K), the surprise (B,) at the true ones, and the outcome, which is not drawn."""
    zeros = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    noise = Noise(zeros, zeros, temperature=0.0)
    teacher = TeacherForcing.build(noise, tokens, forcing=True)
    imagined, outcome = model.step(state, actions, teacher)
    nats = surprise(model, state, actions, tokens, teacher)
    if teacher.complete:
        return teacher.guesses, nats, outcome
    # Tokens that were answered may be in what the family made of them: ask again, without the truth.
    imagined, outcome = model.step(state, actions, noise)
    return model.tokens(imagined), nats, outcome


def _count(tokens: Tensor, histogram: Tensor) -> None:
    places, values = torch.arange(histogram.shape[0], device=tokens.device), histogram.shape[1]
    flat = torch.bincount((places * values + tokens).flatten(), minlength=histogram.numel())
    histogram += flat.view_as(histogram)
