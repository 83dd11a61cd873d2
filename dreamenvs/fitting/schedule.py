"""Schedule: what is due after how many real steps, for a world model and an agent that learn while data comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a part is updated, counted on the schedule's clock."""

    rate: float = 1.0
    """Updates for each tick of the clock; 0.1 is one in ten."""
    start: int = 0
    """Ticks before which there are none."""
    first: int = 0
    """Updates that are due at once when the clock reaches `start`, besides."""

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1e6 or min(self.start, self.first) < 0:
            raise ValueError(f"rate, start and first of a pace are not negative, and finite: {self}")

    def due(self, clock: int) -> int:
        """How many updates there should have been when the clock says so; a fraction waits until it is whole."""
        if clock < self.start:
            return 0
        # As people mean it: 0.1 is a tenth, and after ten ticks one update is due, whatever the float lacks.
        return self.first + int(Fraction(self.rate).limit_denominator(10**6) * (clock - self.start))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The loop of the papers: collect, update the stages of the world model, update the agent, and again.

    The clock counts real steps; once all are collected it goes on for `after` ticks, in which old data is learned from.
    A round collects `chunk` steps and then makes up for all updates that are due, one part after the other.
    """

    steps: int
    """Real steps altogether."""
    chunk: int = 1
    """Ticks of a round."""
    after: int = 0
    """Ticks without collecting, after the last real step."""
    warmup: int = 0
    """Real steps with random actions, at the beginning."""
    stages: Mapping[str, Pace] = field(default_factory=dict)
    """Of each stage of the world model, by its name."""
    agent: Pace = field(default_factory=Pace)
    epsilon: float = 0.0
    """The share of random actions after the warm-up."""
    temperature: float = 1.0
    """Of the policy that collects."""
    context: int = 1
    """Real frames that the agent sees again at the beginning of a round, since the weights have changed."""
    evaluate_every: int = 0
    """Ticks from one evaluation to the next; 0 for none before the end."""

    def __post_init__(self) -> None:
        if min(self.steps, self.chunk, self.context) < 1 or min(self.after, self.warmup, self.evaluate_every) < 0:
            raise ValueError(f"steps, chunk and context are at least 1, and nothing is negative: {self}")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon is a share from 0 to 1, not {self.epsilon}")
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"the temperature is from 0 to 100, not {self.temperature}")

    @property
    def end(self) -> int:
        """What the clock says at the end."""
        return self.steps + self.after

    def next(self, clock: int) -> int:
        """What the clock says after the round that begins now; a round ends where warm-up and collecting do."""
        marks = [mark for mark in (self.warmup, self.steps, self.end) if mark > clock]
        return min([clock + self.chunk, *marks])

    def evaluations(self, clock: int) -> int:
        """How many evaluations there should have been, without the one at the end."""
        return min(clock, self.end - 1) // self.evaluate_every if self.evaluate_every else 0
