"""A convolutional GRU over the token grid: memory with places (Ballas et al., 2016; Cho et al., 2014).

One vector for a whole screen forgets small things. Here every place of the grid has numbers of its own, and what moves
from place to place is learned once for all of them. There is no parallel form: a frame follows from the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dreamenvs.nn.layers import RowConv2d


@dataclass(frozen=True, kw_only=True)
class ConvGRUConfig:
    """Sizes of the memory."""

    channels: int = 32
    """Numbers at every place."""
    kernel: int = 3
    """Places that are seen by one, across."""

    def __post_init__(self) -> None:
        if self.channels < 1 or self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"channels is 1 or more and kernel odd, not {self.channels} and {self.kernel}")


class ConvGRUCache(NamedTuple):
    """The memory after the last input."""

    hidden: Tensor  # (B, D), D = channels · H' · W'


class ConvGRU(nn.Module):
    """Hidden (B, T, D) of inputs (B, T, D), each a grid (channels, H', W') laid out in a row."""

    def __init__(self, config: ConvGRUConfig, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config, self.grid = config, grid
        channels, kernel = config.channels, config.kernel
        self.width = channels * grid[0] * grid[1]
        self.look = RowConv2d(channels, 3 * channels, kernel, padding=kernel // 2)
        self.recall = RowConv2d(channels, 2 * channels, kernel, padding=kernel // 2, bias=False)
        self.propose = RowConv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
        self.places = nn.Parameter(torch.zeros(3 * channels, *grid))
        nn.init.zeros_(self.look.bias)  # type: ignore[arg-type]
        with torch.no_grad():  # a young memory keeps what it holds rather than forgetting half of it at every step
            self.look.bias[:channels] = -1.0  # type: ignore[index]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.extend(inputs, self.initial_cache(len(inputs)))[0]

    def initial_cache(self, rows: int) -> ConvGRUCache:
        return ConvGRUCache(self.places.new_zeros(rows, self.width))

    def extend(self, inputs: Tensor, cache: ConvGRUCache) -> tuple[Tensor, ConvGRUCache]:
        rows, steps = inputs.shape[:2]
        seen = self._see(inputs.flatten(0, 1))
        seen = seen.view(rows, steps, *seen.shape[1:])
        hidden = self._held(cache)
        outputs = []
        for step in range(steps):
            hidden = self._advance(seen[:, step], hidden)
            outputs.append(hidden.flatten(1))
        return torch.stack(outputs, 1), ConvGRUCache(outputs[-1])

    def step(self, inputs: Tensor, cache: ConvGRUCache) -> tuple[Tensor, ConvGRUCache]:
        hidden = self._advance(self._see(inputs), self._held(cache)).flatten(1)
        return hidden, ConvGRUCache(hidden)

    def flops_per_step(self) -> int:
        """Floating-point operations of one `step`, per row, without the gates' own arithmetic."""
        weights = sum(layer.weight.numel() for layer in (self.look, self.recall, self.propose))
        return 2 * weights * self.grid[0] * self.grid[1]

    def _see(self, inputs: Tensor) -> Tensor:
        """What the inputs (N, D) say to all three gates, (N, 3·C, H', W'): it needs no memory, so all steps at once."""
        seen: Tensor = self.look(self._on_grid(inputs))
        return seen + self.places

    def _advance(self, seen: Tensor, hidden: Tensor) -> Tensor:
        open_seen, reset_seen, new_seen = seen.chunk(3, 1)
        open_held, reset_held = self.recall(hidden).chunk(2, 1)
        reset = torch.sigmoid(reset_seen + reset_held)
        proposed = torch.tanh(new_seen + self.propose(reset * hidden))
        return torch.lerp(hidden, proposed, torch.sigmoid(open_seen + open_held))

    def _held(self, cache: ConvGRUCache) -> Tensor:
        """The memory on its grid; a copy where autograd could not keep a tensor that was made in inference mode."""
        hidden = cache.hidden
        crossing = hidden.is_inference() and not torch.is_inference_mode_enabled()
        return self._on_grid(hidden.clone() if crossing else hidden)

    def _on_grid(self, vectors: Tensor) -> Tensor:
        return vectors.reshape(-1, self.config.channels, *self.grid)
