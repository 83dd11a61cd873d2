"""Online: collects, fits the world model and trains an agent in its dreams, over and over; it goes on bit for bit.

What is done next follows from counters alone, and random numbers from (seed, purpose, counter): a run that was saved
after any event and goes on in another process does what an uninterrupted one does. Between rounds the agent forgets
what it has in mind of the real episodes, for it was computed with other weights, and looks at their last frames anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.data.collector import Gatherer
from dreamenvs.data.growing_replay import OpenEpisode
from dreamenvs.data.samplers import Sampler, UniformSampler
from dreamenvs.data.segments import cut_segments, start_contexts, whole_segment
from dreamenvs.fitting.agent import Actor, DreamLearner
from dreamenvs.fitting.online_state import Counters, OnlineState, write_online
from dreamenvs.fitting.optimizer import Updater
from dreamenvs.fitting.schedule import Pace, Schedule
from dreamenvs.fitting.state import StateError
from dreamenvs.models.actions import sample_actions, zero_actions
from dreamenvs.protocols import Stage, WorldModel
from dreamenvs.types import Segment

_STAGES, _CONTEXTS, _ACTIONS, _GAMES = range(4)  # the purposes of random numbers
_ATTEMPTS = 100


class Event(NamedTuple):
    """What was done last."""

    name: str
    """`collect`, the name of a stage, `agent` or `evaluation`."""
    clock: int
    number: int
    """Which one of its name it was, from 1; of `collect`, how many steps there are."""
    values: dict[str, float]
    seconds: float


class Online:
    """A run: everything that changes is in its parts, and `save` writes all of it."""

    def __init__(
        self,
        model: WorldModel[Any],
        learner: DreamLearner,
        actor: Actor,
        gatherer: Gatherer,
        schedule: Schedule,
        *,
        starts: tuple[int, int],
        seed: int = 0,
        samplers: Mapping[str, Sampler] | None = None,
        evaluate: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        """`starts` are the rows and steps of the contexts that the learner's dreams start from.

        `evaluate` is given the number of the evaluation and says what it measured, as JSON.
        """
        self.model, self.learner, self.actor, self.schedule = model, learner, actor, schedule
        self.gatherer, self.experience = gatherer, gatherer.experience
        self.curve: list[dict[str, Any]] = []
        self._module = cast(nn.Module, model)
        self._stages = [_paced(stage, schedule) for stage in model.stages()]
        self._paces = [schedule.stages[stage.name] for stage in self._stages]
        self._updaters = [Updater(stage, tuple(self._module.buffers())) for stage in self._stages]
        self._shown: dict[str, int] = {}
        self._samplers = {stage.name: (samplers or {}).get(stage.name) or UniformSampler() for stage in self._stages}
        self._starts, self._evaluate = starts, evaluate
        names = tuple(stage.name for stage in self._stages)
        self.counters = Counters(seed=seed, stages=names, updates=(0,) * len(names))
        if unknown := sorted(set(schedule.stages) - set(names)):
            raise ValueError(f"the schedule has a pace of {unknown[0]!r}; the model's stages are {', '.join(names)}")
        if schedule.chunk % len(gatherer) or schedule.steps % len(gatherer) or schedule.warmup % len(gatherer):
            raise ValueError(f"steps, warmup and chunk must be multiples of the {len(gatherer)} real environments")

    @property
    def finished(self) -> bool:
        return self.counters.clock == self.schedule.end and self._due() is None

    def run(self) -> Iterator[Event]:
        """The remaining events; whenever it has yielded, the run may be saved or left for good."""
        if not self.gatherer.begun:
            self.gatherer.begin()
        while not self.finished:
            begin = perf_counter()
            name, number, values = (self._due() or self._collect)()
            yield Event(name, self.counters.clock, number, values, perf_counter() - begin)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write or replace the state of this run; if that fails, the old one stands."""
        self.experience.flush()  # the replay may be ahead of the state, never behind it
        moments = {
            f"{updater.stage.name}.{key}": value
            for updater in self._updaters
            for key, value in updater.export().items()
        }
        counts = {
            f"{name}.{key}": torch.from_numpy(value)
            for name, sampler in self._samplers.items()
            for key, value in sampler.counters().items()
        }
        state = OnlineState(
            counters=self.counters,
            curve=self.curve,
            weights=self._module.state_dict(),
            optimizer=moments,
            learner=self.learner.tensors(),
            samplers=counts,
            order=self.experience.order,
            games=self.gatherer.games(),
        )
        write_online(directory, state)

    def restore(self, state: OnlineState) -> None:
        """Go on from a state that this very run saved; the experience is already that of the state."""
        own, found = self.counters, state.counters
        for name in ("seed", "stages"):
            if getattr(own, name) != getattr(found, name):
                raise StateError(f"the state is of another run: its {name} is {getattr(found, name)!r}")
        if self.experience.order != state.order:
            raise StateError("the replay holds other episodes than those that the state was saved with")
        self._module.load_state_dict(state.weights)
        for updater in self._updaters:
            updater.restore(_part(state.optimizer, updater.stage.name))
        for name, sampler in self._samplers.items():
            sampler.restore({key: value.numpy() for key, value in _part(state.samplers, name).items()})
        # Copies, since what a file gives need not be aligned as torch's own memory is.
        self.learner.restore({name: tensor.clone() for name, tensor in state.learner.items()})
        self.gatherer.repeat(state.games)
        self.counters, self.curve = found, list(state.curve)

    def _due(self) -> Callable[[], tuple[str, int, dict[str, float]]] | None:
        """What is due before more is collected."""
        counters = self.counters
        if not len(self.experience):
            return None
        for index, (pace, done) in enumerate(zip(self._paces, counters.updates, strict=True)):
            if done < pace.due(counters.clock):
                return lambda: self._fit(index)
        if counters.agent_updates < self.schedule.agent.due(counters.clock):
            return self._learn
        if self._evaluate is not None and counters.evaluations < self.schedule.evaluations(counters.clock):
            return self._measure
        return None

    def _fit(self, index: int) -> tuple[str, int, dict[str, float]]:
        """One update of a stage of the world model."""
        stage, update = self._stages[index], self.counters.updates[index]
        rng = self._rng(_STAGES, index, update)
        self._begin(stage)
        segment = self._draw(stage, rng)
        if stage.prepare is not None:
            self._module.eval()
            with torch.no_grad():
                tokens = stage.prepare(segment.observations.flatten(0, 1))
            segment = segment._replace(observations=tokens.reshape(*segment.rewards.shape, -1))
        self._module.train()
        with _seeded(int(rng.integers(2**62)), self._device):
            measured = self._updaters[index](segment, update)
        self._module.eval()
        updates = tuple(done + (place == index) for place, done in enumerate(self.counters.updates))
        self.counters = replace(self.counters, updates=updates)
        values = {"loss": measured.loss, "gradient_norm": measured.gradient_norm, **measured.parts}
        return stage.name, update + 1, values

    def _begin(self, stage: Stage) -> None:
        """Show a stage the episodes that it has not been shown; the last one may still grow, and is shown again."""
        shown = self._shown.get(stage.name, 0)
        if stage.begin is not None and shown < len(self.experience):
            stage.begin(whole_segment(self.experience[place]) for place in range(shown, len(self.experience)))
            self._shown[stage.name] = len(self.experience) - 1

    def _draw(self, stage: Stage, rng: np.random.Generator) -> Segment:
        """A batch of a stage; padding that all rows would share is left out."""
        lengths = self.experience.lengths + stage.final  # final frames take a place each
        for _ in range(_ATTEMPTS):
            chosen, places = self._samplers[stage.name].draw(lengths, stage.rows, stage.length, rng)
            length = min(stage.length, int((lengths[chosen] - places).max()))
            # A sampler that prefers what is new may choose an episode of one step for all rows: no transition is in it.
            if length > 1 or stage.length == 1:
                break
        return tree.to(cut_segments(self.experience, chosen, places, length, final=stage.final), self._device)

    def _learn(self) -> tuple[str, int, dict[str, float]]:
        """One update of the agent, in dreams that start from anywhere in the experience."""
        update = self.counters.agent_updates
        rng = self._rng(_CONTEXTS, update)
        rows, length = self._starts
        # While all episodes are shorter than a context should be, the contexts are.
        length = min(length, int(self.experience.lengths.max()))
        context = tree.to(start_contexts(self.experience, rows, length, rng), self._device)
        self._module.eval()
        with _seeded(int(rng.integers(2**62)), self._device):
            values = self.learner.update(self.model, context, update)
        self.counters = replace(self.counters, agent_updates=update + 1)
        return "agent", update + 1, values

    def _measure(self) -> tuple[str, int, dict[str, float]]:
        """One evaluation, which becomes a point of the curve."""
        assert self._evaluate is not None
        number = self.counters.evaluations
        self._module.eval()
        point = {"step": self.counters.clock, **self._evaluate(number)}
        self.curve = [*self.curve, point]
        self.counters = replace(self.counters, evaluations=number + 1)
        numbers = {name: float(value) for name, value in point.items() if isinstance(value, int | float)}
        return "evaluation", number + 1, numbers

    def _collect(self) -> tuple[str, int, dict[str, float]]:
        """The real steps of a round, if there are any left."""
        clock, end = self.counters.clock, self.schedule.next(self.counters.clock)
        returns: list[float] = []
        self._module.eval()
        mind = self._remember() if self.schedule.warmup <= clock < self.schedule.steps else None
        for step in range(clock, min(end, self.schedule.steps), len(self.gatherer)):
            mind, ended = self._step(mind, step)
            returns.extend(ended)
        episodes = self.counters.episodes + len(returns)
        self.counters = replace(self.counters, clock=end, episodes=episodes)
        values = {"episode_return": float(np.mean(returns))} if returns else {}
        return "collect", end, values

    def _step(self, mind: Any, step: int) -> tuple[Any, tuple[float, ...]]:
        """One step of every real environment; without a mind, a random one."""
        rows, kind = len(self.gatherer), self.model.spec.actions
        rng = self._rng(_ACTIONS, step)
        seeds = torch.from_numpy(rng.integers(2**62, size=rows))
        actions = sample_actions(kind, rows, torch.Generator().manual_seed(int(rng.integers(2**62))))
        if mind is not None:
            answer, mind = self.actor.act(mind, seeds.to(self._device), self.schedule.temperature)
            chosen = answer.cpu()
            random = torch.from_numpy(rng.random(rows) < self.schedule.epsilon)
            actions = torch.where(random if chosen.ndim == 1 else random[:, None], actions, chosen)
        gathered = self.gatherer.step(actions.numpy())
        if mind is not None:
            mind = self.actor.see(mind, actions.to(self._device), self._pixels(gathered.frames))
            for row in np.flatnonzero(gathered.begins).tolist():
                fresh = self.actor.begin(self._context(self.gatherer.current[row]))
                mind = tree.put_rows(mind, torch.tensor([row], device=self._device), fresh)
        return mind, gathered.returns

    def _remember(self) -> Any:
        """What the agent has in mind after the last frames of the episodes that are going on."""
        return tree.concatenate([self.actor.begin(self._context(episode)) for episode in self.gatherer.current])

    def _context(self, episode: OpenEpisode) -> Segment:
        """The last frames of an episode, with an action that nobody reads after the last one."""
        frames = self._pixels(episode.frames[-self.schedule.context :])[None]
        steps = frames.shape[1]
        taken = torch.from_numpy(episode.actions[episode.steps - steps + 1 :].copy()).to(self._device)
        none = zero_actions(self.model.spec.actions, 1, self._device)
        flags = torch.zeros(1, steps, dtype=torch.bool, device=self._device)
        rewards = torch.zeros(1, steps, device=self._device)
        return Segment(frames, torch.cat([taken, none])[None], rewards, flags, ~flags)

    def _pixels(self, frames: NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).contiguous().to(self._device)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng((self.counters.seed, *key))

    @property
    def _device(self) -> torch.device:
        return next(self._module.parameters()).device


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's own generators under a seed, and as they were afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def game_seed(seed: int, number: int) -> int:
    """The seed of a real game in a run with a seed; it begins with the episode of a number."""
    return int(np.random.default_rng((seed, _GAMES, number)).integers(2**31))


def _paced(stage: Stage, schedule: Schedule) -> Stage:
    """The stage with as many updates as the schedule gives it, over which its learning rate falls."""
    pace: Pace | None = schedule.stages.get(stage.name)
    if pace is None:
        raise ValueError(f"the schedule has no pace for the stage {stage.name!r}")
    return replace(stage, updates=pace.due(schedule.end))


def _part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """What is filed under a name."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
