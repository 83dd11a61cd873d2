"""A world model watches real frames, so that a policy which learned on the dream's latent or tokens can act for real.

Rows are watched in one batched pass, padded as a dream's rows are, so that a row looks alike alone and among others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs import tree
from dreamenvs.data.collect import Policy
from dreamenvs.dream import ObservationType, padded_rows
from dreamenvs.models.actions import check_actions, zero_actions
from dreamenvs.protocols import WorldModel
from dreamenvs.types import Segment
from dreamenvs.worlds.spaces import check_choice


class Watcher:
    """What a world model makes of rows of real frames; the states that it takes and gives are values, with padding."""

    def __init__(self, model: WorldModel[Any], obs_type: ObservationType, device: torch.device | str = "cpu") -> None:
        check_choice("obs_type", obs_type, ObservationType)
        if obs_type == "rgb":
            raise ValueError("obs_type='rgb' needs no model to watch: a policy sees real frames as they are")
        self.model = model
        self.obs_type = obs_type
        self.device = torch.device(device)

    @torch.inference_mode()
    def begin(self, frames: NDArray[np.uint8]) -> Any:
        """The state of episodes of which only the first frames (N, H, W, C) have been seen."""
        observations = self._pad(self._pixels(frames))
        rows = len(observations)
        flags = torch.zeros(rows, 1, dtype=torch.bool, device=self.device)
        context = Segment(
            observations=observations[:, None],
            actions=zero_actions(self.model.spec.actions, rows, self.device)[:, None],  # nobody reads it
            rewards=torch.zeros(rows, 1, device=self.device),
            terminated=flags,
            valid=~flags,
        )
        return self.model.observe(context)

    @torch.inference_mode()
    def begin_rows(self, state: Any, frames: NDArray[np.uint8], starts: NDArray[np.bool_]) -> Any:
        """The state with new episodes in the rows where `starts` (N,), the others as they were."""
        rows = np.flatnonzero(starts)
        fresh = tree.map(lambda leaf: leaf[: len(rows)], self.begin(frames[rows]))
        return tree.put_rows(state, torch.from_numpy(rows).to(self.device), fresh)

    def check_actions(self, actions: object, rows: int) -> Tensor:
        """Actions as `update` takes them; an error names what is wrong with them."""
        return check_actions(self.model.spec.actions, actions, rows).to(self.device)

    @torch.inference_mode()
    def update(self, state: Any, actions: Tensor, frames: NDArray[np.uint8]) -> Any:
        """The state after the actions that were really taken and the frames (N, H, W, C) that came of them."""
        return self.model.update(state, self._pad(actions), self._pad(self._pixels(frames)))

    @torch.no_grad()
    def view(self, state: Any, rows: int) -> NDArray[Any]:
        """What a policy sees of the first `rows` rows, in a new array."""
        view = self.model.features(state) if self.obs_type == "latent" else self.model.tokens(state)
        array: NDArray[Any] = view[:rows].cpu().numpy().copy()
        return array

    def _pixels(self, frames: NDArray[np.uint8]) -> Tensor:
        channels, height, width = self.model.spec.observation_shape
        if frames.ndim != 4 or frames.shape[1:] != (height, width, channels) or frames.dtype != np.uint8:
            wanted = f"(N, {height}, {width}, {channels}) of uint8"
            raise ValueError(f"the model watches frames {wanted}, not {frames.shape} of {frames.dtype}")
        return torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).to(self.device)

    def _pad(self, values: Tensor) -> Tensor:
        missing = padded_rows(len(values)) - len(values)
        return torch.cat([values, values[:1].expand(missing, *values.shape[1:])])


class Watched(NamedTuple):
    """What a WatchingPolicy keeps in mind from one call to the next."""

    state: Any
    """Of the world model, all rows and padding."""
    actions: NDArray[Any]  # (N,) int64 | (N, A) float32, that were chosen last
    inner: Any
    """What the inner policy keeps in mind."""


class WatchingPolicy:
    """A policy on real frames around one that learned on a dream's `"latent"` or `"tokens"`.

    The model must know which actions were really taken. It takes them to be those that `predict` returned; who changes
    some of them, as an ε-greedy collector does, says so: `state = policy.took(state, actions)`.

    Args:
        policy: The inner policy, such as a Stable-Baselines3 model.
        model: The world model of the dream in which it learned.
        obs_type: What the inner policy sees.
        device: Where the model runs.
    """

    def __init__(
        self,
        policy: Policy,
        model: WorldModel[Any],
        obs_type: ObservationType = "latent",
        device: torch.device | str = "cpu",
    ) -> None:
        self.policy = policy
        self.watcher = Watcher(model, obs_type, device)

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Watched | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Watched]:
        """Actions for real frames (N, H, W, C), and the state for the next call; without one, all rows begin."""
        rows = len(observation)
        seen = self._watch(observation, state, episode_start)
        view = self.watcher.view(seen, rows)
        actions, inner = self.policy.predict(view, None if state is None else state.inner, episode_start, deterministic)
        return actions, Watched(seen, np.array(actions), inner)

    def took(self, state: Watched, actions: NDArray[Any]) -> Watched:
        """The state after other actions than the chosen ones were taken."""
        if np.shape(actions) != state.actions.shape:
            raise ValueError(f"took needs one action for each row, {state.actions.shape}, not {np.shape(actions)}")
        return state._replace(actions=np.array(actions))

    def _watch(self, frames: NDArray[np.uint8], state: Watched | None, episode_start: NDArray[np.bool_] | None) -> Any:
        starts = np.zeros(len(frames), bool) if episode_start is None else np.asarray(episode_start, bool)
        if state is None or starts.all():
            return self.watcher.begin(frames)
        if len(state.actions) != len(frames):
            raise ValueError(f"the state is of {len(state.actions)} rows, the observation of {len(frames)}")
        actions = self.watcher.check_actions(state.actions, len(frames))
        seen = self.watcher.update(state.state, actions, frames)
        return self.watcher.begin_rows(seen, frames, starts) if starts.any() else seen
