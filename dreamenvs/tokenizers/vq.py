"""The VQ tokenizer of STEP-VQ (section 2.1, tables 8 and 10): every position of the encoder's grid takes one code."""

from __future__ import annotations

from dataclasses import dataclass, field

from einops import rearrange
from torch import Tensor, nn

from dreamenvs.nn.frame_networks.pixels import to_bytes
from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.frame_networks.step_vq import ConvConfig, Decoder, Encoder, squared_error
from dreamenvs.protocols import Posterior
from dreamenvs.tokenizers.ema_codebook import Quantized, Quantizer


@dataclass(frozen=True, kw_only=True)
class VQConfig:
    """A VQ-VAE; the defaults are the paper's."""

    conv: ConvConfig = field(default_factory=ConvConfig)
    codes: int = 64
    code_width: int = 128
    """The paper prints no width; 128 is the one that gives its parameter count."""
    commitment: float = 0.25
    """β of equation 1, on a sum over the frame's K·D numbers. Where the encoder collapses onto few codes, lower it:
    0.25 / code_width, a mean over each code's numbers, binds the encoder less; the small preset uses it."""
    decay: float = 0.99
    """How much of the codes' running averages one batch leaves in place."""
    sharpness: float = 1.0
    """β of equation 2, the inverse temperature of the soft posterior, which the paper does not print."""
    revival: float = 0.0
    """Codes that stand for fewer vectors per batch, on average, restart at a random one; 0 as in the paper, never."""


class VQTokenizer(nn.Module):
    """K = H'·W' tokens per frame, row by row, each one of `codes`."""

    def __init__(self, config: VQConfig, observation_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.config = config
        self.grid = grid_shape(config.conv, observation_shape)
        channels = config.conv.channels[-1]
        self.encoder = Encoder(config.conv, observation_shape)
        # A 1×1 convolution is a linear layer at every position.
        self.contract = nn.Linear(channels, config.code_width)
        self.quantizer = Quantizer(config.codes, config.code_width, config.decay, config.revival)
        self.expand = nn.Linear(config.code_width, channels, bias=False)
        self.decoder = Decoder(config.conv, observation_shape)

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def vocabulary(self) -> int:
        return self.config.codes

    @property
    def latent_width(self) -> int:
        return self.num_tokens * self.config.code_width

    @property
    def bottleneck_size(self) -> int:
        """Numbers learned between encoder and decoder; the paper's count includes the codebook."""
        layers = (*self.contract.parameters(), *self.expand.parameters(), self.quantizer.codebook)
        return sum(numbers.numel() for numbers in layers)

    def encode(self, observations: Tensor) -> Tensor:
        return self.quantizer.encode(self._vectors(observations)).view(-1, self.num_tokens)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.quantizer.embed(tokens).flatten(1)

    def decode(self, latent: Tensor) -> Tensor:
        height, width = self.grid
        features = self.expand(rearrange(latent, "n (h w d) -> n h w d", h=height, w=width))
        frames: Tensor = self.decoder(rearrange(features, "n h w c -> n c h w"))
        return frames

    def frames(self, tokens: Tensor) -> Tensor:
        return to_bytes(self.decode(self.embed(tokens)))

    def posterior(self, observations: Tensor) -> Posterior:
        quantized: Quantized = self.quantizer(self._vectors(observations))
        frames = len(observations)
        return Posterior(
            tokens=quantized.tokens.view(frames, -1),
            logits=(quantized.logits * self.config.sharpness).view(frames, -1, self.vocabulary),
            latent=quantized.vectors.view(frames, -1),
            # The norm of equation 1 runs over the whole frame: a sum over positions and channels.
            commitment=self.config.commitment * quantized.distances.view(frames, -1).sum(1),
        )

    def reconstruction(self, pixels: Tensor, observations: Tensor) -> Tensor:
        return squared_error(pixels, observations)

    def _vectors(self, observations: Tensor) -> Tensor:
        """What is quantised (N·K, D), position after position."""
        vectors: Tensor = self.contract(rearrange(self.encoder(observations), "n c h w -> (n h w) c"))
        return vectors
