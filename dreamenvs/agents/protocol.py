"""The seam of the agents: what one sees, what it remembers, and what a learner and a player ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from dreamenvs.agents.critic_outputs import Values
from dreamenvs.dream import ObservationType
from dreamenvs.models.actions import ActionChoice
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import ContinuousActions, DiscreteActions

MemoryT = TypeVar("MemoryT")


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """What comes from the world model and not from a choice: what an agent sees there, and what it does."""

    world: str
    obs_type: ObservationType
    observation_shape: tuple[int, int, int]  # (C, H, W)
    num_features: int
    num_tokens: int
    vocabulary: int
    actions: DiscreteActions | ContinuousActions


def agent_spec(model: WorldModel[Any], obs_type: ObservationType) -> AgentSpec:
    """The spec of an agent that learns in this world model."""
    return AgentSpec(
        world=model.spec.world,
        obs_type=obs_type,
        observation_shape=model.spec.observation_shape,
        num_features=model.num_features,
        num_tokens=model.num_tokens,
        vocabulary=model.vocabulary,
        actions=model.spec.actions,
    )


class NoMemory(NamedTuple):
    """The memory of an agent that has none: a state of no tensors."""


class Judgement(NamedTuple):
    """What an agent says of imagined trajectories, with gradients."""

    outputs: Tensor  # (B, T, O), of the policy before each step, as `choice` reads them
    values: Tensor  # (B, T + 1, …), of the critic before and after each step, as `values` reads them


class Choice(Protocol):
    """How the outputs (…, O) of an agent become actions."""

    def mode(self, outputs: Tensor) -> Tensor:
        """The best actions (…) or (…, A)."""
        ...

    def sample(self, outputs: Tensor, noise: Noise, draw: int = 0) -> Tensor:
        """Actions (B,) or (B, A), drawn for outputs (B, O)."""
        ...


class ActingAgent(Protocol[MemoryT]):
    """What a player asks of an agent, however it has learned; an `nn.Module` too.

    Views are what the agent sees: features (…, F), frames (…, C, H, W) uint8 or tokens (…, K) int64, as the spec's
    `obs_type` says. The memory is a value: a NamedTuple of tensors, rows first.
    """

    @property
    def spec(self) -> AgentSpec: ...

    @property
    def choice(self) -> Choice: ...

    def begin(self, rows: int) -> MemoryT:
        """The memory before the first view."""
        ...

    def act(self, views: Tensor, memory: MemoryT) -> tuple[Tensor, MemoryT]:
        """Outputs (B, O) for one more view (B, …) of every row."""
        ...

    def remember(self, memory: MemoryT, actions: Tensor) -> MemoryT:
        """The memory once these actions were taken after the last view."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def buffers(self) -> Iterator[Tensor]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> Any: ...


class Agent(ActingAgent[MemoryT], Protocol[MemoryT]):
    """A policy and a critic: what `Learner` asks of an agent."""

    spec: AgentSpec
    choice: ActionChoice
    values: Values

    def see(self, views: Tensor) -> None:
        """Look at the first views (B, …) of an update once it is over, for running statistics."""
        ...

    def judge(self, views: Tensor, actions: Tensor, memory: MemoryT) -> Judgement:
        """All steps of trajectories at once: views (B, T + 1, …), actions (B, T, …), the memory before the first view.

        The outputs are those that `act` and `remember` would give step by step.
        """
        ...


def view_of(model: WorldModel[Any], state: Any, obs_type: ObservationType) -> Tensor:
    """What an agent sees of a world model's state."""
    if obs_type == "latent":
        return model.features(state)
    return model.tokens(state).clone() if obs_type == "tokens" else model.decode(state)


def view_shape(spec: AgentSpec) -> tuple[int, ...]:
    """The shape of one row's view."""
    if spec.obs_type == "latent":
        return (spec.num_features,)
    return (spec.num_tokens,) if spec.obs_type == "tokens" else spec.observation_shape


def view_dtype(spec: AgentSpec) -> torch.dtype:
    """The dtype of views."""
    return {"latent": torch.float32, "tokens": torch.int64, "rgb": torch.uint8}[spec.obs_type]
