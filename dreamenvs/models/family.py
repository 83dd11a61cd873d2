"""Family: what a name in an environment id stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dreamenvs.types import WorldSpec


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: the type of its config, the paper's own values, and how a model is assembled from them.

    >>> import dreamenvs
    >>> from dreamenvs.models.step_vq import STEP_VQ
    >>> isinstance(STEP_VQ, dreamenvs.Family), STEP_VQ.name
    (True, 'STEPVQ')
    """

    name: str
    config: type[Any]
    paper: Any
    """The config with the paper's values."""
    build: Callable[[Any, WorldSpec], Any]
    """A `WorldModel` that is also an `nn.Module`, from a config and a world's spec."""
