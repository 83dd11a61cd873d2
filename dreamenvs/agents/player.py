"""Player: an agent as a policy with Stable-Baselines3's `predict`, for dreams and for real environments.

The environment must show what the agent sees: `make_real(dream, obs_type=player.obs_type)`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs import tree
from dreamenvs.agents.protocol import ActingAgent, view_dtype, view_shape
from dreamenvs.agents.saving import save_agent
from dreamenvs.dream import ObservationType
from dreamenvs.random import Noise


class Playing(NamedTuple):
    """What a player keeps in mind from one call to the next."""

    memory: Any
    """Of the agent, after the last view."""
    actions: Tensor  # (N,) int64 | (N, A) float32, that were chosen after it


class Player:
    """Acts as an agent says.

    >>> import dreamenvs, tempfile
    >>> dream = dreamenvs.load("dreamenvs/STEPVQ-MinAtarBreakout-v0")
    >>> path = dreamenvs.train(dream, steps=2048, progress=False).save(tempfile.mkdtemp() + "/agent")
    >>> player = dreamenvs.Player(dreamenvs.load_agent(path), temperature=0.5, seed=0)
    >>> env = dreamenvs.make_real(dream, obs_type=player.obs_type)
    >>> int(player.predict(env.reset(seed=0)[0])[0]) in range(3)
    True

    Args:
        agent: What acts.
        temperature: Of the actions that are drawn: 1 as learned, 0 the most likely ones; IRIS and REM play with 0.5.
        seed: Of the actions; without one they follow torch's own generator, as those of Stable-Baselines3 do.
    """

    def __init__(self, agent: ActingAgent[Any], *, temperature: float = 1.0, seed: int | None = None) -> None:
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number, 0 or above, not {temperature}")
        self.agent = agent
        self.temperature = temperature
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    @property
    def obs_type(self) -> ObservationType:
        """What the environment must show."""
        return self.agent.spec.obs_type

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent to a directory, which `dreamenvs.load_agent` reads."""
        return save_agent(path, self.agent)

    @torch.no_grad()
    def predict(
        self,
        observation: NDArray[Any],
        state: Playing | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Playing]:
        """Actions for observations (N, …) or for a single one, and the state for the next call.

        Without a state all rows begin; `episode_start` (N,) marks those that begin anew.
        """
        observation = np.asarray(observation)
        single = observation.ndim == len(view_shape(self.agent.spec))
        views = self._views(observation[None] if single else observation)
        outputs, memory = self.agent.act(views, self._memory(len(views), state, episode_start))
        actions = self.agent.choice.mode(outputs) if deterministic else self._draw(outputs)
        chosen: NDArray[Any] = actions.cpu().numpy().copy()
        return (chosen[0] if single else chosen), Playing(memory, actions)

    def took(self, state: Playing, actions: NDArray[Any]) -> Playing:
        """The state after other actions than the chosen ones were taken, as an ε-greedy collector does."""
        if np.shape(actions) != tuple(state.actions.shape):
            raise ValueError(f"took needs actions of shape {tuple(state.actions.shape)}, not {np.shape(actions)}")
        return state._replace(actions=torch.as_tensor(np.array(actions)).to(state.actions))

    def _views(self, observation: NDArray[Any]) -> Tensor:
        spec = self.agent.spec
        images = spec.obs_type == "rgb"
        views = torch.as_tensor(np.array(np.moveaxis(observation, -1, 1) if images else observation))
        wanted = view_shape(spec)
        if tuple(views.shape[1:]) != wanted:
            shown = (*wanted[1:], wanted[0]) if images else wanted
            raise ValueError(
                f"this agent sees obs_type {spec.obs_type!r} of shape {shown}, not {observation.shape[1:]}: "
                f"make the environment with obs_type={spec.obs_type!r}, of the dream that the agent learned in"
            )
        return views.to(self._device, view_dtype(spec))

    def _memory(self, rows: int, state: Playing | None, episode_start: NDArray[np.bool_] | None) -> Any:
        fresh = self.agent.begin(rows)
        if state is None:
            return fresh
        if len(state.actions) != rows:
            raise ValueError(f"the state is of {len(state.actions)} rows, the observation of {rows}")
        memory = self.agent.remember(state.memory, state.actions)
        if episode_start is None:
            return memory
        starts = torch.as_tensor(np.flatnonzero(episode_start), device=self._device)
        return tree.put_rows(memory, starts, tree.take_rows(fresh, starts))

    def _draw(self, outputs: Tensor) -> Tensor:
        seeds = torch.randint(2**62, (len(outputs),), generator=self._generator).to(outputs.device)
        return self.agent.choice.sample(outputs, Noise(seeds, torch.zeros_like(seeds), self.temperature))

    @property
    def _device(self) -> torch.device:
        return next(self.agent.parameters()).device
