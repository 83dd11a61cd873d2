"""The observation spaces of a dream, and the names users choose them by."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from gymnasium import Space, spaces

from dreamenvs.dream import ObservationType
from dreamenvs.protocols import WorldModel


def observation_space(model: WorldModel[Any], obs_type: ObservationType) -> Space[Any]:
    """What one row of a dream shows: `rgb` frames, `latent` features or `tokens`."""
    if obs_type == "rgb":
        channels, height, width = model.spec.observation_shape
        return spaces.Box(0, 255, (height, width, channels), np.uint8)
    if obs_type == "latent":
        # Features are unbounded but never infinite, and Gymnasium's checker warns of infinite bounds.
        limits = np.finfo(np.float32)
        return spaces.Box(limits.min, limits.max, (model.num_features,), np.float32)
    return spaces.MultiDiscrete(np.full(model.num_tokens, model.vocabulary))


def check_choice(name: str, value: str, choices: Any) -> None:
    """Refuse a value outside a Literal's choices, naming it."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, not {value!r}")
