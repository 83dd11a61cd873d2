"""The real environment beside a dream: same preprocessing, same spaces, and the model's own view of real frames."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.actions import action_space, check_actions, zero_actions
from dreamenvs.dream import MIN_ROWS, ObservationType
from dreamenvs.envs.loading import CheckpointLike, open_world
from dreamenvs.envs.source import make_source
from dreamenvs.envs.spaces import check_choice, observation_space
from dreamenvs.protocols import WorldModel
from dreamenvs.types import Segment


def make_real(
    checkpoint: CheckpointLike, *, obs_type: ObservationType = "rgb", device: str | torch.device = "cpu", **kwargs: Any
) -> gym.Env[Any, Any]:
    """Build the real environment that a dream was fitted on, with the observations that the dream gives.

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        obs_type: `"rgb"` frames; for `"latent"` and `"tokens"` the world model watches them, so that a policy that
            learned in the dream can act for real.
        device: Where the model runs.
        **kwargs: Further arguments of the real environment, such as `render_mode`.
    """
    check_choice("obs_type", obs_type, ObservationType)
    world = open_world(checkpoint, device)
    spec = world.model.spec
    if spec.source is None:
        raise ValueError(f"the dream {world.name} does not say which real environment it was fitted on")
    env = make_source(spec.source, spec.observation_shape, **kwargs)
    if env.action_space != action_space(spec.actions):
        raise ValueError(
            f"{spec.source.id} takes {env.action_space} here, but its dream takes {action_space(spec.actions)}"
        )
    return env if obs_type == "rgb" else WatchedEnv(env, world.model, obs_type, device)


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
        self._device = torch.device(device)
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a real episode; the model has seen its first frame and nothing else."""
        frame, info = self.env.reset(seed=seed, options=options)
        with torch.inference_mode():
            self._state = self.model.observe(_still(self.model, self._rows(frame)))
        return self._view(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act for real, and show the model what came of it."""
        actions = check_actions(self.model.spec.actions, np.asarray(action)[None], 1).to(self._device)
        frame, reward, terminated, truncated, info = self.env.step(action)
        with torch.inference_mode():
            repeated = actions.expand(MIN_ROWS, *actions.shape[1:])
            self._state = self.model.update(self._state, repeated, self._rows(frame))
        return self._view(), reward, terminated, truncated, info

    @torch.no_grad()
    def _view(self) -> NDArray[Any]:
        view = self.model.features(self._state) if self.obs_type == "latent" else self.model.tokens(self._state)
        array: NDArray[Any] = view[0].cpu().numpy().copy()
        return array

    def _rows(self, frame: NDArray[np.uint8]) -> Tensor:
        """The frame as a batch; of the size that a dream's batches have, so that both round alike."""
        pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1).to(self._device)
        return pixels.expand(MIN_ROWS, *pixels.shape)


def _still(model: WorldModel[Any], frames: Tensor) -> Segment:
    """A context of one frame for each row, with an action that nobody reads."""
    rows, device = len(frames), frames.device
    return Segment(
        observations=frames[:, None],
        actions=zero_actions(model.spec.actions, rows, device)[:, None],
        rewards=torch.zeros(rows, 1, device=device),
        terminated=torch.zeros(rows, 1, dtype=torch.bool, device=device),
        valid=torch.ones(rows, 1, dtype=torch.bool, device=device),
    )
