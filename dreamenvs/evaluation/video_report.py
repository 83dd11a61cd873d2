"""The video section of an evaluation: how far dreamed videos are from real ones,."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.results import Progress
from dreamenvs.evaluation.video import VideoFigures, draw_videos, measure_videos


@dataclass(frozen=True, kw_only=True)
class VideoArgs:
    """Videos that are dreamed on from real frames, for a Fréchet distance and the perplexity of the prior."""

    count: int = 0
    """How many; GIT-STORM takes 256, and 0 leaves them out."""
    context: int = 8
    """Frames of each that are seen."""
    horizon: int = 48
    """Frames of each that are dreamed."""
    fewer: bool = False
    """Take as many as the episodes hold, where these are fewer."""


def check_videos(args: VideoArgs, episodes: Sequence[Episode]) -> None:
    """Say at once, and not after minutes, that there are too few videos."""
    if not args.count:
        return
    try:
        draw_videos(episodes, args.count, args.context, args.horizon, np.random.default_rng(), fewer=args.fewer)
    except ValueError as error:
        remedies = "--steps for more, --video.fewer, or --video.count 0 for none"
        raise SystemExit(f"{error}\non the command line: {remedies}") from None


def measure_video(
    args: VideoArgs, checkpoint: Checkpoint, episodes: Sequence[Episode], seed: int, progress: Progress
) -> VideoFigures:
    """How far dreamed videos are from real ones."""
    return measure_videos(
        checkpoint.model,
        episodes,
        np.random.default_rng(seed),
        videos=args.count,
        context=args.context,
        horizon=args.horizon,
        fewer=args.fewer,
        progress=progress,
    )
