"""Fit: works through the stages that a world model declares; it can be saved after any update and goes on exactly.

Random numbers are keyed by (seed, stage, update): a resumed fit draws what an uninterrupted one does, whatever the
caller drew in between, and the caller's generators are left alone.

Several ranks draw the same batches and share their rows, so that the batch, and with it the fit, is that of one
process. Random numbers inside a loss (dropout, sampled tokens) are drawn for each rank by itself: there, as many ranks
give the same weights again, and another number of them other ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.data.episode import Episode
from dreamenvs.data.samplers import Sampler, UniformSampler
from dreamenvs.data.segments import cut_segments, episode_lengths, whole_segment
from dreamenvs.fitting.distributed import ALONE, Ranks
from dreamenvs.fitting.optimizer import Measured, NonFiniteLossError, Updater
from dreamenvs.fitting.state import FitProgress, FitState, StateError, read_state, write_state
from dreamenvs.fitting.token_cache import prepare_episodes, unpack_tokens
from dreamenvs.protocols import Stage, WorldModel
from dreamenvs.types import Segment


class Metrics(NamedTuple):
    """What one update measured."""

    stage: str
    update: int
    """From 1 to `updates`."""
    updates: int
    loss: float
    parts: dict[str, float]
    gradient_norm: float
    learning_rate: float
    sampling_seconds: float
    update_seconds: float
    frames: int
    """Valid frames of the batch, on all ranks."""


class Fit:
    """A model on its way through its stages, on episodes of its world.

    With several ranks each has the same model, episodes and sampler, and calls `run`, `save` and `load` as all do.
    """

    def __init__(
        self,
        model: WorldModel[Any],
        episodes: Sequence[Episode],
        *,
        seed: int = 0,
        sampler: Sampler | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = model
        self.ranks = ranks
        self.stages = model.stages()
        self.stage = 0
        """How many stages are finished."""
        self.update = 0
        """How many updates of the stage under way are done."""
        self._module = cast(nn.Module, model)
        self._episodes = episodes
        self._lengths = episode_lengths(episodes)
        self._seed = seed
        self._sampler: Sampler = UniformSampler() if sampler is None else sampler
        self._updater: Updater | None = None
        self._seen: Sequence[Episode] = episodes
        for stage in self.stages:
            if stage.updates:
                ranks.rows(stage.rows)  # refuses more ranks than rows
        self._skip_finished()

    @property
    def finished(self) -> bool:
        return self.stage == len(self.stages)

    @property
    def progress(self) -> FitProgress:
        """Where the fit stands, and which fit it is."""
        return FitProgress(
            seed=self._seed,
            stages=tuple(stage.name for stage in self.stages),
            updates=tuple(stage.updates for stage in self.stages),
            episodes=len(self._lengths),
            steps=int(self._lengths.sum()),
            sampler=type(self._sampler).__name__,
            stage=self.stage,
            update=self.update,
        )

    def run(self) -> Iterator[Metrics]:
        """The remaining updates of all stages; whenever it has yielded, the fit may be saved or left for good."""
        while not self.finished:
            yield self._advance()

    def example(self) -> Segment:
        """A batch as the stage under way takes it, the first of its updates under uniform sampling; this rank's rows.

        Once the stage has begun, a rank may ask for it by itself.
        """
        stage = self._begin()
        chosen, starts = UniformSampler().draw(self._lengths + stage.final, stage.rows, stage.length, self._rng(0))
        return self._cut(stage, chosen, starts)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write or replace the state of this fit; if that fails, the old one stands. The first rank writes for all."""
        if self.ranks.first:
            counters = {name: torch.from_numpy(counts) for name, counts in self._sampler.counters().items()}
            moments = self._updater.export() if self._updater is not None else {}
            write_state(directory, FitState(self.progress, self._module.state_dict(), moments, counters))
        self.ranks.wait()

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Go on from a state that this very fit saved: the same model, data, seed and sampler."""
        state = read_state(directory)
        self._check(state, directory)
        self.stage, self.update = state.progress.stage, state.progress.update
        self._module.load_state_dict(state.weights)
        self._sampler.restore({name: counts.numpy() for name, counts in state.sampler.items()})
        self._updater = None
        if not self.finished and state.optimizer:
            # Tokens are prepared again, since the weights behind them are in the state.
            self._begin()
            cast(Updater, self._updater).restore(state.optimizer)

    def _advance(self) -> Metrics:
        stage = self._begin()
        begin = perf_counter()
        rng = self._rng(self.update)
        # Where final frames are shown, they take a place each.
        chosen, starts = self._sampler.draw(self._lengths + stage.final, stage.rows, stage.length, rng)
        segment = self._cut(stage, chosen, starts)
        frames = int(np.minimum(self._lengths[chosen] - starts, stage.length).sum())
        sampled = perf_counter()
        measured = self._updated(segment, self._draw_seed(rng), (chosen, starts))
        self.update += 1
        done = self.update
        self._skip_finished()
        return Metrics(
            stage=stage.name,
            update=done,
            updates=stage.updates,
            loss=measured.loss,
            parts=measured.parts,
            gradient_norm=measured.gradient_norm,
            learning_rate=measured.learning_rate,
            sampling_seconds=sampled - begin,
            update_seconds=perf_counter() - sampled,
            frames=frames,
        )

    def _updated(self, segment: Segment, seed: int, places: tuple[Any, Any]) -> Measured:
        updater = cast(Updater, self._updater)
        self._module.train()
        device = self._device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            try:
                return updater(segment, self.update)
            except NonFiniteLossError as error:
                rows = ", ".join(f"{episode}:{start}" for episode, start in zip(*places, strict=True))
                raise NonFiniteLossError(f"{error}, on the batch (episode:first step) {rows}") from None

    def _begin(self) -> Stage:
        """The stage under way, with its optimiser and what it sees at hand."""
        stage = self.stages[self.stage]
        if self._updater is None:
            self._seen = self._episodes
            if stage.begin is not None:
                stage.begin(whole_segment(episode) for episode in self._episodes)
            if stage.prepare is not None:
                self._module.eval()
                self._seen = prepare_episodes(stage.prepare, self._episodes, self._device)
                self.ranks.wait()  # each prepares all episodes, and one may be slower
            self.ranks.follow_first([*self._module.parameters(), *self._module.buffers()])
            self._updater = Updater(stage, tuple(self._module.buffers()), self.ranks)
        return stage

    def _skip_finished(self) -> None:
        while not self.finished and self.update >= self.stages[self.stage].updates:
            self.stage, self.update, self._updater = self.stage + 1, 0, None

    def _cut(self, stage: Stage, chosen: Any, starts: Any) -> Segment:
        # Padding that all rows would share is left out: where episodes are short it would be most of the work.
        length = min(stage.length, int((self._lengths[chosen] + stage.final - starts).max()))
        own = self.ranks.rows(len(chosen))
        segment = cut_segments(self._seen, chosen[own], starts[own], length, final=stage.final)
        return tree.to(segment if stage.prepare is None else unpack_tokens(segment), self._device)

    def _rng(self, update: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, self.stage, update))

    def _draw_seed(self, rng: np.random.Generator) -> int:
        """Of this rank's random numbers in the loss; those of the first are the same however many there are."""
        return int(rng.integers(2**62, size=self.ranks.count)[self.ranks.number])

    @property
    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    def _check(self, state: FitState, directory: str | os.PathLike[str]) -> None:
        """Refuse the state of another fit."""
        own, found = self.progress, state.progress
        for name in ("seed", "stages", "updates", "episodes", "steps", "sampler"):
            if getattr(own, name) != getattr(found, name):
                values = f"{getattr(found, name)!r}, not {getattr(own, name)!r}"
                raise StateError(f"{directory} is the state of another fit: its {name} is {values}")
        in_range = 0 <= found.stage < len(own.stages) and 0 <= found.update < own.updates[found.stage]
        if not in_range and (found.stage, found.update) != (len(own.stages), 0):
            raise StateError(
                f"{directory} says stage {found.stage}, update {found.update}, which this fit does not have"
            )
        weights: dict[str, Tensor] = self._module.state_dict()
        for name in sorted(weights.keys() | state.weights.keys()):
            shapes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (state.weights, weights)]
            if shapes[0] != shapes[1]:
                raise StateError(f"{directory} is of another model: {name!r:.80} is {shapes[0]}, not {shapes[1]}")
