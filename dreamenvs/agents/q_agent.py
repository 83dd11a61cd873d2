"""QAgent: acts on Q values, ε-greedily; its memory is the last view.

Its outputs are values, not logits: a softmax over them means nothing, and a temperature only tells 0 from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dreamenvs.agents.protocol import AgentSpec, view_dtype, view_shape
from dreamenvs.agents.q_network import QNetwork, QNetworkConfig
from dreamenvs.random import Noise


@dataclass(frozen=True, kw_only=True)
class QAgentConfig:
    """A Q network, and how an agent acts on it once it has learned."""

    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    epsilon: float = 0.01
    """The share of random actions where actions are drawn; the deterministic ones are always the best ones."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon is a share from 0 to 1, not {self.epsilon}")


class LastView(NamedTuple):
    """The memory of a Q agent."""

    view: Tensor  # (B, …), the view before the coming one
    fresh: Tensor  # (B,) bool, whether the coming view is an episode's first one, which also counts as the one before


class EpsilonGreedy:
    """The best of A actions by their values, or with probability ε any of them."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def mode(self, outputs: Tensor) -> Tensor:
        """The best actions (…) by Q values (…, A)."""
        return outputs.argmax(-1)

    def sample(self, outputs: Tensor, noise: Noise, draw: int = 0) -> Tensor:
        """Actions (B,) for Q values (B, A); at temperature 0 the best ones."""
        best = self.mode(outputs)
        if noise.temperature == 0:
            return best
        chance, choice = noise.uniform(2, draw).unbind(1)
        return torch.where(chance < self.epsilon, (choice * outputs.shape[-1]).long(), best)


class QAgent(nn.Module):
    """A Q network as an agent that acts; `PQN` is its learner."""

    def __init__(self, config: QAgentConfig, spec: AgentSpec) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        self.choice = EpsilonGreedy(config.epsilon)
        self.network = QNetwork(config.network, spec)

    def begin(self, rows: int) -> LastView:
        """The memory before the first view."""
        device = self.network.values.weight.device
        view = torch.zeros((rows, *view_shape(self.spec)), dtype=view_dtype(self.spec), device=device)
        return LastView(view, torch.ones(rows, dtype=torch.bool, device=device))

    def act(self, views: Tensor, memory: LastView) -> tuple[Tensor, LastView]:
        """Q values (B, A) for one more view (B, …) of every row."""
        values = self.network(previous_views(views, memory), views)
        return values, LastView(views, torch.zeros_like(memory.fresh))

    def remember(self, memory: LastView, actions: Tensor) -> LastView:
        """The memory as it is: actions are not kept."""
        return memory


def previous_views(views: Tensor, memory: LastView) -> Tensor:
    """The views (B, …) before these; an episode's first view also counts as the one before it."""
    fresh = memory.fresh.view(-1, *(1 for _ in views.shape[1:]))
    return torch.where(fresh, views, memory.view)


def build_q_agent(config: QAgentConfig, spec: AgentSpec) -> QAgent:
    """The agent of a config, with random weights from torch's own generator."""
    return QAgent(config, spec)
