"""What a critic's outputs mean: a two-hot distribution in symlog space (DreamerV3), or the number (IRIS, REM)."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from dreamenvs.nn.distributions import BINS, two_hot_loss, two_hot_mean

ValueKind = Literal["two_hot", "scalar"]


class Values(Protocol):
    """How outputs (…, O) are read and fitted."""

    @property
    def outputs(self) -> int: ...

    def mean(self, outputs: Tensor) -> Tensor:
        """Values (…) of outputs (…, O)."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How far outputs (…, O) are from targets (…)."""
        ...


class TwoHotValues:
    """255 bins that are even in symlog space; the loss is the cross-entropy with the two bins around the target."""

    outputs = BINS

    def mean(self, outputs: Tensor) -> Tensor:
        return two_hot_mean(outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return two_hot_loss(outputs, targets.detach())


class ScalarValues:
    """One number; the loss is the squared error."""

    outputs = 1

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[..., 0] - targets.detach()).square()


def build_values(kind: ValueKind) -> Values:
    """The values of a kind."""
    return TwoHotValues() if kind == "two_hot" else ScalarValues()
