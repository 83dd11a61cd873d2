"""The online loop: what is due when, and that a run which was left at any event goes on as if it had not been."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.data.collector import Gatherer, RepetitionError
from dreamenvs.data.growing_replay import Experience, open_experience
from dreamenvs.data.samplers import CountSampler
from dreamenvs.fitting.online import Online, game_seed
from dreamenvs.fitting.online_state import read_counters, read_online
from dreamenvs.fitting.schedule import Pace, Schedule
from dreamenvs.fitting.state import StateError
from dreamenvs.models import FAMILIES
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment
from tests.dots import SPEC, Dots
from tests.small import CONFIGS

SCHEDULE = Schedule(
    steps=60,
    chunk=6,
    after=6,
    warmup=12,
    stages={"tokenizer": Pace(rate=0.2, start=10), "dynamics": Pace(rate=0.25, start=14, first=2)},
    agent=Pace(rate=0.5, start=20),
    epsilon=0.1,
    context=5,
    evaluate_every=20,
)


class Tilting(nn.Module):
    """A learner that follows the sum of imagined rewards with a single layer, and plays with it."""

    def __init__(self, model: WorldModel[Any]) -> None:
        super().__init__()
        self.model = model
        torch.manual_seed(5)
        self.layer = nn.Linear(model.num_features, 3)

    def update(self, model: WorldModel[Any], context: Segment, update: int) -> dict[str, float]:
        with torch.no_grad():
            state = model.observe(context)
            rows = len(context.actions)
            seeds = torch.arange(rows) + 1000 * update
            actions, _ = self.act(state, seeds, 1.0)
            features = model.features(state)
            _, outcome = model.step(state, actions, Noise(seeds, torch.zeros(rows, dtype=torch.int64)))
            self.layer.weight[actions] += 0.1 * (outcome.rewards[:, None] + 0.1) * features
            self.layer.bias += 0.1 * torch.randn(3)  # the global generator, which the loop seeds
        return {"reward": float(outcome.rewards.mean())}

    def tensors(self) -> dict[str, Tensor]:
        return self.layer.state_dict()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.layer.load_state_dict(tensors)

    @torch.no_grad()
    def begin(self, context: Segment) -> Any:
        return tree.map(torch.clone, self.model.observe(context))

    @torch.no_grad()
    def act(self, mind: Any, seeds: Tensor, temperature: float) -> tuple[Tensor, Any]:
        logits = self.layer(self.model.features(mind))[:, None]
        return Noise(seeds, torch.zeros_like(seeds), temperature).categorical(logits)[:, 0], mind

    @torch.no_grad()
    def see(self, mind: Any, actions: Tensor, frames: Tensor) -> Any:
        return self.model.update(mind, actions, frames)


def small_config(family: str) -> Any:
    turns = TwoStageOptimization(
        tokenizer=StageConfig(rows=4, length=2, updates=1), dynamics=StageConfig(rows=4, length=6, updates=1)
    )
    if family == "STEPVQ":
        prior = FactorizedConfig(objective=CrossEntropyObjective())
        return replace(CONFIGS[family], prior=prior, optimization=turns)
    return replace(CONFIGS[family], optimization=turns)


def build(directory: Path, family: str = "STEPVQ", rows: int = 1, env: Any = Dots, **changes: Any) -> Online:
    """A run in a directory, from its state where there is one."""
    saved = read_online(directory / "state") if (directory / "state").exists() else None
    torch.manual_seed(0)
    model = FAMILIES[family].build(small_config(family), SPEC)
    agent = Tilting(model)
    experience = open_experience(directory / "replay", SPEC, saved.order if saved else ())
    gatherer = Gatherer([env() for _ in range(rows)], experience, lambda number: game_seed(3, number))

    def evaluate(number: int) -> dict[str, Any]:
        return {"bias": agent.layer.bias.tolist(), "number": number}

    online = Online(
        model,
        agent,
        agent,
        gatherer,
        replace(SCHEDULE, **changes),
        starts=(4, 3),
        seed=3,
        samplers={"dynamics": CountSampler()},
        evaluate=evaluate,
    )
    if saved:
        online.restore(saved)
    return online


def outcome(online: Online) -> dict[str, Any]:
    """Everything that a run consists of, to compare."""
    experience = online.experience
    return {
        "counters": online.counters,
        "curve": online.curve,
        "weights": {name: tensor.clone() for name, tensor in online.model.state_dict().items()},  # type: ignore[attr-defined]
        "agent": {name: tensor.clone() for name, tensor in online.learner.tensors().items()},
        "episodes": [
            [getattr(episode, name).copy() for name in ("observations", "actions", "rewards", "terminated")]
            for episode in experience
        ],
    }


def assert_equal(one: Any, other: Any) -> None:
    assert one["counters"] == other["counters"]
    assert one["curve"] == other["curve"]
    for part in ("weights", "agent"):
        assert one[part].keys() == other[part].keys()
        for name in one[part]:
            assert torch.equal(one[part][name], other[part][name]), name
    assert len(one["episodes"]) == len(other["episodes"])
    for mine, yours in zip(one["episodes"], other["episodes"], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, yours, strict=True))


@pytest.mark.parametrize(
    ("rate", "start", "first"), [(1.0, 0, 0), (0.3, 7, 0), (2.5, 3, 4), (0.1, 0, 1), (1 / 3, 5, 0)]
)
def test_a_pace_is_what_a_naive_loop_counts(rate: float, start: int, first: int) -> None:
    pace, done, owed = Pace(rate=rate, start=start, first=first), 0, 0.0
    for clock in range(400):
        if clock >= start:
            done += first if clock == start else 0
            owed += rate if clock > start else 0
            whole = math.floor(owed + 1e-9)
            done, owed = done + whole, owed - whole
        assert pace.due(clock) == done


def test_rates_are_as_people_write_them() -> None:
    """0.1 is not quite a tenth in binary, and after ten ticks an update is due all the same."""
    assert [Pace(rate=0.1).due(clock) for clock in (9, 10, 99, 100, 10**6)] == [0, 1, 9, 10, 10**5]
    assert Pace(rate=0.29).due(100) == 29  # 0.29 * 100 is 28.999… in floats
    with pytest.raises(ValueError, match="not negative"):
        Pace(rate=-1.0)


def test_rounds_end_where_warm_up_and_collecting_do() -> None:
    schedule = Schedule(steps=25, chunk=10, after=12, warmup=4)
    clocks = [0]
    while clocks[-1] < schedule.end:
        clocks.append(schedule.next(clocks[-1]))
    assert clocks == [0, 4, 14, 24, 25, 35, 37]
    evaluated = replace(schedule, evaluate_every=10)
    assert [evaluated.evaluations(clock) for clock in clocks] == [0, 0, 1, 2, 2, 3, 3]
    assert replace(schedule, steps=30, after=0, evaluate_every=10).evaluations(30) == 2, "the last one is the result"


def test_the_events_come_in_the_order_of_the_papers(tmp_path: Path) -> None:
    """Collect, tokenizer, world model, agent, each as often as its pace says and no earlier."""
    online = build(tmp_path)
    counts = {"tokenizer": 0, "dynamics": 0, "agent": 0}
    order = ("collect", *counts, "evaluation")
    last, before = "collect", 0
    for event in online.run():
        if event.name == "collect":
            clock = event.clock
            assert last == "collect" or all(
                counts[name] == pace.due(before) for name, pace in (*SCHEDULE.stages.items(), ("agent", SCHEDULE.agent))
            )
        else:
            assert order.index(event.name) >= order.index(last)
            if event.name in counts:
                counts[event.name] += 1
                assert event.number == counts[event.name]
        before, last = clock, event.name
    assert counts == {"tokenizer": 11, "dynamics": 15, "agent": 23}
    assert online.counters.updates == (11, 15)
    assert online.experience.steps == 60
    assert [point["step"] for point in online.curve] == [24, 42, 60]
    assert online.finished


@pytest.mark.parametrize(
    ("family", "rows", "lives"), [("STEPVQ", 1, 1), ("STEPVQ", 3, 2), ("REM", 1, 3), ("DeltaIRIS", 1, 1)]
)
def test_a_run_that_is_left_again_and_again_ends_alike(family: str, rows: int, lives: int, tmp_path: Path) -> None:
    env = lambda: Dots(lives=lives)  # noqa: E731
    whole = build(tmp_path / "whole", family, rows, env)
    for _ in whole.run():
        pass
    rng = np.random.default_rng(rows + lives)
    directory = tmp_path / "parts"
    online, starts = build(directory, family, rows, env), 1
    while not online.finished:
        keep, lose = rng.integers(1, 12, size=2)
        for number, _ in enumerate(online.run()):
            if number == keep:
                online.save(directory / "state")
            if number == keep + lose:  # what comes after the save is lost, some of it flushed to disk
                online.experience.flush()
                break
        if not online.finished:
            online, starts = build(directory, family, rows, env), starts + 1
    assert starts > 3
    assert_equal(outcome(online), outcome(whole))


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    online = build(tmp_path)
    events = online.run()
    for _ in range(20):
        next(events)
    online.save(tmp_path / "state")
    assert read_counters(tmp_path / "state") == online.counters
    state = read_online(tmp_path / "state")
    with pytest.raises(StateError, match="its seed is 4"):
        build(tmp_path).restore(state._replace(counters=replace(state.counters, seed=4)))
    with pytest.raises(StateError, match="other episodes"):
        build(tmp_path).restore(state._replace(order=(*state.order, 99)))
    with pytest.raises(ValueError, match="there were 1 rows"):
        build(tmp_path, rows=2)


def test_an_environment_that_does_not_repeat_itself_is_named(tmp_path: Path) -> None:
    online = build(tmp_path, env=lambda: Dots(noisy=True))
    for number, _ in enumerate(online.run()):
        if number == 5:
            break
    online.save(tmp_path / "state")
    with pytest.raises(
        RepetitionError, match=r"did not repeat itself: with the seed \d+ .* begin again with --restart"
    ):
        build(tmp_path, env=lambda: Dots(noisy=True))


def test_another_version_of_the_environment_is_noticed_at_its_first_step(tmp_path: Path) -> None:
    online = build(tmp_path, env=lambda: Dots(lives=2))
    for event in online.run():
        if event.clock >= 30:
            break
    online.save(tmp_path / "state")
    with pytest.raises(RepetitionError, match="step 0 of episode 1"):
        build(tmp_path, env=lambda: Dots(lives=3))


def test_experience_keeps_the_order_in_which_episodes_began(tmp_path: Path) -> None:
    """Rows end their episodes in any order; places, lengths and contents hold before and after a flush."""
    experience = open_experience(tmp_path, SPEC)
    gatherer = Gatherer([Dots() for _ in range(3)], experience, lambda number: number)
    gatherer.begin()
    assert len(experience) == 0
    rng = np.random.default_rng(0)
    seen: dict[int, list[int]] = {}
    for step in range(120):
        numbers = [game.current for game in gatherer.games()]
        actions = rng.integers(1, 3, 3)
        for number, action in zip(numbers, actions.tolist(), strict=True):
            seen.setdefault(number, []).append(action)
        gatherer.step(actions)
        if step in (30, 70):
            experience.flush()
        assert [episode.actions.tolist() for episode in experience] == [seen[number] for number in sorted(seen)]
        assert experience.lengths.tolist() == [len(seen[number]) for number in sorted(seen)]
    assert list(experience.order) != sorted(experience.order), "some ended before others that had begun earlier"
    again = Experience(experience.replay, experience.order[: len(experience.replay)])
    assert all(np.array_equal(again[i].observations, experience[i].observations) for i in again.order)


def test_a_schedule_must_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pace for the stage 'dynamics'"):
        build(tmp_path / "a", stages={"tokenizer": Pace()})
    with pytest.raises(ValueError, match="pace of 'joint'"):
        build(tmp_path / "b", stages={**SCHEDULE.stages, "joint": Pace()})
    with pytest.raises(ValueError, match="multiples of the 4"):
        build(tmp_path / "c", rows=4)


def test_a_batch_has_transitions_although_the_newest_episode_has_none(tmp_path: Path) -> None:
    """The count sampler takes all rows from the episode that was used least, even if that has one step."""
    online = build(tmp_path, "DeltaIRIS", env=Brief, warmup=60)
    for event in online.run():
        if event.name == "dynamics":
            assert event.values["reward"] >= 0
        if event.clock == 60:
            break
    assert 1 in online.experience.lengths[1:].tolist(), "there were such episodes"


class Brief(Dots):
    """Every other episode is over after one step."""

    number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.number += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        frame, reward, over, _, info = super().step(action)
        return frame, reward, over, self.number % 2 == 0, info
