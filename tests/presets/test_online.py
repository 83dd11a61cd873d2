"""The loops of the papers: as many updates as their epochs and steps have, and environments as they were played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dreamenvs.fitting.schedule import Schedule
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.two_stage import DynamicsOptimization

pytest.importorskip("tyro")


@pytest.fixture
def presets() -> Any:
    from dreamenvs.presets import online as online_presets

    return online_presets


def naive_epochs(
    epochs: int, starts: dict[str, int], updates: dict[str, int], first: dict[str, int] | None = None
) -> dict[str, int]:
    """Epoch by epoch, as the papers put it: a part is updated from the epoch after `starts` on."""
    totals = dict.fromkeys(starts, 0)
    for epoch in range(1, epochs + 1):
        for part, start in starts.items():
            if epoch > start:
                totals[part] += (first or updates)[part] if epoch == 1 else updates[part]
    return totals


def totals(schedule: Schedule) -> dict[str, int]:
    stages = {name: pace.due(schedule.end) for name, pace in schedule.stages.items()}
    return stages | {"agent": schedule.agent.due(schedule.end)}


def test_epochs_become_paces(presets: Any) -> None:
    starts = {"tokenizer": 5, "dynamics": 25, "agent": 50}
    assert totals(presets.IRIS_LOOP) == naive_epochs(600, starts, dict.fromkeys(starts, 200))
    assert totals(presets.REM_LOOP) == naive_epochs(600, starts, {"tokenizer": 200, "dynamics": 200, "agent": 100})
    starts = {"tokenizer": 5, "dynamics": 50, "agent": 75}
    atari = {"tokenizer": 200, "dynamics": 120, "agent": 200}
    assert totals(presets.DELTA_IRIS_ATARI_LOOP) == naive_epochs(600, starts, atari)
    first = {"tokenizer": 5000, "dynamics": 2500, "agent": 500}
    crafter = naive_epochs(1000, dict.fromkeys(starts, 0), dict.fromkeys(starts, 500), first)
    assert totals(presets.DELTA_IRIS_CRAFTER_LOOP) == crafter
    assert totals(presets.DRAMA_LOOP) == {"world_model": 98_968, "agent": 98_968}
    assert totals(presets.STORM_LOOP) == {"world_model": 100_976, "agent": 100_976}


def test_an_epoch_is_a_round(presets: Any) -> None:
    """Within every round as many updates are due as the paper makes in the epoch."""
    loop, epoch, clock = presets.DELTA_IRIS_ATARI_LOOP, 0, 0
    before = dict.fromkeys(("tokenizer", "dynamics", "agent"), 0)
    while clock < loop.end:
        clock = loop.next(clock)
        if clock < loop.warmup:
            continue  # the first epoch, of 2,000 random steps
        epoch += 1
        now = {name: pace.due(clock) for name, pace in loop.stages.items()} | {"agent": loop.agent.due(clock)}
        made = {name: now[name] - before[name] for name in now}
        assert made == {
            "tokenizer": 200 * (epoch > 5),
            "dynamics": 120 * (epoch > 50),
            "agent": 200 * (epoch > 75),
        }, epoch
        before = now
    assert epoch == 600


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("name", ["small", "paper"])
def test_every_family_has_its_presets(family: str, name: str, presets: Any) -> None:
    for env in ("ALE/Pong-v5", "Crafter"):
        preset = presets.find_preset(family, name, env)
        stages = {JointOptimization: {"world_model"}, DynamicsOptimization: {"dynamics"}}
        assert set(preset.schedule.stages) == stages.get(type(preset.config.optimization), {"tokenizer", "dynamics"})
        sizes = (preset.schedule.steps, preset.schedule.chunk, preset.schedule.warmup)
        assert not any(size % preset.num_envs for size in sizes)
        assert set(presets.build_samplers(preset, ("a", "b"))) == {"a", "b"}


def test_atari_is_played_as_the_papers_play_it(presets: Any) -> None:
    pytest.importorskip("ale_py")
    learn, test = presets.sources("ALE/Pong-v5", presets.find_preset("IRIS", "paper", "ALE/Pong-v5"))
    assert learn.kwargs["repeat_action_probability"] == test.kwargs["repeat_action_probability"] == 0.0
    assert (learn.options["terminal_on_life_loss"], test.options["terminal_on_life_loss"]) == (True, False)
    assert (learn.options["noop_max"], test.options["noop_max"]) == (30, 1)
    assert learn.options["max_episode_steps"] == 5_000
    drama = presets.sources("ALE/Pong-v5", presets.find_preset("STEPVQ", "paper", "ALE/Pong-v5"))[0]
    assert drama.options["noop_max"] == 0
    sticky = replace(presets.find_preset("STEPVQ", "paper", "ALE/Pong-v5"), protocol=presets.Protocol(sticky=0.25))
    assert presets.sources("ALE/Pong-v5", sticky)[1].kwargs["repeat_action_probability"] == 0.25
    assert len(set(map(str, presets.sources("MinAtar/Breakout-v1", sticky)))) == 1
