"""DreamVecEnv: dreams for Stable-Baselines3, which resets a row in the very step that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from dreamenvs.checkpoints.shared_models import CheckpointLike
from dreamenvs.envs.vector import DreamVectorEnv

Indices = None | int | Iterable[int]


class DreamVecEnv(VecEnv):
    """`num_envs` dreams as a Stable-Baselines3 vector environment.

    >>> import dreamenvs
    >>> envs = dreamenvs.DreamVecEnv("dreamenvs/STEPVQ-Pong-v0", num_envs=4, obs_type="tokens")
    >>> envs.reset().shape
    (4, 256)

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        num_envs: How many rows are dreamed side by side.
        **kwargs: Further arguments of `DreamVectorEnv`, such as `obs_type`, `horizon`, `device` or `temperature`.
    """

    def __init__(self, checkpoint: CheckpointLike, num_envs: int = 1, **kwargs: Any) -> None:
        for name, reason in (
            ("output", "Stable-Baselines3 takes NumPy arrays"),
            ("autoreset_mode", "Stable-Baselines3 resets in the same step"),
        ):
            if name in kwargs:
                raise TypeError(f"DreamVecEnv takes no {name}={kwargs[name]!r}: {reason}")
        self.venv = DreamVectorEnv(
            num_envs, checkpoint=checkpoint, autoreset_mode=AutoresetMode.SAME_STEP, output="numpy", **kwargs
        )
        self._actions: Any = None
        super().__init__(num_envs, self.venv.single_observation_space, self.venv.single_action_space)

    def reset(self) -> Any:
        """Begin new episodes in all rows, under the seeds that `seed` stored."""
        observations, _ = self.venv.reset(seed=self._seeds)
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Imagine one step; an ended row gives its last observation in its info and goes on with a new episode."""
        observations, rewards, terminated, truncated, batched = self.venv.step(self._actions)
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for row in np.flatnonzero(dones):
            infos[row]["terminal_observation"] = batched["final_obs"][row]
            infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            errors = batched["final_info"].get("error")
            if errors is not None and errors[row] is not None:
                infos[row]["error"] = errors[row]
            self.reset_infos[row] = {}
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Nothing is held open; calling it again is harmless."""
        self.venv.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """The current frame of every row, where the environment was made with `render_mode="rgb_array"`."""
        return self.venv.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of the environment, once for each row asked for: rows share everything but their state."""
        value = getattr(self, attr_name) if hasattr(type(self), attr_name) else getattr(self.venv, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute for all rows; they cannot differ in one."""
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise ValueError(f"the rows of a dream share their attributes: set {attr_name!r} for all of them or none")
        setattr(self.venv, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the vector environment once, and give its result to each row asked for."""
        result = getattr(self.venv, method_name)(*method_args, **method_kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """No row is wrapped: use `VecMonitor` for episode returns."""
        return [False for _ in self._get_indices(indices)]
