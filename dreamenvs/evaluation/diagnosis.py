"""Diagnosis: what the doctor found in a dream, in plain lines for people and as JSON for the card.

A finding is broken where a policy would exploit it or could learn nothing because of it. Chance is allowed for: small
differences, and those that lie inside the intervals, are no findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dreamenvs.evaluation.conservation import Conservation, Rates
from dreamenvs.evaluation.results import to_json
from dreamenvs.evaluation.statistics import Estimate

Tier = Literal["good", "demo", "broken"]
Fault = Literal[
    "objects_appear",
    "objects_vanish",
    "rewards_missing",
    "rewards_leaking",
    "terminations_missing",
    "terminations_false",
    "exploited",
    "drift",
    "strange_frames",
    "inaccurate",
]

APPEAR = 0.005
"""The share of steps, beyond that of real ones, that may lead to more of what is conserved."""
VANISH = 0.01
CROWDED = 0.05
"""The share of frames, beyond that of real ones, that may show more of it."""
HONEST = 0.8
"""What a policy earns for real is at least this share of what it earns in a good dream."""
EXPLOITED = 0.5
"""Below this share the policy lives off the dream's errors."""
EVENTS = 5
"""The fewest real events whose recall says anything."""
STRANGE = 0.01
"""The share of places that may become strange while dreaming."""
SMOOTHED = 5
"""Imagined steps over which curves are averaged."""


class Finding(NamedTuple):
    """Something that is wrong with a dream."""

    fault: Fault
    broken: bool
    """Whether a policy would exploit it, or could learn nothing because of it."""
    text: str
    """What it is, and what to try."""


class Learned(NamedTuple):
    """What a policy earns that learned in the dream, by episode of at most so many steps."""

    agent: str
    horizon: int
    dream: Estimate
    real: Estimate | None
    """None where the real environment is not at hand, as the next one."""
    random_real: Estimate | None

    @property
    def honest(self) -> bool:
        """Whether it earns for real nearly what it earns in the dream."""
        return self.real is not None and self.real.mean >= self.dream.mean - (1 - HONEST) * abs(self.dream.mean)

    @property
    def beats_random(self) -> bool:
        """Whether it earns clearly more for real than random play: the intervals do not meet."""
        return self.real is not None and self.random_real is not None and self.real.low > self.random_real.high

    def text(self) -> str:
        """One line."""
        line = f"{self.agent} earns {_interval(self.dream)} in the dream, in at most {self.horizon} steps"
        if self.real is None or self.random_real is None:
            return line
        return f"{line}, {_interval(self.real)} for real; random play earns {_interval(self.random_real)} for real"


class OneStepFigures(NamedTuple):
    """Rewards, ends and tokens one step ahead, on held-out episodes."""

    steps: int
    rewards: int
    """Steps with a real reward."""
    reward_recall: float
    reward_precision: float
    false_payments: float
    """Steps with a reward of which there is none for real, or one of the other sign, per 1,000 steps."""
    ends: int
    end_recall: float
    end_precision: float
    false_ends: float
    """Per 1,000 steps."""
    token_accuracy: float
    copy_accuracy: float

    def text(self) -> str:
        """Two lines, accuracy last."""
        return (
            f"one step ahead: reward recall {_share(self.reward_recall)}, precision {_share(self.reward_precision)}, "
            f"{self.false_payments:.3g} false payments per 1,000 steps; end recall {_share(self.end_recall)}, "
            f"precision {_share(self.end_precision)}\n"
            f"token accuracy {self.token_accuracy:.4f} (a copy of the last frame: {self.copy_accuracy:.4f})"
        )


class Diagnosis(NamedTuple):
    """What the doctor says of a dream."""

    tier: Tier
    """good: what is learned inside counts for real; demo: nice to look at; broken: a policy would exploit it."""
    findings: list[Finding]
    """In the order in which they unmask a dream; none in a sound one."""
    unknown: list[str]
    """What could not be examined, and why."""
    conservation: Conservation | None
    """Under random actions."""
    learner_conservation: Conservation | None
    """Where the policy goes that learned inside."""
    random_dream: Rates
    random_real: Rates | None
    learned: Learned | None
    one_step: OneStepFigures

    @property
    def faults(self) -> list[Fault]:
        """The names of the findings, each once."""
        return list(dict.fromkeys(finding.fault for finding in self.findings))

    def to_json(self) -> dict[str, Any]:
        """For a card or a file."""
        figures: dict[str, Any] = {
            "random_play": {
                f"{side}_{name}": to_json(getattr(rates, name).mean)
                for side, rates in (("dream", self.random_dream), ("real", self.random_real))
                if rates is not None
                for name in ("reward", "ends")
            },
            "one_step": to_json(self.one_step),
        }
        if self.learned is not None:
            figures["learner"] = to_json(self.learned)
        for name, counted in (("conservation", self.conservation), ("learner_conservation", self.learner_conservation)):
            if counted is not None:
                figures[name] = counted.to_json()
        return {
            "tier": self.tier,
            "findings": [finding._asdict() for finding in self.findings],
            "unknown": list(self.unknown),
            **figures,
        }

    def text(self) -> str:
        """A few plain lines: the tier, what is wrong, what was measured, and what nobody knows."""
        lines = [f"tier: {self.tier} ({_MEANING[self.tier]})"]
        lines += [f"- {finding.fault.replace('_', ' ')}: {finding.text}" for finding in self.findings]
        real = self.random_real
        for name in ("reward", "ends"):
            known = "" if real is None else f", for real {_interval(getattr(real, name))}"
            lines.append(f"random play, {name} per 100 steps: {_interval(getattr(self.random_dream, name))}{known}")
        lines += [] if self.learned is None else [self.learned.text()]
        lines.append(self.one_step.text())
        lines += [f"not known: {each}" for each in self.unknown]
        return "\n".join(lines)


_MEANING = {
    "good": "what is learned inside is earned for real",
    "demo": "nothing was found that a policy would exploit, and it was not shown that learning inside pays for real",
    "broken": "do not train in it",
}


def find_objects(counted: Conservation | None, play: str, *, broken: bool) -> list[Finding]:
    """What appears and vanishes in the dream and not in the real episodes.

    Where another policy made these, what it never changes is not proved to be conserved: then it is not `broken`.
    """
    if counted is None or not counted.conserved:
        return []
    found = []
    most = max(counted.conserved, key=lambda each: each.dream.more - each.real.more)
    crowded = max(counted.conserved, key=lambda each: each.dream.frames_with_more - each.real.frames_with_more)
    extra = crowded.dream.frames_with_more - crowded.real.frames_with_more
    if most.dream.more - most.real.more > APPEAR or extra > CROWDED:
        # The steps of the one and the frames of the other: usually they are of the same thing.
        text = (
            f"under {play} {most.dream.more:.2%} of steps lead to more of a thing of which there are always "
            f"{most.usual} (real {most.real.more:.2%}), and {crowded.dream.frames_with_more:.1%} of frames show too "
            "many; draw the tokens of a frame jointly, or fit longer"
        )
        found.append(Finding("objects_appear", broken, text))
    lost = max(counted.conserved, key=lambda each: each.dream.fewer - each.real.fewer)
    if lost.dream.fewer - lost.real.fewer > VANISH:
        text = (
            f"under {play} a thing of which there are always {lost.usual} is lost in {lost.dream.fewer:.2%} of steps "
            f"(real {lost.real.fewer:.2%}); draw the tokens of a frame jointly, or fit longer"
        )
        found.append(Finding("objects_vanish", broken, text))
    return found


def find_random_play(dream: Rates, real: Rates | None, unit: float) -> list[Finding]:
    """Where random play earns or ends clearly differently; `unit` is the smallest real reward."""
    if real is None:
        return []
    found = []
    kinds: tuple[tuple[Fault, Fault, str, float, Estimate, Estimate], ...] = (
        ("rewards_leaking", "rewards_missing", "earns", unit, dream.reward, real.reward),
        ("terminations_false", "terminations_missing", "ends", 1.0, dream.ends, real.ends),
    )
    for surplus, lack, verb, size, imagined, true in kinds:
        # A rate that nothing was seen of may still be as large as three events in as many steps.
        slack = 300 * size / real.steps
        low, high = true.low - (slack if true.mean <= 0 else 0.0), true.high + slack
        text = f"random play {verb} {_interval(imagined)} per 100 steps in the dream and {_interval(true)} for real"
        if imagined.low > high and imagined.mean - true.mean > abs(true.mean):
            found.append(Finding(surplus, True, f"{text}; read {_OUTCOME} from the transition, and fit on more data"))
        elif imagined.high < low and true.mean - imagined.mean > abs(true.mean) / 2:
            found.append(Finding(lack, True, f"{text}; collect data with more of them, and fit longer"))
    return found


_OUTCOME = "rewards and ends"


def find_exploitation(learned: Learned | None) -> list[Finding]:
    """Whether the policy that learned inside earns much less for real."""
    # The interval of a single episode is NaN, and proves nothing.
    if learned is None or learned.real is None or learned.honest or not learned.real.high < learned.dream.low:
        return []
    severe = learned.real.mean < learned.dream.mean - (1 - EXPLOITED) * abs(learned.dream.mean)
    text = f"{learned.text()}; collect data with this policy, fit again, and dream fewer steps"
    return [Finding("exploited", severe, text)]


def find_events(ahead: OneStepFigures) -> list[Finding]:
    """Rewards and ends that are missed or made up one step ahead."""
    found = []
    kinds: tuple[tuple[Fault, Fault, str, int, float, float, float], ...] = (
        (
            "rewards_missing",
            "rewards_leaking",
            "rewards",
            ahead.rewards,
            ahead.reward_recall,
            ahead.reward_precision,
            ahead.false_payments,
        ),
        (
            "terminations_missing",
            "terminations_false",
            "ends",
            ahead.ends,
            ahead.end_recall,
            ahead.end_precision,
            ahead.false_ends,
        ),
    )
    for lack, surplus, name, count, recall, precision, false in kinds:
        if count >= EVENTS and recall < 0.5:
            text = f"one step ahead {_share(recall)} of {count} real {name} are predicted; collect more of them"
            found.append(Finding(lack, True, text))
        # Where something is drawn by the game itself, the most likely outcome is now and then a false one.
        if false > 2 and precision < 0.5:
            text = f"one step ahead {false:.3g} false {name} per 1,000 steps, and {_share(precision)} of all are true"
            found.append(Finding(surplus, True, f"{text}; read {_OUTCOME} from the transition"))
    return found


def find_drift(counted: Conservation | None) -> list[Finding]:
    """The imagined step after which frames look like nothing real, or stand still."""
    if counted is None:
        return []
    found = []
    strange = _smooth([each.strange for each in counted.by_step])
    moving = _smooth([each.changed for each in counted.by_step[1:]])
    first = max(1, min(10, len(strange) // 3))
    begin = float(np.mean(strange[:first]))
    since = _lasting(strange > begin + max(STRANGE, begin / 2))
    if since is not None:
        text = (
            f"from imagined step {since} on more places look like nothing real: {strange[-1]:.1%} in the end, "
            f"{begin:.1%} at first; train with a horizon below {since}, or fit on longer segments"
        )
        found.append(Finding("drift", True, text))
    usual = min(counted.changed_real, float(np.mean(moving[:first]))) if len(moving) else 0.0
    since = _lasting(moving < usual / 3)
    if since is not None:
        text = (
            f"from imagined step {since + 1} on frames hardly change: {moving[-1]:.2%} of the places in a step, for "
            f"real {counted.changed_real:.2%}; train with a horizon below {since + 1}, or fit on longer segments"
        )
        found.append(Finding("drift", True, text))
    if not found and counted.strange - counted.strange_real > 2 * STRANGE:
        text = f"{counted.strange:.1%} of the places look like nothing real ({counted.strange_real:.1%} of real ones)"
        found.append(Finding("strange_frames", False, f"{text}; fit the tokenizer longer, or take exact patches"))
    return found


def find_accuracy(ahead: OneStepFigures) -> list[Finding]:
    """Whether frames are predicted better than by a copy."""
    if ahead.token_accuracy > ahead.copy_accuracy:
        return []
    text = f"a copy of the last frame is right as often ({ahead.copy_accuracy:.4f} of its tokens); fit longer"
    return [Finding("inaccurate", False, text)]


def _smooth(values: Sequence[float]) -> Any:
    """Means over the last `SMOOTHED` entries, at the beginning over as many as there are."""
    sums = np.cumsum([0.0, *values])
    last = np.arange(1, len(sums))
    begun = np.maximum(last - SMOOTHED, 0)
    return (sums[last] - sums[begun]) / (last - begun)


def _lasting(beyond: Any) -> int | None:
    """The entry from which on all are true, if the last `SMOOTHED` are."""
    if len(beyond) < 2 * SMOOTHED or not beyond[-SMOOTHED:].all():
        return None
    within = np.flatnonzero(~beyond)
    return int(within[-1]) + 1 if len(within) else 0


def _interval(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


def _share(value: float) -> str:
    return "unknown" if np.isnan(value) else f"{value:.0%}"
