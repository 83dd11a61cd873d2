"""Gathers real steps one by one, and can go on in another process as if nothing had happened.

A real environment cannot be saved. But with the same seed and the same actions it does the same again: so the seeds of
episodes follow from their numbers, the actions are remembered, and whoever goes on plays them again and compares. A
game can be several episodes, as in Atari where a lost life ends one: then all of it is played again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dreamenvs.data.collect import check_spaces
from dreamenvs.data.growing_replay import Experience, OpenEpisode

Env = gymnasium.Env[NDArray[np.uint8], Any]


class RepetitionError(RuntimeError):
    """A real environment that did something else when its actions were played again."""


class Game(NamedTuple):
    """What a row needs to be brought back to where it was."""

    first: int
    """The number of the episode that began the game, from which its seed follows."""
    current: int
    """The number of the episode that is going on."""
    lengths: NDArray[np.int64]  # (E,), steps of the game's episodes, the last of which goes on
    actions: NDArray[Any]  # (T,) | (T, A), of all these episodes
    sums: NDArray[np.int64]  # (T + E,), a checksum of every frame and what came with it


class Gathered(NamedTuple):
    """What one step of all rows did."""

    frames: NDArray[np.uint8]  # (N, H, W, C), what the next action answers
    begins: NDArray[np.bool_]  # (N,), where that is the first frame of an episode
    returns: tuple[float, ...]
    """Of the episodes that ended."""


class Gatherer:
    """Rows of real environments, whose steps go into an experience."""

    def __init__(self, envs: Sequence[Env], experience: Experience, seed_of: Callable[[int], int]) -> None:
        """`seed_of` gives the seed of a game that begins with the episode of a number."""
        for env in envs:
            check_spaces(env.observation_space, env.action_space)
        self.experience = experience
        self._rows = [_Row(env, experience, seed_of) for env in envs]
        self.begun = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def current(self) -> list[OpenEpisode]:
        """The episodes that are going on, one for each row."""
        return [row.episode for row in self._rows]

    def begin(self) -> None:
        """Begin the first episode of every row."""
        for row in self._rows:
            row.begin(self.experience.begun)
        self.begun = True

    def step(self, actions: NDArray[Any]) -> Gathered:
        """One step of every row; where an episode ends, the next one begins."""
        ended = [row.step(action) for row, action in zip(self._rows, actions, strict=True)]
        frames = np.stack([row.episode.frames[-1] for row in self._rows])
        begins = np.array([total is not None for total in ended])
        return Gathered(frames, begins, tuple(total for total in ended if total is not None))

    def games(self) -> list[Game]:
        """What `repeat` needs."""
        return [row.game() for row in self._rows]

    def repeat(self, games: Sequence[Game]) -> None:
        """Play games again up to where they were; the experience must know their finished episodes already."""
        if len(games) != len(self._rows):
            raise ValueError(f"there were {len(games)} rows of real environments, and there are {len(self._rows)}")
        for row, game in zip(self._rows, games, strict=True):
            row.repeat(game)
        self.begun = True

    def close(self) -> None:
        """Close the environments."""
        for row in self._rows:
            row.env.close()


class _Row:
    """One environment, and all of the game that it is in."""

    def __init__(self, env: Env, experience: Experience, seed_of: Callable[[int], int]) -> None:
        self.env, self.experience, self.seed_of = env, experience, seed_of
        self.first = self.number = 0
        self.lengths: list[int] = []
        self.actions: list[Any] = []
        self.sums: list[int] = []
        self.episode: OpenEpisode

    def begin(self, number: int) -> None:
        """An episode, of a new game unless the environment says that the old one goes on."""
        if self.lengths and _goes_on(self.env):
            frame, _ = self.env.reset()
        else:
            self.first, self.lengths, self.actions, self.sums = number, [], [], []
            frame, _ = self.env.reset(seed=self.seed_of(number))
        self.number = number
        self.lengths.append(0)
        self.sums.append(_sum(frame, 0.0, False, False))
        self.episode = self.experience.begin(number, np.asarray(frame))

    def step(self, action: Any) -> float | None:
        """One step; the return of the episode if that ended it, and then the next one has begun."""
        self._take(action)
        self.experience.grow(self.number)
        if not self.episode.over:
            return None
        total = self.episode.episode().total_reward
        self.begin(self.experience.begun)
        return total

    def _take(self, action: Any) -> None:
        frame, reward, terminated, truncated, _ = self.env.step(action)
        terminated, truncated = bool(terminated), bool(truncated)
        self.lengths[-1] += 1
        self.actions.append(action)
        self.sums.append(_sum(frame, float(reward), terminated, truncated))
        self.episode.add(action, float(reward), np.asarray(frame), terminated, truncated)

    def game(self) -> Game:
        actions = np.asarray(self.actions) if self.actions else self.episode.actions
        return Game(self.first, self.number, np.array(self.lengths, np.int64), actions, np.array(self.sums, np.int64))

    def repeat(self, game: Game) -> None:
        self.first, self.lengths, self.actions, self.sums = game.first, [], [], []
        frame, _ = self.env.reset(seed=self.seed_of(game.first))
        moves = iter(game.actions)
        for place, length in enumerate(game.lengths.tolist()):
            if place:
                frame, _ = self.env.reset()
            self.lengths.append(0)
            self.sums.append(_sum(frame, 0.0, False, False))
            self._compare(game)
            self.number = game.current
            last = place == len(game.lengths) - 1
            first = np.asarray(frame)
            self.episode = (
                self.experience.begin(game.current, first) if last else OpenEpisode(self.experience.replay.spec, first)
            )
            for _ in range(length):
                self._take(next(moves))
                self._compare(game)
        if self.episode.steps:
            self.experience.grow(self.number)

    def _compare(self, game: Game) -> None:
        at = len(self.sums) - 1
        if self.sums[at] != int(game.sums[at]):
            where = f"step {self.lengths[-1]} of episode {len(self.lengths)} of the game"
            raise RepetitionError(
                f"{self.env} did not repeat itself: with the seed {self.seed_of(game.first)} and the same actions, "
                f"{where} shows another frame or reward than before. A run can go on only where the environment is "
                "decided by its seed and actions, with the same version of its package; begin again with --restart"
            )


def _goes_on(env: Env) -> bool:
    """Whether an unseeded reset continues the game that the last episode was part of."""
    return bool(env.has_wrapper_attr("playing") and env.get_wrapper_attr("playing"))


def _sum(frame: Any, reward: float, terminated: bool, truncated: bool) -> int:
    return zlib.crc32(np.ascontiguousarray(frame).data, zlib.crc32(struct.pack("<f??", reward, terminated, truncated)))
