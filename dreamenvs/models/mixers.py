"""Mixers: a frame's latent and the action that follows it, as one input to a frame-level sequence model.

`ConcatMixer` is DRAMA's. The others are the state mixers of GIT-STORM (table 11 and section E.4), which names the last
three and does not draw them; they take actions of every kind as `ActionEncoder` gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dreamenvs.nn import initialization
from dreamenvs.nn.attention import attend_few
from dreamenvs.nn.layers import RowLayerNorm, RowLinear, RowRMSNorm, row_silu


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


@dataclass(frozen=True, kw_only=True)
class GridMixerConfig:
    """Every place's token by a linear layer, plus the same of the action everywhere. It has no choices."""


class GridMixer(nn.Module):
    """Mixes latent (N, K·D') and encoded actions (N, A) to inputs (N, C·H'·W') for a memory with places."""

    def __init__(
        self, config: GridMixerConfig, num_tokens: int, latent_width: int, action_width: int, channels: int
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.token = RowLinear(latent_width // num_tokens, channels)
        self.action = RowLinear(action_width, channels, bias=False)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        places: Tensor = self.token(latent.view(len(latent), self.num_tokens, -1))
        mixed: Tensor = places + self.action(actions.to(latent.dtype))[:, None]
        return mixed.mT.flatten(1)


@dataclass(frozen=True, kw_only=True)
class StateMixerConfig:
    """Concatenation and two linear layers, each with LayerNorm: table 11. It has no choices."""


class StateMixer(nn.Module):
    """Mixes latent (N, L) and encoded actions (N, A) to inputs (N, D)."""

    def __init__(self, config: StateMixerConfig, latent_width: int, action_width: int, width: int) -> None:
        super().__init__()
        self.enter = RowLinear(latent_width + action_width, width, bias=False)
        self.enter_norm = RowLayerNorm(width)
        self.leave = RowLinear(width, width, bias=False)
        self.leave_norm = RowLayerNorm(width)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        mixed = self.enter(torch.cat([latent, actions.to(latent.dtype)], dim=-1))
        inputs: Tensor = self.leave_norm(self.leave(self.enter_norm(mixed).relu_()))
        return inputs


@dataclass(frozen=True, kw_only=True)
class AttentionMixerConfig:
    """Concatenation followed by attention: a frame's tokens and its action, side by side, attend to one another."""

    units: int = 64
    """The width of a token."""
    heads: int = 4

    def __post_init__(self) -> None:
        _check_heads(self.units, self.heads)


class AttentionMixer(nn.Module):
    """Mixes latent (N, K·D') and encoded actions (N, A) to inputs (N, D), by way of K + 1 tokens."""

    def __init__(
        self, config: AttentionMixerConfig, num_tokens: int, latent_width: int, action_width: int, width: int
    ) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(num_tokens, latent_width, config.units)
        self.action = RowLinear(action_width, config.units)
        self.attention = TokenAttention(config.units, config.heads)
        self.leave = RowLinear((num_tokens + 1) * config.units, width, bias=False)
        self.norm = RowLayerNorm(width)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        action = self.action(actions.to(latent.dtype))
        side_by_side = torch.cat([self.tokens(latent), action[:, None]], 1)
        inputs: Tensor = self.norm(self.leave(self.attention(side_by_side, side_by_side).flatten(1)))
        return inputs


@dataclass(frozen=True, kw_only=True)
class CrossAttentionMixerConfig:
    """Cross-attention: each token of a frame asks, and the numbers of the encoded action answer."""

    units: int = 64
    """The width of a token."""
    heads: int = 4

    def __post_init__(self) -> None:
        _check_heads(self.units, self.heads)


class CrossAttentionMixer(nn.Module):
    """Mixes latent (N, K·D') and encoded actions (N, A) to inputs (N, D), by way of K tokens.

    Each of the A numbers is a token of its own: were the action a single one, there would be nothing to choose from,
    and all attention weights would be 1.
    """

    def __init__(
        self, config: CrossAttentionMixerConfig, num_tokens: int, latent_width: int, action_width: int, width: int
    ) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(num_tokens, latent_width, config.units)
        self.directions = nn.Parameter(initialization.normal_(torch.empty(action_width, config.units), 1.0))
        self.origins = nn.Parameter(initialization.normal_(torch.empty(action_width, config.units)))
        self.attention = TokenAttention(config.units, config.heads)
        self.leave = RowLinear(num_tokens * config.units, width, bias=False)
        self.norm = RowLayerNorm(width)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        numbers = torch.addcmul(self.origins, actions.to(latent.dtype)[..., None], self.directions)
        inputs: Tensor = self.norm(self.leave(self.attention(self.tokens(latent), numbers).flatten(1)))
        return inputs


@dataclass(frozen=True, kw_only=True)
class UnmixedConfig:
    """No mixing network: embeddings of state and action go side by side into the sequence model."""

    share: float = 0.25
    """Of the width, for the action."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share is between 0 and 1, not {self.share}")


class Unmixed(nn.Module):
    """Lays latent (N, L) and encoded actions (N, A) side by side as inputs (N, D)."""

    def __init__(self, config: UnmixedConfig, latent_width: int, action_width: int, width: int) -> None:
        super().__init__()
        units = min(max(1, round(config.share * width)), width - 1)
        self.state = RowLinear(latent_width, width - units)
        self.action = RowLinear(action_width, units)

    def forward(self, latent: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([self.state(latent), self.action(actions.to(latent.dtype))], dim=-1)


MixerConfig = StateMixerConfig | AttentionMixerConfig | CrossAttentionMixerConfig | UnmixedConfig
"""The state mixers of section E.4."""


def build_mixer(
    config: MixerConfig, num_tokens: int, latent_width: int, action_width: int, width: int
) -> StateMixer | AttentionMixer | CrossAttentionMixer | Unmixed:
    """The state mixer of a config, for latents of `num_tokens` equal parts."""
    if isinstance(config, StateMixerConfig):
        return StateMixer(config, latent_width, action_width, width)
    if isinstance(config, AttentionMixerConfig):
        return AttentionMixer(config, num_tokens, latent_width, action_width, width)
    if isinstance(config, CrossAttentionMixerConfig):
        return CrossAttentionMixer(config, num_tokens, latent_width, action_width, width)
    return Unmixed(config, latent_width, action_width, width)


class TokenEmbedding(nn.Module):
    """Latent (N, K·D') as K tokens (N, K, D), with a learned vector for each place."""

    def __init__(self, num_tokens: int, latent_width: int, units: int) -> None:
        super().__init__()
        self.linear = RowLinear(latent_width // num_tokens, units, bias=False)
        self.places = nn.Parameter(initialization.normal_(torch.empty(num_tokens, units)))

    def forward(self, latent: Tensor) -> Tensor:
        parts = latent.view(len(latent), len(self.places), -1)
        tokens: Tensor = self.linear(parts) + self.places
        return tokens


class TokenAttention(nn.Module):
    """What tokens (N, K, D) find among sources (N, S, D), added to them before a LayerNorm."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask = RowLinear(units, units, bias=False)
        self.answer = RowLinear(units, 2 * units, bias=False)
        self.out = RowLinear(units, units, bias=False)
        self.norm = RowLayerNorm(units)

    def forward(self, tokens: Tensor, sources: Tensor) -> Tensor:
        keys, values = self.answer(sources).chunk(2, -1)
        found = attend_few(self._split(self.ask(tokens)), self._split(keys), self._split(values), None)
        found = found.view(len(tokens), self.heads, tokens.shape[1], -1)
        result: Tensor = self.norm(tokens + self.out(found.transpose(1, 2).flatten(2)))
        return result

    def _split(self, vectors: Tensor) -> Tensor:
        """(N · heads, S, head_dim) of vectors (N, S, D)."""
        count = vectors.shape[1]
        return vectors.reshape(len(vectors), count, self.heads, -1).transpose(1, 2).flatten(0, 1).contiguous()


def _check_heads(units: int, heads: int) -> None:
    if heads < 1 or units < 1 or units % heads:
        raise ValueError(f"units must be a positive multiple of heads, not {units} and {heads}")
