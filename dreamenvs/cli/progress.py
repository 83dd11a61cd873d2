"""Progress bars with the time that is left, as the package reports progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

from dreamenvs.evaluation.results import Progress

if TYPE_CHECKING:
    from dreamenvs.studies.baselines import PPOProgress


@contextmanager
def bar(name: str, unit: str) -> Iterator[Progress]:
    """A bar for work that reports how much is done, and how much there is."""
    with tqdm(desc=name, unit=unit, mininterval=1.0) as shown:

        def advance(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield advance


@contextmanager
def ppo_progress(name: str, steps: int) -> Iterator[PPOProgress]:
    """A bar for Stable-Baselines3's PPO, with the mean return of the last episodes."""
    with tqdm(total=steps, desc=name, unit="step", mininterval=1.0) as shown:

        def advance(done: int, mean_return: float | None) -> None:
            shown.update(min(done, steps) - shown.n)
            if mean_return is not None:
                shown.set_postfix(mean_return=f"{mean_return:.2f}", refresh=False)

        yield advance
