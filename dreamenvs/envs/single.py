"""DreamEnv: one dream as a `gymnasium.Env`; a vector environment of one row, seen from inside."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dreamenvs.checkpoints.shared_models import CheckpointLike
from dreamenvs.dream import ObservationType
from dreamenvs.envs.vector import DEFAULT_HORIZON, DreamVectorEnv, Output, Snapshot


class DreamEnv(gym.Env[Any, Any]):
    """One imagined episode after another of a learned world; the arguments are those of `DreamVectorEnv`.

    >>> import gymnasium as gym, dreamenvs
    >>> env = gym.make("dreamenvs/STEPVQ-Pong-v0", obs_type="tokens")
    >>> observation, info = env.reset(seed=0)
    >>> observation.shape
    (256,)
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (Gymnasium's own)

    def __init__(
        self,
        *,
        checkpoint: CheckpointLike,
        horizon: int = DEFAULT_HORIZON,
        device: str | torch.device = "cpu",
        obs_type: ObservationType = "rgb",
        output: Output = "numpy",
        render_mode: str | None = None,
        temperature: float = 1.0,
    ) -> None:
        self._vector = DreamVectorEnv(
            1,
            checkpoint=checkpoint,
            horizon=horizon,
            device=device,
            autoreset_mode=AutoresetMode.DISABLED,
            obs_type=obs_type,
            output=output,
            render_mode=render_mode,
            temperature=temperature,
        )
        # A dictionary of its own: Gymnasium's SyncVectorEnv up to 1.3 writes into it.
        self.metadata = deepcopy(type(self).metadata)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        self.render_mode = render_mode
        self._begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in one of the checkpoint's start contexts."""
        super().reset(seed=seed)
        if seed is None and not self._begun:
            seed = int(self.np_random.integers(2**62))
        self._begun = True
        observation, _ = self._vector.reset(seed=seed)
        return observation[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Imagine one step."""
        batched = action[None] if isinstance(action, torch.Tensor) else np.asarray(action)[None]
        observation, rewards, terminated, truncated, infos = self._vector.step(batched)
        info = {key: infos[key][0] for key in ("error",) if key in infos}
        return observation[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """The current frame, H×W×3."""
        frames = self._vector.render()
        return None if frames is None else frames[0]

    def snapshot(self) -> Snapshot:
        """The present moment, randomness included."""
        return self._vector.snapshot()

    def restore(self, snapshot: Snapshot) -> Any:
        """Go back to a snapshot and return the observation."""
        return self._vector.restore(snapshot)[0]

    def close(self) -> None:
        """Nothing is held open; calling it again is harmless."""
        self._vector.close()
