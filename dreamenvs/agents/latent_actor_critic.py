"""The latent actor-critic: two networks on the world model's features (STEP-VQ table 15; STORM and GIT-STORM table 8).

It has no memory of its own, for the features hold the sequence model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from dreamenvs.agents.critic_outputs import ValueKind, Values, build_values
from dreamenvs.agents.protocol import AgentSpec, Judgement, NoMemory
from dreamenvs.models.actions import ActionChoice
from dreamenvs.nn.layers import RowLayerNorm, RowLinear, RowRMSNorm, RowSiLU
from dreamenvs.nn.running_normalizer import Normalizer


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Layers of linear, norm and activation before the outputs; the defaults are STORM's and GIT-STORM's."""

    actor_units: int = 512
    critic_units: int = 512
    layers: int = 2
    norm: Literal["layer", "rms"] = "layer"
    activation: Literal["relu", "silu"] = "relu"
    normalized: bool = False
    """Whether features are given a mean of 0 and a deviation of 1 first, as DRAMA's actor does: most codes of a frame
    are of the background, and what a small ball changes would be lost among them."""
    values: ValueKind = "two_hot"
    unimix: float = 0.0
    """The share of uniformly random actions in a discrete policy; DreamerV3 has 0.01, the papers here none."""

    def __post_init__(self) -> None:
        if min(self.actor_units, self.critic_units, self.layers) < 1:
            raise ValueError(f"units and layers are at least 1, not {self}")
        if not 0 <= self.unimix < 1:
            raise ValueError(f"unimix is a share from 0 to below 1, not {self.unimix}")


class LatentAgent(nn.Module):
    """An actor (…, F) to (…, O) and a critic (…, F) to (…, values.outputs), any networks that they are."""

    def __init__(
        self,
        spec: AgentSpec,
        actor: nn.Module,
        critic: nn.Module,
        *,
        values: ValueKind = "two_hot",
        unimix: float = 0.0,
        normalized: bool = False,
    ) -> None:
        super().__init__()
        self.config: LatentConfig | None = None
        """Where there is one, from which the networks are built again."""
        self.spec = spec
        self.choice = ActionChoice(spec.actions, unimix)
        self.values: Values = build_values(values)
        self.normalizer = Normalizer(spec.num_features) if normalized else None
        self.actor = actor
        self.critic = critic

    def begin(self, rows: int) -> NoMemory:
        return NoMemory()

    def see(self, views: Tensor) -> None:
        if self.normalizer is not None:
            self.normalizer.see(views)

    def act(self, views: Tensor, memory: NoMemory) -> tuple[Tensor, NoMemory]:
        return self.actor(self._inputs(views)), memory

    def remember(self, memory: NoMemory, actions: Tensor) -> NoMemory:
        return memory

    def judge(self, views: Tensor, actions: Tensor, memory: NoMemory) -> Judgement:
        inputs = self._inputs(views)
        return Judgement(self.actor(inputs[:, :-1]), self.critic(inputs))

    def _inputs(self, views: Tensor) -> Tensor:
        if self.normalizer is None:
            return views
        inputs: Tensor = self.normalizer(views)
        return inputs


def build_latent(config: LatentConfig, spec: AgentSpec) -> LatentAgent:
    """The agent of a config; its policy begins uniform and its critic at zero."""
    if spec.obs_type != "latent":
        raise ValueError(f"a latent agent sees obs_type 'latent', not {spec.obs_type!r}")
    values, choice = build_values(config.values), ActionChoice(spec.actions)
    actor = _network(config, spec.num_features, config.actor_units, choice.outputs)
    critic = _network(config, spec.num_features, config.critic_units, values.outputs)
    agent = LatentAgent(spec, actor, critic, values=config.values, unimix=config.unimix, normalized=config.normalized)
    agent.config = config
    return agent


def _network(config: LatentConfig, width: int, units: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(config.layers):
        norm = RowLayerNorm(units) if config.norm == "layer" else RowRMSNorm(units)
        activation = nn.ReLU() if config.activation == "relu" else RowSiLU()
        layers += [RowLinear(width, units, bias=False), norm, activation]
        width = units
    last = RowLinear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
