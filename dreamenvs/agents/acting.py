"""An agent in real episodes, which the world model watches: row by row as an online run asks, or as a policy.

What the agent sees of a real frame is what it would see of the same frame in a dream: features, tokens, or the frame as
the model gives it back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.agents.imagination import Moment, evaluating, start_imagination
from dreamenvs.agents.protocol import ActingAgent, view_of
from dreamenvs.models.actions import zero_actions
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment


class Acting:
    """What an agent does in real episodes; what it has in mind is a `Moment`: the model's state and its own memory."""

    def __init__(self, agent: ActingAgent[Any], model: WorldModel[Any]) -> None:
        self.agent, self.model = agent, model

    @torch.no_grad()
    def begin(self, context: Segment) -> Moment[Any, Any]:
        """What it has in mind after real frames (B, T), the last of which it has not looked at yet."""
        return start_imagination(self.model, self.agent, context)

    @torch.no_grad()
    def act(self, mind: Moment[Any, Any], seeds: Tensor, temperature: float) -> tuple[Tensor, Moment[Any, Any]]:
        """Actions drawn with the seeds (B,); a temperature of 0 takes the most likely ones."""
        with evaluating(self.model):
            view = view_of(self.model, mind.state, self.agent.spec.obs_type)
        outputs, memory = self.agent.act(view, mind.memory)
        if temperature == 0:
            return self.agent.choice.mode(outputs), mind._replace(memory=memory)
        noise = Noise(seeds, torch.zeros_like(seeds), temperature)
        return self.agent.choice.sample(outputs, noise), mind._replace(memory=memory)

    @torch.no_grad()
    def see(self, mind: Moment[Any, Any], actions: Tensor, frames: Tensor) -> Moment[Any, Any]:
        """What it has in mind after the actions that were taken, and the frames (B, C, H, W) thereafter."""
        with evaluating(self.model):
            state = self.model.update(mind.state, actions, frames)
        return Moment(state, self.agent.remember(mind.memory, actions))


class Remembered(NamedTuple):
    """What an `ActingPolicy` keeps in mind from one call to the next."""

    mind: Moment[Any, Any]
    actions: NDArray[Any]  # (N,) int64 | (N, A) float32, that were chosen last


class ActingPolicy:
    """An agent as a policy on real frames, with the signature of Stable-Baselines3.

    Args:
        acting: The agent and the model that watches.
        temperature: Of the policy.
        seed: Of the actions, with the number of the call.
    """

    def __init__(self, acting: Acting, *, temperature: float = 1.0, seed: int = 0) -> None:
        self.acting, self.temperature = acting, temperature
        self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: NDArray[np.uint8],
        state: Remembered | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Remembered]:
        """Actions for real frames (N, H, W, C), and the state for the next call; without one, all rows begin."""
        rows = len(observation)
        starts = np.ones(rows, bool) if state is None else np.zeros(rows, bool)
        if state is not None and episode_start is not None:
            starts = np.asarray(episode_start, bool)
        mind = self._watch(observation, state, starts)
        seeds = torch.from_numpy(self._rng.integers(2**62, size=rows)).to(self._device)
        actions, mind = self.acting.act(mind, seeds, 0.0 if deterministic else self.temperature)
        chosen: NDArray[Any] = actions.cpu().numpy().copy()
        return chosen, Remembered(mind, chosen)

    def took(self, state: Remembered, actions: NDArray[Any]) -> Remembered:
        """The state after other actions than the chosen ones were taken."""
        return state._replace(actions=np.array(actions))

    def _watch(self, frames: NDArray[np.uint8], state: Remembered | None, starts: NDArray[np.bool_]) -> Any:
        pixels = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).contiguous().to(self._device)
        if state is None or starts.all():
            return self.acting.begin(self._first(pixels))
        mind = self.acting.see(state.mind, torch.from_numpy(state.actions).to(self._device), pixels)
        if not starts.any():
            return mind
        rows = torch.from_numpy(np.flatnonzero(starts)).to(self._device)
        return tree.put_rows(mind, rows, self.acting.begin(self._first(pixels[rows])))

    def _first(self, pixels: Tensor) -> Segment:
        """Contexts of one frame each, with an action that nobody reads."""
        rows = len(pixels)
        actions = zero_actions(self.acting.model.spec.actions, rows, self._device)[:, None]
        flags = torch.zeros(rows, 1, dtype=torch.bool, device=self._device)
        return Segment(pixels[:, None], actions, torch.zeros(rows, 1, device=self._device), flags, ~flags)

    @property
    def _device(self) -> torch.device:
        model = self.acting.model
        return next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")
