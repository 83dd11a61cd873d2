"""Where an agent's experience comes from: rows of episodes, dreamed or real, behind one protocol.

A row whose episode ended has begun the next one when `step` returns, so that no step is lost to a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.dream import Dream, ObservationType
from dreamenvs.random import Noise, wrap_seed

AGE_DRAW = 3_000_019


class RowStep(NamedTuple):
    """What one step gives besides the next views."""

    rewards: Tensor  # (B,) float32
    terminated: Tensor  # (B,) bool
    truncated: Tensor  # (B,) bool, never together with terminated
    final: Tensor | None  # (N, …) the last views of the N truncated rows; None where none was


class RowSource(Protocol):
    """Rows of endless episodes."""

    @property
    def num_rows(self) -> int: ...

    def observe(self) -> Tensor:
        """The current views (B, …): features, tokens or frames (B, C, H, W), as an agent's spec has them."""
        ...

    def step(self, actions: Tensor) -> RowStep:
        """Take one action (B,) in every row; where an episode ends, the next one begins."""
        ...


class DreamRows:
    """Imagined episodes.

    Args:
        dream: Whose rows they are; it is reset.
        obs_type: What the agent sees.
        seed: Of the episodes.
    """

    def __init__(self, dream: Dream[Any], obs_type: ObservationType, seed: int = 0) -> None:
        self.dream, self.obs_type = dream, obs_type
        keys = _row_seeds(seed, dream.num_rows)
        dream.reset(keys.tolist())
        # Rows begin at all ages. Otherwise all of them would reach the horizon in the same step.
        begun = dream.snapshot()
        ages = Noise(keys, torch.zeros_like(keys)).integers(dream.horizon, AGE_DRAW)
        dream.restore(begun._replace(ages=ages.to(dream.device)))

    @property
    def num_rows(self) -> int:
        return self.dream.num_rows

    def observe(self) -> Tensor:
        return self._views(None)

    def step(self, actions: Tensor) -> RowStep:
        transition = self.dream.step(actions)
        terminated = transition.terminated
        truncated = transition.truncated & ~terminated
        final = self._views(truncated.nonzero()[:, 0]) if bool(truncated.any()) else None
        ended = (terminated | truncated).nonzero()[:, 0]
        if len(ended):
            self.dream.reset_rows(ended)
        return RowStep(transition.rewards, terminated, truncated, final)

    def _views(self, indices: Tensor | None) -> Tensor:
        views = self.dream.observation(self.obs_type, indices)
        return views.permute(0, 3, 1, 2) if self.obs_type == "rgb" else views


class VectorRows:
    """Episodes of a Gymnasium vector environment that resets rows in the same step, such as `make_real_vec` builds.

    Args:
        env: The environment; it is reset.
        obs_type: What its observations are.
        seed: Of the episodes.
        device: Where the tensors are put.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        obs_type: ObservationType,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"rows are reset in the same step: build the environment with SAME_STEP, not {mode}")
        self.env, self.obs_type, self.device = env, obs_type, torch.device(device)
        seeds: Any = (_row_seeds(seed, env.num_envs) % 2**31).tolist()
        self._observations, _ = env.reset(seed=seeds)

    @property
    def num_rows(self) -> int:
        return self.env.num_envs

    def observe(self) -> Tensor:
        return self._views(self._observations)

    def step(self, actions: Tensor) -> RowStep:
        self._observations, rewards, terminated, truncated, infos = self.env.step(actions.cpu().numpy())
        truncated = truncated & ~terminated
        return RowStep(
            torch.as_tensor(np.array(rewards, np.float32), device=self.device),
            torch.as_tensor(np.array(terminated), device=self.device),
            torch.as_tensor(truncated, device=self.device),
            self._final(infos, truncated),
        )

    def _final(self, infos: Mapping[str, Any], truncated: NDArray[np.bool_]) -> Tensor | None:
        rows = np.flatnonzero(truncated)
        return self._views(np.stack([infos["final_obs"][row] for row in rows])) if len(rows) else None

    def _views(self, observations: NDArray[Any]) -> Tensor:
        views = torch.as_tensor(np.array(observations), device=self.device)
        return views.permute(0, 3, 1, 2) if self.obs_type == "rgb" else views


def _row_seeds(seed: int, rows: int) -> Tensor:
    """(B,) int64, for rows that have nothing in common, nor with those of another seed."""
    return Noise(torch.tensor([wrap_seed(seed)]), torch.tensor([-2])).bits(rows)[0]
