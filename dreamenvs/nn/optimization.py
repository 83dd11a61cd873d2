"""What every optimisation loop shares: refusing what is not finite, and the moments of Adam as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class NonFiniteLossError(RuntimeError):
    """A loss or its gradient was NaN or infinite; parameters and buffers are those before that update."""


def export_moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of every parameter and its number of updates; empty before the first one."""
    states = optimizer.state_dict()["state"]
    return {f"{index}.{name}": state[name] for index, state in states.items() for name in _MOMENTS}


def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], moments: Mapping[str, Tensor], owner: str
) -> None:
    """Go on from what `export_moments` gave; `owner` is what messages call the optimiser's owner."""
    wanted = {f"{index}.{name}" for index in range(len(parameters)) for name in _MOMENTS}
    if odd := sorted(set(moments) - wanted):
        raise ValueError(f"the optimiser's state does not fit {owner}: {odd[0]!r:.60}")
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, _, name = key.partition(".")
        parameter = parameters[int(index)]
        if value.shape != (() if name == "step" else parameter.shape):
            raise ValueError(f"the optimiser's {key} has the shape {tuple(value.shape)}, not the parameter's")
        # A copy, since what a file gives need not be aligned as torch's own memory is, nor lie as its parameter does.
        like = value if name == "step" else parameter
        states.setdefault(int(index), {})[name] = torch.empty_like(like, requires_grad=False).copy_(value)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
