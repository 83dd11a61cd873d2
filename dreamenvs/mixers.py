"""Mixers: a frame's latent and the action that follows it, as one input to a frame-level sequence model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dreamenvs.nn.layers import RowLinear, RowRMSNorm, row_silu


@dataclass(frozen=True, kw_only=True)
class ConcatMixerConfig:
    """Concatenation, one linear layer, RMSNorm, SiLU: DRAMA's stem, on which STEP-VQ builds. It has no choices."""


class ConcatMixer(nn.Module):
    """Mixes latent (…, L) and encoded actions (…, A) to inputs (…, D)."""

    def __init__(self, config: ConcatMixerConfig, latent_width: int, action_width: int, width: int) -> None:
        super().__init__()
        self.linear = RowLinear(latent_width + action_width, width)
        self.norm = RowRMSNorm(width)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        mixed = self.linear(torch.cat([latent, actions.to(latent.dtype)], dim=-1))
        return row_silu(self.norm(mixed))
