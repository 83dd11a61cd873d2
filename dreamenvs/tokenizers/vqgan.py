"""The tokenizers of IRIS and REM (its appendix A.1.1): VQ-VAEs on VQGAN's networks, with a codebook that is learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn.frame_networks.iris import IRISDecoder, IRISEncoder, ResidualNetworkConfig
from dreamenvs.nn.frame_networks.pixels import to_bytes
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig, REMDecoder, REMEncoder
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.layers import RowLinear
from dreamenvs.nn.lpips import Perceptual, check_perceptual, perceptual_distance
from dreamenvs.protocols import Posterior
from dreamenvs.tokenizers.gradient_codebook import Codebook, Coded

Reconstruction = Literal["l1", "l2"]


@dataclass(frozen=True, kw_only=True)
class DiscreteConfig:
    """A discrete autoencoder; the defaults are IRIS's but for the perceptual term, whose weights users bring.

    REM has `PlainNetworkConfig()`, `code_width=256` and `reconstruction="l2"`.
    """

    network: ResidualNetworkConfig | PlainNetworkConfig = field(default_factory=ResidualNetworkConfig)
    codes: int = 512
    code_width: int = 512
    commitment: float = 1.0
    """β: how much the encoder is drawn to the codes, against 1 for the codes to the encoder."""
    reconstruction: Reconstruction = "l1"
    """`l1`: the mean of absolute errors, IRIS's, and REM's in its equation 8; `l2`: the mean of squares, which REM's
    published program has. Without a perceptual term prefer `l2`: a few bright pixels on black have a black median, and
    `l1` alone left them black on frames like MinAtar's."""
    perceptual: Perceptual = "none"
    """`lpips` adds LPIPS; its weights are found through DREAMENVS_LPIPS, and needed in training alone."""

    def __post_init__(self) -> None:
        if self.codes < 2 or self.code_width < 1:
            raise ValueError(f"need two codes of a number each, not {self.codes} of {self.code_width}")
        if self.reconstruction not in get_args(Reconstruction):
            raise ValueError(f"reconstruction must be 'l1' or 'l2', not {self.reconstruction!r}")
        if self.perceptual not in get_args(Perceptual):
            raise ValueError(f"perceptual must be 'none' or 'lpips', not {self.perceptual!r}")


class DiscreteTokenizer(nn.Module):
    """K = H'·W' tokens per frame, row by row, each one of `codes`."""

    def __init__(self, config: DiscreteConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        check_perceptual(config.perceptual, observation_shape)
        self.config = config
        self.grid = grid_shape(config.network, observation_shape)
        self.encoder = _build_encoder(config.network, observation_shape)
        # A 1×1 convolution is a linear layer at every position.
        self.contract = RowLinear(config.network.features, config.code_width)
        self.codebook = Codebook(config.codes, config.code_width, config.commitment)
        self.expand = RowLinear(config.code_width, config.network.features)
        self.decoder = _build_decoder(config.network, observation_shape)

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def vocabulary(self) -> int:
        return self.config.codes

    @property
    def latent_width(self) -> int:
        return self.num_tokens * self.config.code_width

    @torch.no_grad()
    def encode(self, observations: Tensor) -> Tensor:
        return self.codebook.encode(self._vectors(observations)).view(-1, self.num_tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.codebook.embed(tokens).flatten(1)

    def decode(self, latent: Tensor) -> Tensor:
        height, width = self.grid
        features = self.expand(rearrange(latent, "n (h w d) -> n h w d", h=height, w=width))
        frames: Tensor = self.decoder(rearrange(features, "n h w c -> n c h w").contiguous())
        return frames

    def frames(self, tokens: Tensor) -> Tensor:
        return to_bytes(self.decode(self.embed(tokens)))

    def posterior(self, observations: Tensor) -> Posterior:
        """The latent's gradients reach the encoder alone; the penalty's reach the codes as well."""
        coded: Coded = self.codebook(self._vectors(observations))
        frames = len(observations)
        return Posterior(
            tokens=coded.tokens.view(frames, -1),
            logits=coded.logits.view(frames, -1, self.vocabulary),
            latent=coded.vectors.view(frames, -1),
            # REM's equation 8 writes norms; the published programs take means over positions and channels.
            commitment=coded.penalties.view(frames, -1).mean(1),
        )

    def reconstruction(self, pixels: Tensor, observations: Tensor) -> Tensor:
        """Means over a frame in the networks' [-1, 1], so that l1 is twice and l2 four times what it is in [0, 1]."""
        targets = observations.to(pixels.dtype) / 127.5 - 1
        signed = pixels * 2 - 1
        error = signed - targets
        distance = error.abs() if self.config.reconstruction == "l1" else error.square()
        mean = distance.mean((1, 2, 3))
        return mean if self.config.perceptual == "none" else mean + perceptual_distance(signed, targets)

    def _vectors(self, observations: Tensor) -> Tensor:
        """What is quantised (N·K, D), position after position."""
        vectors: Tensor = self.contract(rearrange(self.encoder(observations), "n c h w -> (n h w) c"))
        return vectors


def _build_encoder(
    config: ResidualNetworkConfig | PlainNetworkConfig, observation_shape: tuple[int, int, int]
) -> IRISEncoder | REMEncoder:
    if isinstance(config, PlainNetworkConfig):
        return REMEncoder(config, observation_shape)
    return IRISEncoder(config, observation_shape)


def _build_decoder(
    config: ResidualNetworkConfig | PlainNetworkConfig, observation_shape: tuple[int, int, int]
) -> IRISDecoder | REMDecoder:
    if isinstance(config, PlainNetworkConfig):
        return REMDecoder(config, observation_shape)
    return IRISDecoder(config, observation_shape)
