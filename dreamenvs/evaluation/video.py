"""Video prediction (GIT-STORM, section 4.1): whole videos dreamed on from real frames, and what the prior expects.

Of each video the model sees the first frames, and dreams the others under the actions that were recorded. Their
distribution is compared with that of the real ones by a Fréchet distance, on the dreamed frames alone: the seen ones
are the same on both sides. The prior's perplexity is that of the same frames, teacher-forced, one step ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.excerpts import Excerpts, Place, batches
from dreamenvs.evaluation.frechet import Distance, compare_features
from dreamenvs.evaluation.results import Progress, text_table, to_json
from dreamenvs.evaluation.statistics import Estimate, estimate, resampled_means
from dreamenvs.evaluation.teacher_forcing import TeacherForcing, surprise
from dreamenvs.evaluation.video_features import FeatureNetwork, RandomFeatures
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise


class VideoSetting(NamedTuple):
    """What the figures were measured on."""

    videos: int
    asked: int
    """How many were asked for."""
    context: int
    """Real frames that the model sees."""
    horizon: int
    """Frames that it dreams, and that are compared."""
    seed: int
    """Of the dreams; video i has seed + i."""


class VideoFigures(NamedTuple):
    """Distances of dreamed videos from real ones, beside two that need no dream."""

    distance: str
    """What the distances are: which features they are on. They compare with no distance on other features."""
    dream: Distance
    copy: Distance
    """Of the last seen frame, shown again and again."""
    decoded: Distance
    """Of the real frames as the model's own decoder shows them: what a dream cannot well be below."""
    perplexity: Estimate
    """Of the true tokens, one step ahead of real frames: exp of the mean of -ln p over all tokens of all videos, with
    an interval over videos. The lower, the better; NaN in a family that has no likelihood. GIT-STORM defines it so in
    its appendix K, but its tables 3 and 4 mark higher values as better and read them as a use of more tokens."""
    setting: VideoSetting

    def to_json(self) -> dict[str, Any]:
        """For a card or a file."""
        return {
            "distance": self.distance,
            "distances": {name: to_json(getattr(self, name)) for name in ("dream", "copy", "decoded")},
            "perplexity": {"one_step": to_json(self.perplexity)},
            "setting": to_json(self.setting),
        }

    def table(self) -> str:
        """The figures for people."""
        names = {"dream": "dreamed", "copy": "last frame copied", "decoded": "real, decoded"}
        rows = [[text, *getattr(self, name)] for name, text in names.items()]
        setting, (value, low, high) = self.setting, self.perplexity
        known = "–" if math.isnan(value) else f"{value:.4g} ({low:.4g} to {high:.4g})"
        return (
            f"{text_table([self.distance, 'distance', 'std'], rows)}\n"
            f"{setting.videos} videos of {setting.context} seen and {setting.horizon} dreamed frames; "
            f"perplexity of the prior one step ahead {known}; lower is better in all of them"
        )


def measure_videos(
    model: WorldModel[Any],
    episodes: Sequence[Episode],
    rng: np.random.Generator,
    *,
    network: FeatureNetwork | None = None,
    videos: int = 256,
    context: int = 8,
    horizon: int = 48,
    fewer: bool = False,
    rows: int = 32,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> VideoFigures:
    """Dream videos of held-out episodes, and compare them with the real ones.

    Args:
        model: In evaluation mode, on `device`.
        episodes: Real episodes that the model was not fitted on.
        rng: Chooses the videos, seeds the dreams and draws the resamples of the intervals.
        network: What makes features of videos; `RandomFeatures`, which needs no weights, if there is none.
        videos: How many, from different steps; they may overlap.
        context: Real frames that are seen.
        horizon: Frames that are dreamed.
        fewer: Whether fewer videos will do, where episodes do not hold as many.
        rows: How many are computed side by side; memory grows with it, and what is measured stays the same.
        device: Where the model and the feature network run.
        progress: Called with the number of frames that are done, and of all there are.
    """
    numbers = {"videos": videos, "context": context, "horizon": horizon, "rows": rows}
    for name, value in numbers.items():
        if value < 1 + (name == "horizon"):
            raise ValueError(f"{name} must be at least {1 + (name == 'horizon')}, not {value}")
    places = draw_videos(episodes, videos, context, horizon, rng, fewer=fewer)
    chosen, seed, total = network or RandomFeatures(), int(rng.integers(2**31)), len(places) * horizon
    sides: list[list[NDArray[np.float64]]] = [[], [], [], []]
    nats, begun = [], 0
    for excerpts in batches(episodes, places, rows, device):
        count = len(excerpts.actions)
        seeds = torch.arange(begun, begun + count, device=device) + seed
        real = excerpts.observations[:, context:]
        dreamed = _dream(model, excerpts, context, seeds)
        copied = excerpts.observations[:, context - 1 : context].expand_as(real)
        for side, frames in zip(sides, (real, dreamed.frames, copied, dreamed.decoded), strict=True):
            side.append(chosen.features(frames))
        nats.append(dreamed.nats.cpu().numpy())
        begun += count
        if progress is not None:
            progress(begun * horizon, total)
    real_features, *others = (np.concatenate(side) for side in sides)
    own, copy, shown = (compare_features(real_features, features, rng) for features in others)
    return VideoFigures(
        distance=chosen.name,
        dream=own,
        copy=copy,
        decoded=shown,
        perplexity=_perplexity(np.concatenate(nats), rng),
        setting=VideoSetting(len(places), videos, context, horizon, seed),
    )


def draw_videos(
    episodes: Sequence[Episode],
    videos: int,
    context: int,
    horizon: int,
    rng: np.random.Generator,
    *,
    fewer: bool = False,
) -> list[Place]:
    """Places of videos, uniform over all different ones; the frame after a termination is in none of them."""
    steps = context - 1 + horizon
    # A termination is an episode's last step, and no model learns the frame after it.
    usable = [len(episode) - bool(episode.terminated[-1]) for episode in episodes]
    starts = np.maximum(np.asarray(usable, np.int64) - steps + 1, 0)
    ends, available = np.cumsum(starts), int(starts.sum())
    if not available or (available < videos and not fewer):
        raise ValueError(
            f"{videos} videos of {context} + {horizon} frames were asked for, and {len(episodes)} episodes, the "
            f"longest of {max(map(len, episodes), default=0)} steps, hold {available}: take more or longer episodes, "
            + ("or allow fewer videos with fewer=True" if available else "or ask for fewer frames")
        )
    drawn = np.sort(rng.choice(available, min(videos, available), replace=False))
    chosen = np.searchsorted(ends, drawn, side="right")
    begins = drawn - (ends - starts)[chosen]
    return [
        Place(index, begin, begin + steps, begin + context - 1)
        for index, begin in zip(chosen.tolist(), begins.tolist(), strict=True)
    ]


class _Dreamed(NamedTuple):
    """One batch of videos."""

    frames: Tensor  # (B, T, C, H, W) uint8
    decoded: Tensor  # (B, T, C, H, W) uint8, the real frames as the model shows them
    nats: Tensor  # (B,) surprise at the real frames, averaged over their tokens


@torch.inference_mode()
def _dream(model: WorldModel[Any], excerpts: Excerpts, context: int, seeds: Tensor) -> _Dreamed:
    """Dream on from the context, and watch the real frames come beside it."""
    last = context - 1
    state = watched = model.observe(excerpts.context(context))
    frames, decoded, nats = [], [], []
    for step in range(last, excerpts.actions.shape[1]):
        actions, noise = excerpts.actions[:, step], Noise(seeds, torch.full_like(seeds, step - last))
        following = model.update(watched, actions, excerpts.observations[:, step + 1])
        tokens = model.tokens(following)
        teacher = TeacherForcing.build(noise, tokens, forcing=True)
        model.step(watched, actions, teacher)
        nats.append(surprise(model, watched, actions, tokens, teacher))
        # A dream that ends goes on, as the recorded video does.
        state, _ = model.step(state, actions, noise)
        watched = following
        frames.append(model.decode(state))
        decoded.append(model.decode(watched))
    return _Dreamed(torch.stack(frames, 1), torch.stack(decoded, 1), torch.stack(nats, 1).mean(1))


def _perplexity(nats: NDArray[np.float64], rng: np.random.Generator) -> Estimate:
    """Of nats per token (N,) by video; all videos have as many tokens."""
    if np.isnan(nats).any():
        return Estimate(math.nan, math.nan, math.nan)
    return estimate(float(np.exp(nats.mean())), np.exp(resampled_means(nats, rng)), len(nats))
