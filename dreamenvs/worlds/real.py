"""The real environment beside a dream: same preprocessing, same spaces, and the model's own view of real frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.checkpoints.shared_models import CheckpointLike, World, open_world
from dreamenvs.dream import ObservationType
from dreamenvs.models.actions import action_space
from dreamenvs.protocols import WorldModel
from dreamenvs.worlds.source import PixelEnv, make_source
from dreamenvs.worlds.spaces import check_choice, observation_space
from dreamenvs.worlds.watching import Watcher


def make_real(
    checkpoint: CheckpointLike, *, obs_type: ObservationType = "rgb", device: str | torch.device = "cpu", **kwargs: Any
) -> gym.Env[Any, Any]:
    """Build the real environment that a dream was fitted on, with the observations that the dream gives.

    >>> import dreamenvs
    >>> env = dreamenvs.make_real("dreamenvs/STEPVQ-MinAtarBreakout-v0")
    >>> env.reset(seed=0)[0].shape
    (40, 40, 3)

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        obs_type: `"rgb"` frames; for `"latent"` and `"tokens"` the world model watches them, so that a policy that
            learned in the dream can act for real.
        device: Where the model runs.
        **kwargs: Further arguments of the real environment, such as `render_mode`.
    """
    check_choice("obs_type", obs_type, ObservationType)
    world = open_world(checkpoint, device)
    env = _build_source(world, kwargs)
    return env if obs_type == "rgb" else WatchedEnv(env, world.model, obs_type, device)


def make_real_vec(
    checkpoint: CheckpointLike,
    num_envs: int,
    *,
    obs_type: ObservationType = "rgb",
    device: str | torch.device = "cpu",
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Build `num_envs` real environments as one; the world model watches all of them in one pass.

    >>> import dreamenvs
    >>> envs = dreamenvs.make_real_vec("dreamenvs/STEPVQ-MinAtarBreakout-v0", 4, obs_type="tokens")
    >>> envs.reset(seed=0)[0].shape
    (4, 100)

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        num_envs: How many environments, stepped one after the other.
        obs_type: `"rgb"` frames, or `"latent"` and `"tokens"` as the dream gives them.
        device: Where the model runs.
        autoreset_mode: What happens to a row whose episode ended; an `AutoresetMode` or its value.
        max_episode_steps: Steps after which an episode is truncated, besides the environment's own limit.
        **kwargs: Further arguments of the real environment, such as `render_mode`.
    """
    check_choice("obs_type", obs_type, ObservationType)
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, not {num_envs}")
    world = open_world(checkpoint, device)

    def build() -> gym.Env[Any, Any]:
        env = _build_source(world, kwargs)
        return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)

    envs = SyncVectorEnv([build] * num_envs, autoreset_mode=AutoresetMode(autoreset_mode))
    return envs if obs_type == "rgb" else WatchedVectorEnv(envs, world.model, obs_type, device)


def _build_source(world: World, kwargs: dict[str, Any]) -> PixelEnv:
    spec = world.model.spec
    if spec.source is None:
        raise ValueError(f"the dream {world.name} does not say which real environment it was fitted on")
    env = make_source(spec.source, spec.observation_shape, **kwargs)
    if env.action_space != action_space(spec.actions):
        raise ValueError(
            f"{spec.source.id} takes {env.action_space} here, but its dream takes {action_space(spec.actions)}"
        )
    return env


class WatchedEnv(gym.Wrapper[Any, Any, NDArray[np.uint8], Any]):
    """A real environment seen through a world model: `observe` at the reset, `update` with every frame."""

    def __init__(
        self,
        env: gym.Env[NDArray[np.uint8], Any],
        model: WorldModel[Any],
        obs_type: ObservationType,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(env)
        self.model = model
        self.obs_type = obs_type
        self.observation_space = observation_space(model, obs_type)
        self._watcher = Watcher(model, obs_type, device)
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a real episode; the model has seen its first frame and nothing else."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._state = self._watcher.begin(np.asarray(frame)[None])
        return self._watcher.view(self._state, 1)[0], info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act for real, and show the model what came of it."""
        taken = self._watcher.check_actions(np.asarray(action)[None], 1)
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._state = self._watcher.update(self._state, taken, np.asarray(frame)[None])
        return self._watcher.view(self._state, 1)[0], reward, terminated, truncated, info


class WatchedVectorEnv(VectorWrapper):
    """Real environments seen through a world model, all rows in one pass, in any autoreset mode."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        model: WorldModel[Any],
        obs_type: ObservationType,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(env)
        self.model = model
        self.obs_type = obs_type
        self.single_observation_space = observation_space(model, obs_type)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._mode = AutoresetMode(env.metadata["autoreset_mode"])
        self._watcher = Watcher(model, obs_type, device)
        self._state: Any = None
        self._ended = np.zeros(env.num_envs, dtype=bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin real episodes, in all rows or in those of `options["reset_mask"]`."""
        mask = None if options is None else options.get("reset_mask")
        frames, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        if mask is None or self._state is None:
            self._state, self._ended = self._watcher.begin(frames), np.zeros(self.num_envs, dtype=bool)
        else:
            self._state, self._ended = self._watcher.begin_rows(self._state, frames, mask), self._ended & ~mask
        return self._watcher.view(self._state, self.num_envs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act for real in every row, and show the model what came of it."""
        taken = self._watcher.check_actions(actions, self.num_envs)
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        begun, self._ended = self._ended, terminated | truncated
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            infos = self._see_final(taken, frames, infos)
            begun, self._ended = self._ended, np.zeros_like(begun)
        else:
            self._state = self._watcher.update(self._state, taken, frames)
        if begun.any() and self._mode is not AutoresetMode.DISABLED:
            self._state = self._watcher.begin_rows(self._state, frames, begun)
        return self._watcher.view(self._state, self.num_envs), rewards, terminated, truncated, infos

    def _see_final(self, taken: Tensor, frames: NDArray[np.uint8], infos: dict[str, Any]) -> dict[str, Any]:
        """SAME_STEP: the rows that ended show their last frames in infos; these are watched before the new episode."""
        rows = np.flatnonzero(self._ended)
        last = frames.copy()
        last[rows] = np.stack([infos["final_obs"][row] for row in rows])
        self._state = self._watcher.update(self._state, taken, last)
        views = self._watcher.view(self._state, self.num_envs)
        final = np.full(self.num_envs, None, dtype=object)
        for row in rows:
            final[row] = views[row].copy()
        return {**infos, "final_obs": final}
