"""Actions of every kind: what a network sees of them, which ones are allowed, and their Gymnasium space.

The only module that asks whether an action space is discrete or continuous.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.action_distributions import Categorical, TruncatedNormal
from dreamenvs.random import Noise
from dreamenvs.types import ContinuousActions, DiscreteActions

Actions = DiscreteActions | ContinuousActions
ROUNDING = 1e-6
"""The share of its range by which a continuous action may miss its bounds: policies that scale their outputs to the
bounds in float32, such as SAC of Stable-Baselines3, do so at times. It is then put on the bound."""


class ActionEncoder(nn.Module):
    """Actions (…) int64 or (…, A) float32 as network inputs (…, A): one-hot, or scaled from their bounds to [-1, 1]."""

    centre: Tensor
    reach: Tensor

    def __init__(self, actions: Actions) -> None:
        super().__init__()
        self.actions = actions
        self.width = actions.count if isinstance(actions, DiscreteActions) else len(actions.low)
        if isinstance(actions, ContinuousActions):
            low, high = torch.tensor(actions.low), torch.tensor(actions.high)
            # Not saved with the weights: the bounds come from the data's description, which is.
            self.register_buffer("centre", (low + high) / 2, persistent=False)
            self.register_buffer("reach", (high - low) / 2, persistent=False)

    def encode(self, actions: Tensor) -> Tensor:
        """Network inputs (…, A) float32."""
        if isinstance(self.actions, DiscreteActions):
            return F.one_hot(actions, self.width).float()
        return (actions - self.centre) / self.reach

    def forward(self, actions: Tensor) -> Tensor:
        return self.encode(actions)


class ActionChoice(nn.Module):
    """What a policy network's outputs (…, O) say of actions: a categorical, or a truncated normal inside the bounds.

    Of continuous actions, probabilities are densities of the action scaled to [-1, 1].
    """

    def __init__(self, actions: Actions, unimix: float = 0.0) -> None:
        super().__init__()
        self.encoder = ActionEncoder(actions)
        width = self.encoder.width
        discrete = isinstance(actions, DiscreteActions)
        self.distribution = Categorical(width, unimix) if discrete else TruncatedNormal(width)

    @property
    def outputs(self) -> int:
        """O, the outputs that a network must have."""
        return self.distribution.outputs

    def sample(self, outputs: Tensor, noise: Noise, draw: int = 0) -> Tensor:
        """Actions (B,) or (B, A), drawn for outputs (B, O)."""
        return self._to_bounds(self.distribution.sample(outputs, noise, draw))

    def mode(self, outputs: Tensor) -> Tensor:
        """The most likely actions (…) or (…, A)."""
        return self._to_bounds(self.distribution.mode(outputs))

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """(…) for outputs (…, O) and actions (…) or (…, A)."""
        return self.distribution.log_prob(outputs, self._from_bounds(actions))

    def entropy(self, outputs: Tensor) -> Tensor:
        """(…) in nats."""
        return self.distribution.entropy(outputs)

    def _to_bounds(self, values: Tensor) -> Tensor:
        kind = self.encoder.actions
        if isinstance(kind, DiscreteActions):
            return values
        low, high = _bounds(kind, values.device)
        return torch.clamp(self.encoder.centre + self.encoder.reach * values, low, high)

    def _from_bounds(self, actions: Tensor) -> Tensor:
        return actions if isinstance(self.encoder.actions, DiscreteActions) else self.encoder.encode(actions)


def check_actions(kind: Actions, actions: object, rows: int) -> Tensor:
    """One action per row, from an array, tensor or list, as (B,) int64 or (B, A) float32; errors name what is wrong."""
    discrete = isinstance(kind, DiscreteActions)
    values = _to_tensor(actions, "integers" if discrete else "floats")
    low, high = _bounds(kind, values.device)
    shape = (rows, *low.shape)
    if values.shape != shape:
        raise ValueError(f"actions must have shape {shape}, one per row, not {tuple(values.shape)}")
    slack = 0 if discrete else ROUNDING * (high - low)
    allowed = (values >= low - slack) & (values <= high + slack)  # NaN fails both
    if not bool(allowed.all()):
        raise ValueError(_describe_first(kind, values, allowed))
    return values if discrete else torch.clamp(values, low, high)


def _to_tensor(actions: object, wanted: Literal["integers", "floats"]) -> Tensor:
    given = actions.detach() if isinstance(actions, Tensor) else np.asarray(actions)
    if isinstance(given, Tensor):
        is_float, is_other = given.is_floating_point(), given.is_complex() or given.dtype == torch.bool
    else:
        is_float, is_other = given.dtype.kind == "f", given.dtype.kind not in "iuf"
    if is_other or is_float != (wanted == "floats"):
        raise TypeError(f"actions must be {wanted}, not {given.dtype}")
    if isinstance(given, Tensor):
        return given.to(torch.float32 if is_float else torch.int64)
    # astype copies, and what happens to the caller's array afterwards does not reach the step.
    return torch.from_numpy(given.astype(np.float32 if is_float else np.int64))


@lru_cache(maxsize=64)
def _bounds(kind: Actions, device: torch.device) -> tuple[Tensor, Tensor]:
    """The smallest and largest action: () for discrete actions, (A,) for continuous ones."""
    if isinstance(kind, DiscreteActions):
        return torch.tensor(0, device=device), torch.tensor(kind.count - 1, device=device)
    return torch.tensor(kind.low, device=device), torch.tensor(kind.high, device=device)


def _describe_first(kind: Actions, values: Tensor, allowed: Tensor) -> str:
    """What is wrong with the first value that is not allowed."""
    row, *dimension = (int(index) for index in (~allowed).nonzero()[0])
    if isinstance(kind, DiscreteActions):
        return f"action {int(values[row])} of row {row} is not one of 0 to {kind.count - 1}"
    at = dimension[0]
    bounds = f"[{kind.low[at]:g}, {kind.high[at]:g}]"
    return f"action {float(values[row, at]):g} of row {row}, dimension {at}, is not in {bounds}"


def action_space(kind: Actions) -> Space[Any]:
    """The Gymnasium space of one row's action."""
    if isinstance(kind, DiscreteActions):
        return spaces.Discrete(kind.count)
    return spaces.Box(np.array(kind.low, np.float32), np.array(kind.high, np.float32), dtype=np.float32)


def from_space(space: Space[Any]) -> Actions:
    """The actions of a Gymnasium space: `Discrete` from 0, or a `Box` of finite float vectors."""
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return DiscreteActions(count=int(space.n))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return ContinuousActions(low=tuple(map(float, space.low)), high=tuple(map(float, space.high)))
    raise ValueError(f"need a Discrete action space that starts at 0 or a one-dimensional Box of floats, not {space}")


def zero_actions(kind: Actions, rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Action 0, or the centre of the bounds, for every row."""
    if isinstance(kind, DiscreteActions):
        return torch.zeros(rows, dtype=torch.int64, device=device)
    low, high = _bounds(kind, torch.device(device))
    return ((low + high) / 2).repeat(rows, 1)


def sample_actions(kind: Actions, rows: int, generator: torch.Generator | None = None) -> Tensor:
    """Uniformly random actions on the generator's device, or on the CPU."""
    device = torch.device("cpu") if generator is None else generator.device
    if isinstance(kind, DiscreteActions):
        return torch.randint(kind.count, (rows,), generator=generator, device=device)
    low, high = _bounds(kind, device)
    return torch.lerp(low, high, torch.rand(rows, len(low), generator=generator, device=device))
