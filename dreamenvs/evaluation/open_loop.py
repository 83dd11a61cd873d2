"""Open loop: dream on from real contexts under the real actions, and compare with what really came.

The pixels that change are those in which two real frames in a row differ. The choice depends on the truth alone: the
mask of pixels that differ from the last context frame would be the very mask of the copy's mistakes, and any prediction
at all would beat the copy there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.excerpts import Excerpts, Place, batches, cut
from dreamenvs.evaluation.pictures import Frames, colour
from dreamenvs.evaluation.teacher_forcing import TeacherForcing, surprise
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise


class OpenLoop(NamedTuple):
    """Sums over the frame for each start and horizon, float64; the first column is one step after the context."""

    counted: NDArray[np.float64]  # (N, H) 1 while the real episode lasts
    framed: NDArray[np.float64]  # (N, H) 1 where there is a frame to compare: not after a termination
    error: NDArray[np.float64]  # (N, H) mean squared error, of pixels in [0, 1]
    copy_error: NDArray[np.float64]
    changed: NDArray[np.float64]  # (N, H) how many pixels change
    change_error: NDArray[np.float64]  # (N, H) the squared error summed over these, averaged over the channels
    copy_change_error: NDArray[np.float64]
    accuracy: NDArray[np.float64]  # (N, H) the share of tokens that are right
    copy_accuracy: NDArray[np.float64]
    majority_accuracy: NDArray[np.float64]
    surprise: NDArray[np.float64]  # (N, H) nats for each true token, given what was imagined before
    marginal_surprise: NDArray[np.float64]
    rewards: NDArray[np.float64]
    real_rewards: NDArray[np.float64]
    last_rewards: NDArray[np.float64]
    terminated: NDArray[np.float64]
    real_terminated: NDArray[np.float64]


class Beside(NamedTuple):
    """The same steps twice, as RGB frames."""

    real: Frames  # (T, H, W, 3)
    imagined: Frames  # (T, H, W, 3), of which the context is as the model sees it


def draw_starts(
    lengths: Sequence[int], starts: int, context: int, horizon: int, rng: np.random.Generator
) -> list[Place]:
    """Uniform over all places that have a whole context and a step after it; near an end the horizon is shorter."""
    places = np.maximum(np.asarray(lengths, np.int64) - context + 1, 0)
    if not places.any():
        raise ValueError(f"no episode has a step beyond a context of {context}: nothing can be compared")
    ends = np.cumsum(places)
    drawn = rng.integers(ends[-1], size=starts)
    chosen = np.searchsorted(ends, drawn, side="right")
    begins = drawn - (ends - places)[chosen]
    return [
        Place(index, begin, min(begin + context - 1 + horizon, lengths[index]), begin + context - 1)
        for index, begin in zip(chosen.tolist(), begins.tolist(), strict=True)
    ]


@torch.inference_mode()
def imagine(
    model: WorldModel[Any],
    episodes: Sequence[Episode],
    places: Sequence[Place],
    *,
    context: int,
    horizon: int,
    marginal: NDArray[np.float64],
    rows: int,
    seed: int,
    device: torch.device | str,
    progress: Callable[[int], None],
) -> OpenLoop:
    """Dream from all places; `marginal` (K, V) are the frequencies of the tokens, for the baselines."""
    parts, begun = [], 0
    frequencies = torch.from_numpy(marginal).to(device)
    for excerpts in batches(episodes, places, rows, device):
        count = len(excerpts.actions)
        seeds = torch.arange(begun, begun + count, device=device) + seed
        parts.append(_dream(model, excerpts, context, horizon, frequencies, seeds))
        begun += count
        progress(count)
    return OpenLoop(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))


def _dream(
    model: WorldModel[Any], excerpts: Excerpts, context: int, horizon: int, frequencies: Tensor, seeds: Tensor
) -> list[Tensor]:
    """The columns of an OpenLoop, (B, H) each."""
    last = context - 1
    state = watched = model.observe(excerpts.context(context))
    seen = model.tokens(state).clone()
    steps = []
    for step in range(last, min(last + horizon, excerpts.actions.shape[1])):
        # True tokens are those of a model that sees the real frames come: some families encode what changes.
        watched = model.update(watched, excerpts.actions[:, step], excerpts.observations[:, step + 1])
        tokens = model.tokens(watched)
        noise = Noise(seeds, torch.full_like(seeds, step - last))
        teacher = TeacherForcing.build(noise, tokens, forcing=False)
        before = state
        state, outcome = model.step(before, excerpts.actions[:, step], teacher)
        steps.append(
            (
                excerpts.counted[:, step],
                excerpts.counted[:, step] & ~excerpts.terminated[:, step],
                *_pixel_errors(model.decode(state), excerpts.observations, last, step + 1),
                *_token_errors(model.tokens(state), seen, tokens, frequencies),
                surprise(model, before, excerpts.actions[:, step], tokens, teacher),
                -_likelihood(frequencies, tokens).log().mean(1),
                outcome.rewards,
                excerpts.rewards[:, step],
                excerpts.rewards[:, last - 1] if last else torch.zeros_like(outcome.rewards),
                outcome.terminated,
                excerpts.terminated[:, step],
            )
        )
    missing = horizon - len(steps)  # a batch of short excerpts
    columns = [torch.stack([part.double() for part in column], 1) for column in zip(*steps, strict=True)]
    return [torch.nn.functional.pad(column, (0, missing)) for column in columns]


def _pixel_errors(imagined: Tensor, observations: Tensor, last: int, frame: int) -> tuple[Tensor, ...]:
    """Errors (B,) of the imagined and the copied frame: over the whole frame, and summed where it changes."""
    real = observations[:, frame].double()
    changes = (observations[:, frame] != observations[:, frame - 1]).any(1)
    own, copied = ((guess.double() - real).square().mean(1) / 255**2 for guess in (imagined, observations[:, last]))
    whole = [error.mean((1, 2)) for error in (own, copied)]
    return *whole, changes.sum((1, 2)), *((error * changes).sum((1, 2)) for error in (own, copied))


def _token_errors(imagined: Tensor, seen: Tensor, tokens: Tensor, frequencies: Tensor) -> tuple[Tensor, ...]:
    guesses = (imagined, seen, frequencies.argmax(1))
    return tuple((guess == tokens).double().mean(1) for guess in guesses)


def _likelihood(frequencies: Tensor, tokens: Tensor) -> Tensor:
    """(B, K) how frequent each token's value is at its place."""
    return frequencies.expand(len(tokens), -1, -1).gather(2, tokens[..., None])[..., 0]


@torch.inference_mode()
def imagine_beside(
    model: WorldModel[Any],
    episode: Episode,
    *,
    start: int = 0,
    context: int = 4,
    horizon: int = 60,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Beside:
    """A real episode from step `start`, and the dream from the same context under the same actions."""
    end = min(start + context - 1 + horizon, len(episode))
    excerpts = cut([episode], [Place(0, start, end, start)], device)
    seeds = torch.tensor([seed], device=device)
    frames = []
    for length in range(1, context + 1):
        state = model.observe(excerpts.context(length))
        frames.append(model.decode(state))
    for step in range(context - 1, end - start):
        noise = Noise(seeds, torch.full_like(seeds, step))
        state, _ = model.step(state, excerpts.actions[:, step], noise)
        frames.append(model.decode(state))
    return Beside(colour(excerpts.observations[0]), colour(torch.cat(frames)))
