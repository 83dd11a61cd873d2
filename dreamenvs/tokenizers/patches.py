"""Exact patches: the token of a place is the nearest of a set of patches that grows and never moves.

After Dedieu et al. (2025), "Improving Transformer World Models for Data-Efficient RL": nothing is trained, a patch that
was seen once is shown again to the bit, and decoding is a look-up. It serves frames that are made of patches, such as
those of games with cells or sprites; `share_of_strange` says how many are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn import initialization

MOST_SCORES = 2**24
"""Numbers that are held at once while patches are compared with those that are kept."""


@dataclass(frozen=True, kw_only=True)
class PatchesConfig:
    """How large patches are, how many are kept, and when a new one is."""

    size: int = 4
    """The side of a patch, in pixels."""
    codes: int = 32
    """The most patches that are kept."""
    threshold: float = 4.0
    """A patch is kept when none of the kept ones is this near, as a root mean square over its numbers from 0 to 255."""
    code_width: int = 16
    """Numbers that stand for a patch: at first made from its pixels, so that like patches begin alike."""

    def __post_init__(self) -> None:
        if min(self.size, self.codes, self.code_width) < 1 or not 0 <= self.threshold < 256:
            raise ValueError(f"size, codes and code_width are 1 or more and threshold is from 0 to 255: {self}")


class Found(NamedTuple):
    """The nearest kept patches of some patches."""

    tokens: Tensor  # (N,) int64
    distances: Tensor  # (N,), root mean squares; infinity where no patch is kept


class PatchTokenizer(nn.Module):
    """K = H'·W' tokens per frame, row by row, each one of at most `codes` patches; `grow` adds what it has not seen."""

    patches: Tensor
    kept: Tensor

    def __init__(self, config: PatchesConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = observation_shape
        if height % config.size or width % config.size:
            raise ValueError(f"frames of {height} x {width} pixels are not made of patches of {config.size}")
        self.config, self.channels = config, channels
        self.grid = (height // config.size, width // config.size)
        numbers = channels * config.size**2
        self.register_buffer("patches", torch.zeros(config.codes, numbers, dtype=torch.uint8))  # (V, P)
        self.register_buffer("kept", torch.zeros((), dtype=torch.int64))
        self.vectors = nn.Parameter(initialization.normal_(torch.empty(config.codes, config.code_width), 0.1))
        self.pixels = nn.Linear(numbers, config.code_width, bias=False)
        initialization.normal_(self.pixels.weight, numbers**-0.5)

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def vocabulary(self) -> int:
        return self.config.codes

    @property
    def latent_width(self) -> int:
        return self.num_tokens * self.config.code_width

    def encode(self, observations: Tensor) -> Tensor:
        return self.nearest(self._cut(observations)).tokens.view(-1, self.num_tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """Latent (N, K·D): a linear map of a patch's own pixels plus a free part, both learned with the dynamics."""
        table = self.vectors + self.pixels(self.patches.to(self.vectors.dtype) / 128 - 1)
        return F.embedding(tokens, table).flatten(1)

    def frames(self, tokens: Tensor) -> Tensor:
        """Pixels (N, C, H, W) uint8 of tokens (N, K): a look-up, with no network to run."""
        height, width = self.grid
        shape = {"h": height, "w": width, "c": self.channels, "i": self.config.size}
        return rearrange(self.patches[tokens], "n (h w) (c i j) -> n c (h i) (w j)", **shape)

    @torch.no_grad()
    def grow(self, observations: Tensor) -> int:
        """Keep what is strange in frames (N, C, H, W) uint8, the most frequent first; how many patches were added.

        The same frames in the same order give the same patches; what was kept stays where it is.
        """
        strange = self._cut(observations)
        strange = strange[self.nearest(strange).distances > self.config.threshold]
        distinct, counts = torch.unique(strange, dim=0, return_counts=True)
        before = int(self.kept)
        for patch in distinct[counts.argsort(descending=True, stable=True)]:
            count = int(self.kept)
            if count == self.config.codes:
                break
            if float(self.nearest(patch[None]).distances[0]) > self.config.threshold:
                self.patches[count] = patch
                self.kept += 1
        return int(self.kept) - before

    @torch.no_grad()
    def share_of_strange(self, observations: Tensor) -> float:
        """The share of the places of frames (N, C, H, W) uint8 whose nearest patch is farther than the threshold."""
        return float((self.nearest(self._cut(observations)).distances > self.config.threshold).double().mean())

    def nearest(self, patches: Tensor) -> Found:
        """The nearest kept patches of patches (N, P) uint8."""
        count = int(self.kept)
        kept = self.patches[: max(count, 1)].float() - 128
        squares = kept.square().sum(-1)
        tokens, distances = [], []
        for part in torch.split(patches, max(1, MOST_SCORES // len(kept))):
            given = part.float() - 128
            # Integers up to 2^24 are exact in float32, and sums of squares of up to 1,024 centred bytes stay below.
            best = torch.addmm(-squares, given, kept.T, alpha=2).max(-1)
            tokens.append(best.indices)
            distances.append(((given.square().sum(-1) - best.values).clamp(min=0) / patches.shape[1]).sqrt())
        found = Found(torch.cat(tokens), torch.cat(distances))
        return found if count else found._replace(distances=torch.full_like(found.distances, float("inf")))

    def _cut(self, observations: Tensor) -> Tensor:
        """Patches (N·K, P) of frames (N, C, H, W)."""
        size = self.config.size
        return rearrange(observations, "n c (h i) (w j) -> (n h w) (c i j)", i=size, j=size)
