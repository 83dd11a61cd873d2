"""The categorical bottleneck of STORM, DRAMA and the CB baselines (STEP-VQ, tables 9 and 11): the grid is flattened."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn.distributions import one_hot, straight_through, unimix
from dreamenvs.nn.frame_networks.pixels import to_bytes
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.frame_networks.step_vq import ConvConfig, Decoder, Encoder, squared_error
from dreamenvs.nn.frame_networks.storm import BatchConvConfig, BatchDecoder, BatchEncoder
from dreamenvs.protocols import Posterior


@dataclass(frozen=True, kw_only=True)
class CategoricalConfig:
    """Categorical variables that describe the whole frame; the defaults are those of the CB baselines."""

    conv: ConvConfig | BatchConvConfig = field(
        default_factory=lambda: ConvConfig(channels=(32, 64, 128, 256, 256), strides=(1, 2, 2, 2, 2))
    )
    """STORM has `BatchConvConfig()`."""
    categories: int = 32
    classes: int = 32
    unimix: float = 0.01
    """The uniform distribution's share in the posterior."""


class CategoricalTokenizer(nn.Module):
    """K = `categories` tokens per frame, each one of `classes`; the latent is their one-hot code."""

    def __init__(self, config: CategoricalConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.config = config
        self.grid = grid_shape(config.conv, observation_shape)
        features = config.conv.channels[-1] * self.grid[0] * self.grid[1]
        normed = isinstance(config.conv, BatchConvConfig)  # the decoder begins with a norm, which would undo a bias
        self.encoder = _build_encoder(config.conv, observation_shape)
        self.contract = nn.Linear(features, self.latent_width)
        self.expand = nn.Linear(self.latent_width, features, bias=not normed)
        self.decoder = _build_decoder(config.conv, observation_shape)

    @property
    def num_tokens(self) -> int:
        return self.config.categories

    @property
    def vocabulary(self) -> int:
        return self.config.classes

    @property
    def latent_width(self) -> int:
        return self.config.categories * self.config.classes

    @property
    def bottleneck_size(self) -> int:
        """Numbers learned between encoder and decoder."""
        layers = (*self.contract.parameters(), *self.expand.parameters())
        return sum(numbers.numel() for numbers in layers)

    def encode(self, observations: Tensor) -> Tensor:
        return self._logits(observations).argmax(-1)

    def embed(self, tokens: Tensor) -> Tensor:
        return one_hot(tokens, self.vocabulary, self.expand.weight.dtype).flatten(1)

    def decode(self, latent: Tensor) -> Tensor:
        height, width = self.grid
        features = rearrange(self.expand(latent), "n (c h w) -> n c h w", h=height, w=width)
        frames: Tensor = self.decoder(features)
        return frames

    def frames(self, tokens: Tensor) -> Tensor:
        return to_bytes(self.decode(self.embed(tokens)))

    def posterior(self, observations: Tensor) -> Posterior:
        logits = unimix(self._logits(observations), self.config.unimix)
        tokens = logits.argmax(-1)
        if self.training:
            tokens = torch.multinomial(logits.detach().exp().flatten(0, 1), 1).view_as(tokens)
        latent = straight_through(logits, one_hot(tokens, self.vocabulary, logits.dtype))
        return Posterior(tokens, logits, latent.flatten(1), logits.new_zeros(len(tokens)))

    def reconstruction(self, pixels: Tensor, observations: Tensor) -> Tensor:
        return squared_error(pixels, observations)

    def _logits(self, observations: Tensor) -> Tensor:
        logits: Tensor = self.contract(self.encoder(observations).flatten(1))
        return rearrange(logits, "n (k v) -> n k v", v=self.vocabulary)


def _build_encoder(config: ConvConfig | BatchConvConfig, shape: tuple[int, int, int]) -> Encoder | BatchEncoder:
    return BatchEncoder(config, shape) if isinstance(config, BatchConvConfig) else Encoder(config, shape)


def _build_decoder(config: ConvConfig | BatchConvConfig, shape: tuple[int, int, int]) -> Decoder | BatchDecoder:
    return BatchDecoder(config, shape) if isinstance(config, BatchConvConfig) else Decoder(config, shape)
