"""Dream: a batch of imagined episodes, its rows, with their randomness. All environments are thin shells around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from dreamenvs import tree
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise, wrap_seed
from dreamenvs.types import Segment

StateT = TypeVar("StateT")
ResultT = TypeVar("ResultT")
ObservationType = Literal["rgb", "latent", "tokens"]

MIN_ROWS = 8
"""Matrix products over few rows, or over rows that do not come in fours, take other code paths in BLAS and round
differently; so a batch is padded to such a number, and a row has the same future alone and among others."""

_RESET_DRAW = 1_000_003  # far from the draws that models use


class Rows(NamedTuple, Generic[StateT]):
    """All there is to know of a batch of imagined episodes; a value, so a snapshot is a copy of it."""

    state: StateT
    seeds: Tensor  # (B,) int64
    clocks: Tensor  # (B,) int64: random events since the row was seeded, over all its episodes
    ages: Tensor  # (B,) int64: imagined steps in the current episode


class Transition(NamedTuple):
    """What one step of a dream gives besides the next observation."""

    rewards: Tensor  # (B,) float32
    terminated: Tensor  # (B,) bool
    truncated: Tensor  # (B,) bool: the horizon is reached, or the row failed
    failed: Tensor  # (B,) bool: the model produced NaN or infinity; the row shows its last finite state


def padded_rows(count: int) -> int:
    """The number of rows that a batch of `count` is computed with."""
    return max(MIN_ROWS, _in_fours(count))


def _in_fours(count: int) -> int:
    return -(-count // 4) * 4


@torch.inference_mode()
def observe_contexts(model: WorldModel[StateT], contexts: Segment, batch: int = 16) -> StateT:
    """The states in which imagined episodes start, one for each context. Done once, so a reset encodes no frame."""
    count = contexts.observations.shape[0]
    if count == 0:
        raise ValueError("a dream needs at least one start context, and there is none")
    return without_padding(contexts, lambda part: _observe_parts(model, part, batch))


def _observe_parts(model: WorldModel[StateT], contexts: Segment, batch: int) -> StateT:
    count = len(contexts.rewards)
    # Every part has the same size, so that a start does not depend on how many others there are.
    indices = torch.arange(-(-count // batch) * batch, device=contexts.observations.device) % count
    parts = [model.observe(tree.take_rows(contexts, rows)) for rows in torch.split(indices, batch)]
    return tree.map(lambda leaf: leaf[:count].clone(), tree.concatenate(parts))


def without_padding(contexts: Segment, function: Callable[[Segment], ResultT]) -> ResultT:
    """The rows of what a function makes of contexts that are padded on the left, seeing each without its padding.

    An episode's first frames have few before them: those with as many are taken together.
    """
    known = contexts.valid.sum(1)
    if bool(contexts.valid.all()):
        return function(contexts)
    order, parts = [], []
    for length in torch.unique(known).tolist():
        rows = (known == length).nonzero()[:, 0]
        order.append(rows)
        parts.append(function(tree.map(lambda leaf: leaf[:, -length:], tree.take_rows(contexts, rows))))  # noqa: B023
    return tree.take_rows(tree.concatenate(parts), torch.cat(order).argsort())


class Dream(Generic[StateT]):
    """`num_rows` imagined episodes of one world model, advanced together.

    Row i depends on its own seed, actions and history only: not on the other rows, nor on how many there are.
    """

    def __init__(
        self, model: WorldModel[StateT], starts: StateT, *, num_rows: int, horizon: int, temperature: float = 1.0
    ) -> None:
        if num_rows < 1:
            raise ValueError(f"a dream needs at least one row, not num_rows={num_rows}")
        if horizon < 1:
            raise ValueError(f"the horizon is the number of imagined steps before a cut, at least 1, not {horizon}")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number, 0 or above, not {temperature}")
        self.model = model
        self.num_rows = num_rows
        self.horizon = horizon
        self.temperature = temperature
        self._starts = starts
        first = next(tree.leaves(starts))
        self._num_starts = first.shape[0]
        self._device = first.device
        self._padded = padded_rows(num_rows)
        self._rows: Rows[StateT] | None = None

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def rows(self) -> Rows[StateT]:
        """The live rows, padding included; owned by the dream, so clone before keeping them."""
        if self._rows is None:
            raise RuntimeError("this dream has no rows yet: call reset first")
        return self._rows

    @torch.inference_mode()
    def reset(self, seeds: list[int]) -> None:
        """Seed every row and begin its first episode."""
        if len(seeds) != self.num_rows:
            raise ValueError(f"a dream of {self.num_rows} rows takes {self.num_rows} seeds, not {len(seeds)}")
        zeros = torch.zeros(self._padded, dtype=torch.int64, device=self._device)
        self._rows = Rows(tree.take_rows(self._starts, zeros), zeros, zeros, zeros)
        everywhere = torch.arange(self._padded, device=self._device)
        self.seed_rows(everywhere[: self.num_rows], seeds)
        self.reset_rows(everywhere)

    @torch.inference_mode()
    def seed_rows(self, indices: Tensor, seeds: list[int]) -> None:
        """Give the rows (N,) new randomness, as if they had never drawn; any Python integer is a seed."""
        rows = self.rows
        keys = torch.tensor([wrap_seed(seed) for seed in seeds], dtype=torch.int64, device=self._device)
        self._rows = rows._replace(
            seeds=rows.seeds.index_copy(0, indices, keys), clocks=rows.clocks.index_fill(0, indices, 0)
        )

    @torch.inference_mode()
    def reset_rows(self, indices: Tensor) -> None:
        """Begin a new episode in the rows (N,), with the row's own randomness."""
        rows = self.rows
        noise = Noise(rows.seeds[indices], rows.clocks[indices])
        starts = noise.integers(self._num_starts, draw=_RESET_DRAW)
        tree.put_rows_(rows.state, indices, tree.take_rows(self._starts, starts))
        clocks = rows.clocks.index_add(0, indices, torch.ones_like(indices))
        self._rows = rows._replace(clocks=clocks, ages=rows.ages.index_fill(0, indices, 0))

    def step(self, actions: Tensor, resetting: Tensor | None = None) -> Transition:
        """Advance every row by one action; rows in `resetting` (N,) begin a new episode instead, whatever theirs is."""
        # Autograd cannot keep a tensor that was made in inference mode, and a learner may want to: copies can be kept.
        return tree.map(lambda leaf: leaf[: self.num_rows].clone(), self._step(actions, resetting))

    @torch.inference_mode()
    def _step(self, actions: Tensor, resetting: Tensor | None) -> Transition:
        rows = self.rows
        noise = Noise(rows.seeds, rows.clocks, self.temperature)
        state, outcome = self.model.step(rows.state, self._pad(actions), noise)
        rewards, terminated = outcome.rewards, outcome.terminated
        failed = ~(outcome.finite & rewards.isfinite())
        failed[self.num_rows :] = False
        if resetting is not None:
            failed = failed.index_fill(0, resetting, False)
        if failed.any():
            lost = failed.nonzero()[:, 0]
            state = tree.put_rows(state, lost, tree.take_rows(rows.state, lost))
            rewards, terminated = rewards.masked_fill(failed, 0.0), terminated & ~failed
        ages = rows.ages + 1
        truncated = (ages >= self.horizon) | failed
        clocks = rows.clocks + 1
        if resetting is not None:
            clocks[resetting] -= 1
            rewards, terminated = rewards.index_fill(0, resetting, 0.0), terminated.index_fill(0, resetting, False)
            truncated = truncated.index_fill(0, resetting, False)
        self._rows = Rows(state, rows.seeds, clocks, ages)
        if resetting is not None:
            self.reset_rows(resetting)
        return Transition(rewards, terminated, truncated, failed)

    @torch.no_grad()
    def observation(self, kind: ObservationType, indices: Tensor | None = None) -> Tensor:
        """The current frame of all rows, or of the rows (N,): (B, H, W, C) uint8, (B, F) float32 or (B, K) int64.

        The tensor is new at every call.
        """
        state, count = self.rows.state, self.num_rows
        if indices is not None:
            count = len(indices)
            padding = indices[:1].expand(padded_rows(count) - count)
            state = tree.take_rows(state, torch.cat([indices, padding]))
        if kind == "rgb":
            # Pixels cost far more than all the rest, so no more rows are decoded than rounding alike asks for.
            few = tree.map(lambda leaf: leaf[: _in_fours(count)], state)
            return self.model.decode(few)[:count].permute(0, 2, 3, 1).contiguous()
        if kind == "latent":
            return self.model.features(state)[:count]
        return self.model.tokens(state)[:count].clone()

    @torch.inference_mode()
    def snapshot(self) -> Rows[StateT]:
        """An exact copy of the rows, randomness included."""
        return tree.map(lambda leaf: leaf[: self.num_rows].clone(), self.rows)

    @torch.inference_mode()
    def restore(self, snapshot: Rows[StateT], into: Tensor | None = None, source: Tensor | None = None) -> None:
        """Put the snapshot's rows back, or its rows `source` (N,) into the dream's rows `into` (N,)."""
        whole = torch.arange(self.num_rows, device=self._device)
        into = whole if into is None else into.to(self._device)
        source = into if source is None else source.to(self._device)
        if len(into) != len(source):
            raise ValueError(f"restore got {len(into)} rows to fill and {len(source)} rows to take")
        held = len(snapshot.seeds)
        for name, indices, limit in (("into", into, self.num_rows), ("source", source, held)):
            if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < limit:
                raise ValueError(f"restore {name}={indices.tolist()} goes beyond the {limit} rows there are")
        self._rows = tree.put_rows(self.rows, into, tree.take_rows(tree.to(snapshot, self._device), source))

    def _pad(self, actions: Tensor) -> Tensor:
        # Always a copy: a state may keep its last action, and rows are replaced in place when they are reset.
        return torch.cat([actions, actions[:1].expand(self._padded - self.num_rows, *actions.shape[1:])])
