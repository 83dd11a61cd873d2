"""RowCollector: steps of all rows of a source, taken by a Q agent and kept as tensors."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from dreamenvs.agents.q_agent import EpsilonGreedy, LastView, QAgent, previous_views
from dreamenvs.agents.row_source import RowSource
from dreamenvs.random import Noise, wrap_seed

RECENT = 300
"""The episodes whose mean return is reported."""

_ROW_STREAM = -1  # the step of the seed's own noise that makes the seeds of rows


class Steps(NamedTuple):
    """T steps of B rows."""

    views: Tensor  # (B, T + 1, …), the ones before each step, behind the one before the first of them
    fresh: Tensor  # (B, T) bool, whether the view before the step is an episode's first one
    actions: Tensor  # (B, T) int64
    rewards: Tensor  # (B, T) float32, of the very actions
    terminated: Tensor  # (B, T) bool
    truncated: Tensor  # (B, T) bool, never together with terminated
    following: Tensor  # (B, T), the best Q value after each step; of the last view where the episode was truncated


class RowCollector:
    """Acts ε-greedily in all rows of a source, from call to call without a break.

    Args:
        agent: What acts, as it is at the time.
        source: The rows.
        seed: Of the random actions.
    """

    def __init__(self, agent: QAgent, source: RowSource, seed: int = 0) -> None:
        self.agent, self.source = agent, source
        self.steps = 0
        """All that were taken, over all rows."""
        self.episodes = 0
        """All that ended."""
        self._memory = agent.begin(source.num_rows)
        device = self._memory.fresh.device
        key = torch.tensor([wrap_seed(seed)])
        self._row_seeds = Noise(key, torch.tensor([_ROW_STREAM])).bits(source.num_rows)[0].to(device)
        self._returns = torch.zeros(source.num_rows, device=device)
        self._recent: deque[float] = deque(maxlen=RECENT)

    @torch.no_grad()
    def collect(self, length: int, epsilon: float) -> Steps:
        """The next `length` steps of every row, with a share ε of random actions."""
        choice, views = EpsilonGreedy(epsilon), self.source.observe()
        seen = views.new_empty((len(views), length + 1, *views.shape[1:]))
        seen[:, 0] = self._memory.view
        lines = []
        values = self._values(views)
        for step in range(length):
            seen[:, step + 1] = views
            fresh = self._memory.fresh
            noise = Noise(self._row_seeds, torch.full_like(self._row_seeds, self.steps // len(views)))
            actions = choice.sample(values, noise)
            rewards, terminated, truncated, final = self.source.step(actions)
            ended = terminated | truncated
            self._memory = LastView(seen[:, step + 1], ended)
            views = self.source.observe()
            values = self._values(views)
            following = values.amax(1)
            if final is not None:
                last = self.agent.network(seen[truncated, step + 1], final)
                following = following.masked_scatter(truncated, last.amax(1))
            lines.append((fresh, actions, rewards, terminated, truncated, following))
            self._count(rewards, ended)
        # A copy, since a view would keep all of this update's memory alive.
        self._memory = LastView(self._memory.view.clone(), self._memory.fresh)
        return Steps(seen, *(torch.stack(parts, 1) for parts in zip(*lines, strict=True)))

    def mean_return(self) -> float:
        """The mean return of the last 300 episodes that ended; NaN before the first one."""
        return sum(self._recent) / len(self._recent) if self._recent else math.nan

    def _values(self, views: Tensor) -> Tensor:
        """Q values (B, A) of the current views."""
        values: Tensor = self.agent.network(previous_views(views, self._memory), views)
        return values

    def _count(self, rewards: Tensor, ended: Tensor) -> None:
        self.steps += len(rewards)
        self._returns += rewards
        if bool(ended.any()):
            finished = self._returns[ended].tolist()
            self._recent.extend(finished)
            self.episodes += len(finished)
            self._returns = self._returns.masked_fill(ended, 0.0)
