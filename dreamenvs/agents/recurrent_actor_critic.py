"""The recurrent actor-critic: an encoder, an LSTM and two linear heads (IRIS; REM A.1.2; Δ-IRIS A.3).

Its memory is its own, so it can act on frames or tokens with no world model beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dreamenvs.agents.critic_outputs import ValueKind, Values, build_values
from dreamenvs.agents.encoders import EncoderConfig, PixelEncoderConfig, build_encoder
from dreamenvs.agents.protocol import AgentSpec, Judgement
from dreamenvs.models.actions import ActionChoice


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """An encoder and an LSTM; the defaults are IRIS's."""

    encoder: EncoderConfig = field(default_factory=PixelEncoderConfig)
    units: int = 512
    """Of the LSTM."""
    action_inputs: bool = False
    """Whether an action that was taken goes through the LSTM too, in a step of its own after the view's (REM)."""
    values: ValueKind = "scalar"
    """With `two_hot` on the shared LSTM, large learning rates keep the policy from learning: of eight runs of a small
    recall task at 1e-2 one succeeded, and with `scalar` all did."""
    unimix: float = 0.0

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"the LSTM needs at least one unit, not {self.units}")
        if not 0 <= self.unimix < 1:
            raise ValueError(f"unimix is a share from 0 to below 1, not {self.unimix}")


class Recurrent(NamedTuple):
    """The memory of an LSTM."""

    hidden: Tensor  # (B, D)
    cell: Tensor  # (B, D)


class RecurrentAgent(nn.Module):
    """Actor and critic on one LSTM."""

    def __init__(self, config: RecurrentConfig, spec: AgentSpec) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        self.choice = ActionChoice(spec.actions, config.unimix)
        self.values: Values = build_values(config.values)
        self.encoder = build_encoder(config.encoder, spec)
        self.cell = nn.LSTMCell(self.encoder.width, config.units)
        self.actor = nn.Linear(config.units, self.choice.outputs)
        self.critic = nn.Linear(config.units, self.values.outputs)
        for head in (self.actor, self.critic):  # the policy begins uniform, the critic at zero
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        # Of one-hot actions this is a table with a vector for each.
        width = self.choice.encoder.width
        self.embed_action = nn.Linear(width, self.encoder.width, bias=False) if config.action_inputs else None

    def begin(self, rows: int) -> Recurrent:
        zeros = self.actor.weight.new_zeros(rows, self.config.units)
        return Recurrent(zeros, zeros.clone())

    def see(self, views: Tensor) -> None:
        pass

    def act(self, views: Tensor, memory: Recurrent) -> tuple[Tensor, Recurrent]:
        memory = self._move(self.encoder(views), memory)
        return self.actor(memory.hidden), memory

    def remember(self, memory: Recurrent, actions: Tensor) -> Recurrent:
        if self.embed_action is None:
            return memory
        return self._move(self.embed_action(self.choice.encoder(actions)), memory)

    def judge(self, views: Tensor, actions: Tensor, memory: Recurrent) -> Judgement:
        rows, steps = views.shape[:2]
        inputs = self.encoder(views.flatten(0, 1)).unflatten(0, (rows, steps))
        hidden = []
        for step in range(steps):
            memory = self._move(inputs[:, step], memory)
            hidden.append(memory.hidden)
            if step + 1 < steps:
                memory = self.remember(memory, actions[:, step])
        seen = torch.stack(hidden, 1)
        return Judgement(self.actor(seen[:, :-1]), self.critic(seen))

    def _move(self, inputs: Tensor, memory: Recurrent) -> Recurrent:
        return Recurrent(*self.cell(inputs, tuple(memory)))


def build_recurrent(config: RecurrentConfig, spec: AgentSpec) -> RecurrentAgent:
    """The agent of a config."""
    return RecurrentAgent(config, spec)
