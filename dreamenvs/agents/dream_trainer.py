"""DreamTrainer: rows of one dream that continue from update to update, from the start contexts alone.

A dream has some hundred start contexts. Were every update to start from them anew, the agent would never see what comes
later than the horizon; so rows dream on where the last update left them, until they end or grow too old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dreamenvs import tree
from dreamenvs.agents.imagination import Moment, Trajectory, evaluating, start_imagination
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import Agent
from dreamenvs.dream import observe_contexts
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise, wrap_seed
from dreamenvs.types import Segment

START_DRAW, AGE_DRAW = 3_000_017, 3_000_018


class DreamTrainer:
    """A learner in one dream.

    Args:
        learner: What learns; its config says how many rows there are.
        model: The world model, which stays as it is.
        contexts: Real segments that dreams start from.
        limit: Imagined steps after which a dream is left for a new one: in long dreams an agent learns to live off the
            model's errors.
    """

    def __init__(self, learner: Learner, model: WorldModel[Any], contexts: Segment, *, limit: int = 100) -> None:
        if limit < 1:
            raise ValueError(f"the limit of a dream is at least 1 step, not {limit}")
        self.learner, self.model, self.contexts, self.limit = learner, model, contexts, limit
        self.update = 0
        """How many updates are done."""
        rows = learner.config.rows
        key = torch.tensor([wrap_seed(learner.seed)]), torch.tensor([-1])
        self._seeds = Noise(*key).bits(rows)[0].to(contexts.rewards.device)
        with evaluating(model):
            self._starts = observe_contexts(model, contexts)
        everywhere = torch.arange(rows, device=self._seeds.device)
        self._moment = self._fresh(everywhere)
        # Rows begin at all ages, or all would be left in the same update.
        self._ages = self._noise().integers(limit, AGE_DRAW)
        self._returns = torch.zeros(rows, device=self._seeds.device)
        self._whole = torch.zeros(rows, dtype=torch.bool, device=self._seeds.device)

    def advance(self) -> dict[str, float]:
        """One update of the agent; `finished_return` is the mean of the dreams that ended in it, where any did."""
        config = self.learner.config
        trajectory, moment, metrics = self.learner.learn(self.model, self._moment, self.update)
        self.update += 1
        self._returns += trajectory.rewards.sum(1)
        self._ages += config.horizon
        ended = ~_alive(trajectory) | (self._ages >= self.limit)
        if bool((ended & self._whole).any()):
            metrics["finished_return"] = float(self._returns[ended & self._whole].mean())
        self._moment = self._renew(moment, ended.nonzero()[:, 0])
        self._returns, self._ages = self._returns.masked_fill(ended, 0.0), self._ages.masked_fill(ended, 0)
        self._whole |= ended
        return metrics

    def tensors(self) -> dict[str, Tensor]:
        """The rows, for `restore`; the learner has its own."""
        own = {"update": torch.tensor(self.update), "ages": self._ages, "returns": self._returns, "whole": self._whole}
        return own | {f"row.{place}": leaf.clone() for place, leaf in enumerate(tree.leaves(self._moment))}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, of the same dream and the same config."""
        leaves = list(tree.leaves(self._moment))
        wanted = {"update", "ages", "returns", "whole", *(f"row.{place}" for place in range(len(leaves)))}
        if wanted != set(tensors):
            raise ValueError("these are the rows of another dream or another agent")
        for place, leaf in enumerate(leaves):
            found = tensors[f"row.{place}"]
            if found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise ValueError(f"these are rows of {tuple(found.shape)} {found.dtype}, not {tuple(leaf.shape)}")
        replaced: Iterator[Tensor] = (tensors[f"row.{place}"].to(leaf.device) for place, leaf in enumerate(leaves))
        self._moment = tree.map(lambda leaf: next(replaced).clone(), self._moment)
        self.update = int(tensors["update"])
        self._ages, self._returns, self._whole = (tensors[name].clone() for name in ("ages", "returns", "whole"))

    @torch.no_grad()
    def _renew(self, moment: Moment[Any, Any], rows: Tensor) -> Moment[Any, Any]:
        return tree.put_rows(moment, rows, self._fresh(rows)) if len(rows) else moment

    @torch.no_grad()
    def _fresh(self, rows: Tensor) -> Moment[Any, Any]:
        """New dreams for the rows (N,)."""
        agent: Agent[Any] = self.learner.agent
        chosen = self._noise().integers(len(self.contexts.rewards), START_DRAW)[rows]
        if next(tree.leaves(agent.begin(1)), None) is None:
            return Moment(tree.take_rows(self._starts, chosen), agent.begin(len(rows)))
        return start_imagination(self.model, agent, tree.take_rows(self.contexts, chosen), self.learner.config.warm_up)

    def _noise(self) -> Noise:
        return Noise(self._seeds, torch.full_like(self._seeds, self.update))


def _alive(trajectory: Trajectory) -> Tensor:
    """(B,) whether a row can go on."""
    return trajectory.valid[:, -1] & ~trajectory.terminated[:, -1]
