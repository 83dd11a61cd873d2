"""How a Transformer knows the order of its inputs: rotary positions in every layer, or learned ones at its entrance."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.attention import rotary_turns
from dreamenvs.nn.layers import RowLayerNorm

PositionsName = Literal["rotary", "learned"]
EPSILON = 1e-6
INITIAL_STD = 0.3
"""The inputs come out of a LayerNorm and have a deviation of 1; positions shall be heard beside them, not over them."""


class Positions(Protocol):
    """What positions do to the inputs of a Transformer, and to the queries and keys of its layers."""

    def begin(self, inputs: Tensor) -> Tensor:
        """(B, 1) or (1, 1) int64, the positions at which the rows of inputs (B, T, D) begin in `forward`."""
        ...

    def place(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """Inputs (B, T, D) at positions (B, T) or (1, T), as the first layer takes them."""
        ...

    def turns(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Rotations (..., 1, head_dim / 2) of queries and keys of `dtype` at positions (...), or none."""
        ...


class RotaryPositions:
    """Queries and keys are turned by their positions, so that only the distance between two inputs matters."""

    def __init__(self, head_dim: int) -> None:
        self.head_dim = head_dim

    def begin(self, inputs: Tensor) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.int64, device=inputs.device)

    def place(self, inputs: Tensor, positions: Tensor) -> Tensor:
        return inputs

    def turns(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return rotary_turns(positions, self.head_dim, dtype)[..., None, :]  # the same for all heads


class LearnedPositions(nn.Module):
    """A learned vector for each of `window` positions, added to the inputs before a LayerNorm (GIT-STORM, table 12).

    The paper's positions count from the start of a segment and end with the table, while a dream does not end. Shifting
    them whenever the window slides would change every key and value in it, and the whole window would have to be
    encoded again at every step. So the table is a circle: input n has position n modulo the window. Two inputs that see
    each other are less than a window apart, hence never share a position, and their places on the circle tell the
    distance between them. Training begins every row anywhere on the circle, so that no place means the start of a
    segment and the seam is nothing new to a dream.
    """

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.table = initialization.table(window, width, INITIAL_STD)
        self.norm = RowLayerNorm(width, EPSILON)

    def begin(self, inputs: Tensor) -> Tensor:
        if not self.training:
            return torch.zeros(1, 1, dtype=torch.int64, device=inputs.device)
        return torch.randint(self.table.num_embeddings, (len(inputs), 1), device=inputs.device)

    def place(self, inputs: Tensor, positions: Tensor) -> Tensor:
        placed: Tensor = self.norm(inputs + self.table(positions % self.table.num_embeddings))
        return placed

    def turns(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None


def build_positions(name: PositionsName, width: int, heads: int, window: int) -> Positions:
    """Positions by name, for a Transformer of these sizes."""
    return RotaryPositions(width // heads) if name == "rotary" else LearnedPositions(width, window)
