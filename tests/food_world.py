"""A tiny game, for real and as a perfect world model of it, with switches for the faults that dreams have.

On a grid of 4 × 4 cells one player walks; where there is food it earns 1, and food lies elsewhere; a pit ends it all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.protocols import Stage
from dreamenvs.random import Noise
from dreamenvs.types import DiscreteActions, Outcome, Segment, SourceEnv, WorldSpec

SIDE, CELLS, PIT, NOBODY = 4, 16, 15, -1
FAULTS = ("rewards_missing", "rewards_leaking", "terminations_missing", "objects_appear", "drift")
ID = "tests/Food-v0"
SOUND = 20
"""Imagined steps before a dream drifts."""
COLOURS = np.array([[0, 0, 0], [255, 255, 255], [0, 255, 0], [255, 0, 0], [90, 60, 200]], np.uint8)
"""Of nothing, the player, food, the pit, and of what there is in no real frame."""


class FoodGame(gym.Env[Any, Any]):
    """The game itself."""

    observation_space = gym.spaces.Box(0, 255, (4 * SIDE, 4 * SIDE, 3), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.player, self.food = (int(cell) for cell in self.np_random.choice(PIT, 2, replace=False))
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        row, column = divmod(self.player, SIDE)
        row = min(max(row + (-1, 1, 0, 0)[int(action)], 0), SIDE - 1)
        column = min(max(column + (0, 0, -1, 1)[int(action)], 0), SIDE - 1)
        self.player = row * SIDE + column
        ate = self.player == self.food
        if ate:
            self.food = int(self.np_random.choice([cell for cell in range(PIT) if cell != self.player]))
        return self._frame(), float(ate), self.player == PIT, False, {}

    def _frame(self) -> Any:
        cells = np.zeros(CELLS, np.int64)
        cells[PIT], cells[self.food], cells[self.player] = 3, 2, 1
        return COLOURS[cells].reshape(SIDE, SIDE, 3).repeat(4, 0).repeat(4, 1)


def register_food() -> None:
    """Make the game known to Gymnasium."""
    if ID not in gym.registry:
        gym.register(ID, entry_point=FoodGame, max_episode_steps=100)


class Board(NamedTuple):
    """The state of a FoodWorld."""

    player: Tensor  # (B,) int64
    food: Tensor  # (B,) int64
    twin: Tensor  # (B,) int64, a second player, or nobody
    age: Tensor  # (B,) int64, imagined steps


class FoodWorld:
    """What a perfect model of the game dreams, or one with a fault."""

    num_tokens = CELLS
    vocabulary = len(COLOURS)
    num_features = 2 * CELLS

    def __init__(self, fault: str | None = None, *, real: bool = True) -> None:
        self.fault = fault
        source = SourceEnv(id=ID) if real else None
        self.spec = WorldSpec(
            world="Food", observation_shape=(3, 4 * SIDE, 4 * SIDE), actions=DiscreteActions(count=4), source=source
        )

    def observe(self, context: Segment) -> Board:
        return self._read(context.observations[:, -1])

    def update(self, state: Board, actions: Tensor, observations: Tensor) -> Board:
        return self._read(observations)

    def step(self, state: Board, actions: Tensor, noise: Noise) -> tuple[Board, Outcome]:
        row = (state.player // SIDE + torch.tensor([-1, 1, 0, 0])[actions]).clamp(0, SIDE - 1)
        column = (state.player % SIDE + torch.tensor([0, 0, -1, 1])[actions]).clamp(0, SIDE - 1)
        player = row * SIDE + column
        ends = player == PIT
        if self.fault == "terminations_missing":  # the pit is a wall
            player, ends = torch.where(ends, state.player, player), torch.zeros_like(ends)
        ate = player == state.food
        chances = noise.uniform(CELLS).scatter(1, player[:, None], -1.0)[:, :PIT]
        food = torch.where(ate, chances.argmax(1), state.food)
        rewards = ate.float()
        if self.fault == "rewards_missing":
            rewards = torch.zeros_like(rewards)
        if self.fault == "rewards_leaking":
            rewards = (ate | (player < SIDE)).float()
        twin = state.twin
        if self.fault == "objects_appear":
            chance = noise.uniform(2, draw=1)
            twin = torch.where(chance[:, 0] < 0.1, (chance[:, 1] * PIT).long(), twin)
            twin = torch.where(chance[:, 0] > 0.8, torch.full_like(twin, NOBODY), twin)
        return Board(player, food, twin, state.age + 1), Outcome(rewards, ends, torch.ones_like(ends))

    def tokens(self, state: Board) -> Tensor:
        rows = torch.arange(len(state.player))
        cells = torch.zeros(len(rows), CELLS, dtype=torch.int64)
        doubled = state.twin >= 0
        cells[rows[doubled], state.twin[doubled]] = 1
        cells[:, PIT] = 3
        cells[rows, state.food] = 2
        cells[rows, state.player] = 1
        if self.fault == "drift":
            lost = ((state.age - SOUND).clamp(0, CELLS)[:, None] > torch.arange(CELLS)) & (cells == 0)
            cells = cells.masked_fill(lost, 4)
        return cells

    def decode(self, state: Board) -> Tensor:
        pixels = torch.from_numpy(COLOURS)[self.tokens(state)].view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2)
        return pixels.repeat_interleave(4, 2).repeat_interleave(4, 3)

    def features(self, state: Board) -> Tensor:
        places = torch.stack([state.player, state.food], 1)
        return torch.nn.functional.one_hot(places, CELLS).flatten(1).float()

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def _read(self, frames: Tensor) -> Board:
        """Where things are in frames (B, C, H, W)."""
        cells = frames[:, :, ::4, ::4].flatten(2)
        player, food = (
            (cells == torch.from_numpy(colour)[None, :, None]).all(1).long().argmax(1) for colour in COLOURS[1:3]
        )
        return Board(player, food, torch.full_like(player, NOBODY), torch.zeros_like(player))


def food_checkpoint(fault: str | None = None, *, real: bool = True) -> Checkpoint:
    """The dream, which begins where the game does."""
    register_food()
    env = gym.make(ID)
    frames = np.stack([env.reset(seed=seed)[0] for seed in range(32)])
    env.close()
    flags = torch.zeros(32, 1, dtype=torch.bool)
    contexts = Segment(
        observations=torch.from_numpy(frames).permute(0, 3, 1, 2)[:, None].contiguous(),
        actions=torch.zeros(32, 1, dtype=torch.int64),
        rewards=torch.zeros(32, 1),
        terminated=flags,
        valid=~flags,
    )
    world = FoodWorld(fault, real=real)
    return Checkpoint(model=world, contexts=contexts, family="Food", config=None, card={}, path=Path("food"))
