"""Updater: AdamW over the parameter groups of a stage, with its warm-up, decay and clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dreamenvs.fitting.distributed import ALONE, Ranks
from dreamenvs.nn.optimization import NonFiniteLossError as NonFiniteLossError
from dreamenvs.nn.optimization import export_moments, restore_moments
from dreamenvs.protocols import Stage
from dreamenvs.types import Segment


class Measured(NamedTuple):
    """What one update measured."""

    loss: float
    parts: dict[str, float]
    gradient_norm: float
    learning_rate: float
    """Of the first group."""


class Updater:
    """One update after another of a stage's parameters; `buffers` are what its loss moves besides, such as codes.

    Each of several ranks is given its rows of a batch; all make the same update, that of the whole batch.
    """

    def __init__(self, stage: Stage, buffers: tuple[Tensor, ...] = (), ranks: Ranks = ALONE) -> None:
        self.stage = stage
        self._ranks = ranks
        self._buffers = buffers
        self._parameters: list[nn.Parameter] = [each for group in stage.groups for each in group.parameters]
        settings = [
            {"params": list(group.parameters), "lr": group.learning_rate, "weight_decay": group.weight_decay}
            for group in stage.groups
        ]
        self._optimizer = torch.optim.AdamW(settings, eps=1e-8)

    def __call__(self, segment: Segment, update: int) -> Measured:
        """Update number `update` of the stage, from 0."""
        rate = learning_rate_share(self.stage, update)
        for group, setting in zip(self.stage.groups, self._optimizer.param_groups, strict=True):
            setting["lr"] = group.learning_rate * rate
        before = [buffer.clone() for buffer in self._buffers]
        with self._ranks.together():
            terms = self.stage.loss(segment)
        parts = {part: float(amount) for part, amount in terms.parts.items()}
        loss = float(terms.total.detach())
        if not math.isfinite(loss):
            raise self._refuse("loss", loss, update, parts, before)
        self._optimizer.zero_grad(set_to_none=True)
        terms.total.backward()  # type: ignore[no-untyped-call]
        self._ranks.average_gradients(self._parameters)
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self.stage.clip))
        if not math.isfinite(norm):
            raise self._refuse("gradient", norm, update, parts, before)
        self._optimizer.step()
        return Measured(loss, parts, norm, self._optimizer.param_groups[0]["lr"])

    def export(self) -> dict[str, Tensor]:
        """The moments of every parameter and its number of updates; empty before the first one."""
        return export_moments(self._optimizer)

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        """Go on from what `export` gave."""
        restore_moments(self._optimizer, self._parameters, moments, f"stage {self.stage.name!r}")

    @torch.no_grad()
    def _refuse(
        self, what: str, value: float, update: int, parts: dict[str, float], before: list[Tensor]
    ) -> NonFiniteLossError:
        for buffer, old in zip(self._buffers, before, strict=True):
            buffer.copy_(old)
        self._optimizer.zero_grad(set_to_none=True)
        terms = ", ".join(f"{part} {amount:g}" for part, amount in parts.items())
        return NonFiniteLossError(f"the {what} of stage {self.stage.name!r} is {value} at update {update} ({terms})")


def learning_rate_share(stage: Stage, update: int) -> float:
    """The share of its learning rates that a stage uses at an update: a linear rise times a falling cosine."""
    rise = min(1.0, (update + 1) / max(stage.warmup, 1))
    fall = (1 + math.cos(math.pi * min(update / max(stage.updates, 1), 1.0))) / 2
    return rise * (stage.decay + (1 - stage.decay) * fall)
