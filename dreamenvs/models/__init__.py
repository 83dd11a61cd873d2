"""The model families by name."""

from __future__ import annotations

from dreamenvs import families
from dreamenvs.models.family import Family

FAMILIES: dict[str, Family] = {name: families.resolve(entry.model) for name, entry in families.FAMILIES.items()}

__all__ = ["FAMILIES", "Family"]
