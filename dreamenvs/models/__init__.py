"""The model families by name."""

from __future__ import annotations

from dreamenvs.models import delta_iris, step_vq
from dreamenvs.models.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (*step_vq.FAMILIES, *delta_iris.FAMILIES)}

__all__ = ["FAMILIES", "Family"]
