"""Rows of episodes, dreamed and real, and the steps that are collected in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.q_agent import QAgentConfig, build_q_agent
from dreamenvs.agents.row_collector import RowCollector
from dreamenvs.agents.row_source import DreamRows, RowStep, VectorRows
from dreamenvs.dream import Dream, observe_contexts
from tests.toy_worlds import CountingWorld, counting_contexts


def test_a_dreams_rows_begin_anew_in_the_step_that_ends_them() -> None:
    world = CountingWorld(limit=5)
    dream = Dream(world, observe_contexts(world, counting_contexts()), num_rows=3, horizon=4)
    rows = DreamRows(dream, "latent", seed=0)
    dream.restore(dream.snapshot()._replace(ages=torch.zeros(3, dtype=torch.int64)))
    actions = torch.tensor([0, 1, 2])
    seen = [rows.observe()[:, 0].tolist()]
    steps: list[RowStep] = []
    for _ in range(4):
        steps.append(rows.step(actions))
        seen.append(rows.observe()[:, 0].tolist())
    assert seen == [[0, 0, 0], [0, 1, 2], [0, 2, 4], [0, 3, 0], [0, 0, 2]]
    assert [step.terminated.tolist() for step in steps] == [[False] * 3] * 2 + [[False, False, True], [False] * 3]
    assert [step.truncated.tolist() for step in steps] == [[False] * 3] * 3 + [[True, True, False]]
    assert [step.final is None for step in steps] == [True, True, True, False]
    assert steps[3].final.tolist() == [[0, 0], [4, 1]]  # type: ignore[union-attr]
    assert steps[2].rewards.tolist() == [0, 1, 2]


class Clock(gymnasium.Env[Any, Any]):
    """Shows the number of steps; terminates at 3, and is truncated at 2 where the last action was 1."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._show(), float(action), self.time == 3, self.time == 2 and action == 1, {}

    def _show(self) -> Any:
        return np.array([self.time], np.float32)


def test_an_environments_rows_begin_anew_in_the_step_that_ends_them() -> None:
    rows = VectorRows(SyncVectorEnv([Clock] * 2, autoreset_mode=AutoresetMode.SAME_STEP), "latent")
    actions = torch.tensor([0, 1])
    first = rows.observe()
    steps = [rows.step(actions) for _ in range(3)]
    assert first.tolist() == [[0], [0]]  # what was given stays as it was
    assert [step.terminated.tolist() for step in steps] == [[False, False], [False, False], [True, False]]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [False, True], [False, False]]
    assert steps[1].final.tolist() == [[2]]  # type: ignore[union-attr]
    assert steps[0].final is steps[2].final is None
    assert rows.observe().tolist() == [[0], [1]]
    with pytest.raises(ValueError, match="SAME_STEP"):
        VectorRows(SyncVectorEnv([Clock] * 2), "latent")


def test_steps_know_their_views_and_what_followed() -> None:
    spec = replace(agent_spec(CountingWorld(), "latent"), num_features=1)
    agent = build_q_agent(QAgentConfig(), spec)
    torch.nn.init.normal_(agent.network.values.weight)
    rows = VectorRows(SyncVectorEnv([Clock] * 2, autoreset_mode=AutoresetMode.SAME_STEP), "latent")
    collector = RowCollector(agent, rows)
    steps = collector.collect(40, epsilon=0.5)
    last, ended = steps.views[:, -1], steps.terminated[:, -1] | steps.truncated[:, -1]
    steps = collector.collect(40, epsilon=0.5)  # from where the first ones got to
    views, fresh = steps.views, steps.fresh
    assert torch.equal(views[:, 0], last)
    assert torch.equal(fresh[:, 0], ended)
    assert torch.equal(fresh[:, 1:], (steps.terminated | steps.truncated)[:, :-1])
    assert torch.equal(fresh, views[:, 1:, 0] == 0)
    assert steps.truncated.any()
    for row, step in product(range(2), range(39)):
        now = views[row, step + 1]
        after = now + 1 if steps.truncated[row, step] else views[row, step + 2]
        expected = agent.network(now[None], after[None]).max()
        assert steps.terminated[row, step] or torch.allclose(steps.following[row, step], expected, atol=1e-5)
