"""What papers state, beside which a report puts its own figures; nothing is known of most worlds."""

from __future__ import annotations

from collections.abc import Mapping

from report_statistics import Scores


def published_scores(world: str) -> dict[str, float]:
    """The returns that papers state for an environment, by method."""
    return {}


def normalise(scores: Mapping[str, Scores]) -> dict[str, Scores] | None:
    """Human-normalised scores by method, or None where the study has a world without human players."""
    return None
