"""Features of videos, for the Fréchet distance: a protocol for any network, and one that needs no weights.

FVD (Unterthiner et al., 2019) takes the features of an I3D network trained on Kinetics, whose weights are not part of
this package. The network here is random and fixed. Its distances go by another name and compare with no published
ones: only with each other, for the same seed, frame size and number of frames and videos.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dreamenvs.random import Noise

_LAYERS = ((16, (1, 2, 2)), (32, (2, 2, 2)), (32, (2, 2, 2)))  # channels, and strides over time and space
_PLACES = 2
_CHANGES = 4.0  # most of a game's frame stays as it was: without it, wrong speeds hardly showed
_SCALE = 256.0  # so that distances between videos of a game are of a readable size


class FeatureNetwork(Protocol):
    """What turns videos into vectors that a Fréchet distance compares."""

    @property
    def name(self) -> str:
        """What the distance is called with these features."""
        ...

    def features(self, videos: Tensor) -> NDArray[np.float64]:
        """(N, F) of videos (N, T, C, H, W) uint8; each video's features are its own."""
        ...


class RandomFeatures:
    """Convolutions over time and space with random weights, of frames and of their differences.

    Random filters tell textures, edges and speeds apart, as untrained networks do, but not what is of importance in a
    game: in videos of Pong, noise of five grey levels weighs more than a game that stands still.

    Of each channel, at each of 2 × 2 places of the frame, the mean and the spread over time are taken, and a random
    projection brings them down to few features: with 64 of them, 256 videos give a covariance of full rank, which needs
    no shrinkage. Two sets of the same kind are still at some distance, and at a larger one, the fewer videos there are
    for each feature. Weights follow from the seed by the package's own generator: they are the same in every version
    of torch.
    """

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"there is at least one feature, not {count}")
        self.count, self.seed = count, seed

    @property
    def name(self) -> str:
        chosen = "" if (self.count, self.seed) == (64, 0) else f", {self.count} features, seed {self.seed}"
        return f"Fréchet distance on random 3D features (FRVD{chosen})"

    @torch.inference_mode()
    def features(self, videos: Tensor) -> NDArray[np.float64]:
        if videos.dim() != 5 or videos.dtype != torch.uint8 or videos.shape[1] < 2:
            raise ValueError(
                f"videos are (N, T, C, H, W) of uint8 with two frames or more, "
                f"not {tuple(videos.shape)} of {videos.dtype}"
            )
        frames = videos.transpose(1, 2).float() / 127.5 - 1  # (N, C, T, H, W)
        values = torch.cat([frames[:, :, 1:], _CHANGES * frames.diff(dim=2)], 1)
        for layer, (channels, stride) in enumerate(_LAYERS):
            weight = self._draw(layer, (channels, values.shape[1], 3, 3, 3), device=values.device)
            bias = self._draw(len(_LAYERS) + layer, (channels,), device=values.device)
            values = F.leaky_relu(F.conv3d(values, weight, 0.2 * bias, stride, padding=1), 0.2)
        places = F.adaptive_avg_pool3d(values, (values.shape[2], _PLACES, _PLACES))
        pooled = torch.cat([places.mean(2), places.std(2, correction=0)], 1).flatten(1).double()
        project = self._draw(2 * len(_LAYERS), (self.count, pooled.shape[1]), device=values.device).double()
        result: NDArray[np.float64] = (_SCALE * pooled @ project.t()).cpu().numpy()
        return result

    def _draw(self, draw: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform numbers that keep the size of what they are multiplied with: of variance 1 / inputs, biases of 1."""
        key = torch.tensor([self.seed], device=device)
        inputs = int(np.prod(shape[1:]))
        numbers = Noise(key, torch.zeros_like(key)).uniform(int(np.prod(shape)), draw).view(shape)
        weights: Tensor = (2 * numbers - 1) * (3 / inputs) ** 0.5
        return weights
