"""The model families by name."""

from __future__ import annotations

from dreamenvs.models import delta_iris, iris, rem, step_vq, storm
from dreamenvs.models.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for part in (step_vq, storm, iris, rem, delta_iris) for family in part.FAMILIES
}

__all__ = ["FAMILIES", "Family"]
