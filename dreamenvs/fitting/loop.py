"""The optimisation loop: a generator that yields what it measured; the caller decides what to do with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from dreamenvs.protocols import ParameterGroup
from dreamenvs.types import LossTerms

BatchT = TypeVar("BatchT")


class Metrics(NamedTuple):
    """What one update measured."""

    update: int
    loss: float
    parts: dict[str, float]
    gradient_norm: float


class NonFiniteLossError(RuntimeError):
    """A loss was NaN or infinite; the parameters are those before that update."""


def optimize(
    name: str,
    loss: Callable[[BatchT], LossTerms],
    groups: tuple[ParameterGroup, ...],
    batches: Iterable[BatchT],
    *,
    clip: float,
    warmup: int = 100,
    updates: int | None = None,
) -> Iterator[Metrics]:
    """Minimise a loss with AdamW, one update a batch, with a linear warm-up.

    With `updates` known beforehand the learning rates fall to a tenth along a cosine; without, they stay.
    """
    settings = [
        {"params": list(group.parameters), "lr": group.learning_rate, "weight_decay": group.weight_decay}
        for group in groups
    ]
    optimizer = torch.optim.AdamW(settings, eps=1e-8)
    parameters: list[nn.Parameter] = [parameter for group in groups for parameter in group.parameters]
    for update, batch in enumerate(batches):
        for group, setting in zip(groups, optimizer.param_groups, strict=True):
            setting["lr"] = group.learning_rate * _rate(update, warmup, updates)
        terms = loss(batch)
        if not math.isfinite(value := float(terms.total.detach())):
            parts = ", ".join(f"{part} {float(amount):g}" for part, amount in terms.parts.items())
            raise NonFiniteLossError(f"the loss of stage {name!r} is {value} at update {update}: {parts}")
        optimizer.zero_grad(set_to_none=True)
        terms.total.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(parameters, clip))
        optimizer.step()
        yield Metrics(update, value, {part: float(amount) for part, amount in terms.parts.items()}, norm)


def _rate(update: int, warmup: int, updates: int | None) -> float:
    rise = min(1.0, (update + 1) / max(warmup, 1))
    if updates is None:
        return rise
    return rise * (0.55 + 0.45 * math.cos(math.pi * min(update / updates, 1.0)))
