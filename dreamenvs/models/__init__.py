"""The model families by name."""

from __future__ import annotations

from dreamenvs.models import step_vq
from dreamenvs.models.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in step_vq.FAMILIES}

__all__ = ["FAMILIES", "Family"]
