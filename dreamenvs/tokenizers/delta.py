"""Δ-IRIS's tokenizer (section 2.2, tables 2 and 3): tokens say what a frame does that the frame and the action before
do not tell.

Encoder and decoder both see the previous frame and the action, and the decoder gives the whole next frame. So tokens
alone are no frame: the same tokens after another frame mean another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn import distributed, initialization
from dreamenvs.nn.frame_networks.delta_iris import FrameDecoder, FrameEncoder, FrameNetworkConfig, map_shape
from dreamenvs.nn.layers import RowLinear
from dreamenvs.tokenizers.cosine_codebook import UnitQuantized, UnitQuantizer
from dreamenvs.types import LossTerms


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """A discrete autoencoder of transitions; the defaults are the paper's for Crafter."""

    network: FrameNetworkConfig = field(default_factory=FrameNetworkConfig)
    """Of the encoder, and of the decoder, which goes through it backwards."""
    condition: FrameNetworkConfig = field(default_factory=FrameNetworkConfig)
    """Of the network through which the decoder sees the previous frame."""
    channels: int = 64
    """Of the map that is cut into patches, one for each token."""
    condition_channels: int = 8
    action_channels: int = 4
    patches: tuple[int, int] = (2, 2)
    """How many tokens a frame has, downwards and across."""
    codes: int = 1024
    code_width: int = 64
    decay: float = 0.99
    """How much of the codes one batch leaves in place."""
    revival_updates: int = 0
    """Updates in which idle codes are revived while usage is below a quarter of the vocabulary; afterwards only if
    usage falls to two codes. 0 for Crafter, 400 for Atari."""
    absolute: float = 0.1
    squared: float = 1.0
    largest: float = 0.01
    """The weight of each frame's single worst squared error, which keeps small things from being left out."""
    commitment: float = 0.02


class DeltaTokenizer(nn.Module):
    """Transitions to K tokens, and a frame with an action and K tokens to the next frame.

    Frames are uint8 (N, C, H, W) and actions are encoded, (N, A).
    """

    def __init__(self, config: DeltaConfig, observation_shape: tuple[int, int, int], action_width: int) -> None:
        super().__init__()
        self.config = config
        channels, height, width = observation_shape
        self.frame = height, width
        self.grid = map_shape(config.network, height, width)
        if map_shape(config.condition, height, width) != self.grid:
            raise ValueError("network and condition must make maps of the same size: their strides multiply alike")
        if any(cells % patches for cells, patches in zip(self.grid, config.patches, strict=True)):
            raise ValueError(f"a map of {self.grid} does not split into {config.patches} patches")
        cells = self.grid[0] * self.grid[1]
        patch = cells // self.num_tokens * config.channels
        # An embedding of a discrete action is a linear map of its one-hot code.
        self.encoder_actions = RowLinear(action_width, height * width, bias=False)
        self.encoder = FrameEncoder(config.network, 2 * channels + 1, config.channels)
        self.contract = RowLinear(patch, config.code_width)
        self.quantizer = UnitQuantizer(config.codes, config.code_width, config.decay, config.revival_updates)
        self.expand = RowLinear(config.code_width, patch)
        self.decoder_actions = RowLinear(action_width, config.action_channels * cells, bias=False)
        self.condition = FrameEncoder(config.condition, channels, config.condition_channels)
        inputs = config.channels + config.condition_channels + config.action_channels
        self.decoder = FrameDecoder(config.network, inputs, channels)
        for layer in (self.encoder_actions, self.contract, self.expand, self.decoder_actions):
            initialization.normal_(layer.weight)

    @property
    def num_tokens(self) -> int:
        return self.config.patches[0] * self.config.patches[1]

    @property
    def vocabulary(self) -> int:
        return self.config.codes

    @property
    def latent_width(self) -> int:
        """The size of a whole transition's latent, K·D."""
        return self.num_tokens * self.config.code_width

    def encode(self, previous: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        """Tokens (N, K) int64 of the transitions between frames, deterministic."""
        vectors = self._vectors(self._floats(previous), actions, self._floats(following))
        return self.quantizer.encode(vectors).view(-1, self.num_tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        """Latent (N, K·D) of tokens (N, K)."""
        return self.quantizer.embed(tokens).flatten(1)

    def decode(self, previous: Tensor, actions: Tensor, latent: Tensor) -> Tensor:
        """Pixels (N, C, H, W) of the next frame, floats around [0, 1], of a latent (N, K·D)."""
        return self._decode(self._floats(previous), actions, latent)

    def loss(self, previous: Tensor, actions: Tensor, following: Tensor) -> LossTerms:
        """How badly the next frames come back, over N real transitions; codes move only in training mode."""
        before, after = self._floats(previous), self._floats(following)
        quantized: UnitQuantized = self.quantizer(self._vectors(before, actions, after))
        errors = self._decode(before, actions, quantized.vectors.view(len(previous), -1)) - after
        squares = errors.square()
        parts = {
            "absolute": distributed.mean(errors.abs()),
            "squared": distributed.mean(squares),
            "largest": distributed.mean(squares.flatten(1).amax(1)),
            "commitment": quantized.commitment,
        }
        total = torch.stack([getattr(self.config, name) * part for name, part in parts.items()]).sum()
        return LossTerms(total, {name: part.detach() for name, part in parts.items()})

    def _vectors(self, previous: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        """What is quantised (N·K, D), patch after patch, row by row."""
        plane = rearrange(self.encoder_actions(actions), "n (h w) -> n 1 h w", h=self.frame[0])
        features = self.encoder(torch.cat([previous, plane, following], 1))
        rows, columns = self.config.patches
        patches = rearrange(features, "n c (i h) (j w) -> (n i j) (h w c)", i=rows, j=columns)
        vectors: Tensor = self.contract(patches)
        return vectors

    def _decode(self, previous: Tensor, actions: Tensor, latent: Tensor) -> Tensor:
        (rows, columns), (height, width) = self.config.patches, self.grid
        patches = self.expand(latent.view(-1, self.config.code_width))
        deltas = rearrange(
            patches,
            "(n i j) (h w c) -> n c (i h) (j w)",
            i=rows,
            j=columns,
            h=height // rows,
            w=width // columns,
        )
        plane = rearrange(self.decoder_actions(actions), "n (c h w) -> n c h w", h=height, w=width)
        frames: Tensor = self.decoder(torch.cat([self.condition(previous), plane, deltas], 1))
        return frames

    def _floats(self, frames: Tensor) -> Tensor:
        return frames.to(self.contract.weight.dtype) / 255
