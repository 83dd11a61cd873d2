"""What Δ-tokens hold, as a picture (Δ-IRIS, section 3.4, figures 3 and 9): dreams with random ones beside it.

From the same frame and under the same actions, a dream with tokens drawn at random still shows what follows from frame
and action, while all that chance decides goes astray. That is the evidence that the tokens hold chance alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dreamenvs.evaluation.pictures import Image, colour, mosaic
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment


class RandomTokens(Noise):
    """Noise to which all tokens are alike: a world model that draws from it draws from the whole vocabulary evenly."""

    def categorical(
        self,
        logits: Tensor,
        draw: int = 0,
        *,
        coupled: bool = False,
        exclusive: bool = False,
        places: Tensor | None = None,
    ) -> Tensor:
        """Tokens (B, K), whatever the logits (B, K, V) are."""
        return super().categorical(torch.zeros_like(logits), draw, coupled=coupled, exclusive=exclusive)


@torch.inference_mode()
def delta_figure(
    model: WorldModel[Any],
    context: Segment,
    actions: Tensor,
    *,
    real: Tensor | None = None,
    seed: int = 0,
    scale: int = 2,
    gap: int = 4,
) -> Image:
    """Dreams of one world from one start, as an RGB picture with one column for each frame.

    Rows, from the top: the real frames, if there are any; the dream; the dream with random Δ-tokens. The first column
    is the last frame of the context.

    Args:
        model: In evaluation mode; tokens at random mean what is said above only where they hold changes.
        context: One row (1, T) of real frames to start from.
        actions: (N,) or (N, A), the actions of the dream.
        real: The frames (N, C, H, W) uint8 that really followed.
        seed: Of both dreams.
        scale: How many times the frames are enlarged.
        gap: Pixels between frames.
    """
    if len(context.actions) != 1:
        raise ValueError(f"a figure shows one start, not a context of {len(context.actions)} rows")
    if real is not None and len(real) != len(actions):
        raise ValueError(f"{len(actions)} actions lead to as many frames, not to {len(real)} real ones")
    first = context.observations[:, -1]
    rows = [] if real is None else [torch.cat([first, real])]
    rows += [_dream(model, context, actions, kind, seed) for kind in (Noise, RandomTokens)]
    enlarged = [colour(row).repeat(scale, axis=1).repeat(scale, axis=2) for row in rows]
    return mosaic(enlarged, gap)


def _dream(model: WorldModel[Any], context: Segment, actions: Tensor, kind: type[Noise], seed: int) -> Tensor:
    """Frames (N + 1, C, H, W), of which the first is the context's last."""
    state = model.observe(context)
    seeds = torch.tensor([seed], device=actions.device)
    frames = [model.decode(state)]
    for step in range(len(actions)):
        state, _ = model.step(state, actions[step : step + 1], kind(seeds, torch.full_like(seeds, step)))
        frames.append(model.decode(state))
    return torch.cat(frames)
