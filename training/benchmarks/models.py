"""The models that benchmarks measure: random weights, in the sizes of a preset."""

from __future__ import annotations

from typing import Any

from dreamenvs.evaluation.rollouts import build
from dreamenvs.presets.world_models import model_config


def build_preset(family: str, preset: str) -> Any:
    """A model of a family with the sizes of a preset."""
    return build(family, model_config(family, preset))
