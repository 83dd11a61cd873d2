"""LPIPS (Zhang et al., 2018) with VGG16: how different two frames look, by features of a network that knows pictures.

Its weights come from one safetensors file that users make themselves (`python -m dreamenvs.cli.lpips`): nothing is
downloaded. They belong to no module, so that neither an optimiser nor a checkpoint ever sees them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

Perceptual = Literal["none", "lpips"]

VARIABLE = "DREAMENVS_LPIPS"
# The convolutions before each pooling, by their numbers in torchvision's vgg16().features, and their channels.
_STAGES = (((0, 2), 64), ((5, 7), 128), ((10, 12, 14), 256), ((17, 19, 21), 512), ((24, 26, 28), 512))
# ImageNet's mean and deviation of each colour, for pixels in [-1, 1].
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
# Within the root, where a position without any feature still has a gradient.
_EPSILON = 1e-10
_REMEDY = (
    "make it once with `python -m dreamenvs.cli.lpips --vgg vgg16-397923af.pth --linear vgg.pth --out "
    "lpips.safetensors`, from torchvision's weights of VGG16 and those of LPIPS (lpips/weights/v0.1/vgg.pth), and set "
    f"{VARIABLE} to its path; or train with perceptual 'none'"
)


class LPIPSError(Exception):
    """The weights of LPIPS are missing or not what they should be; the message names the file and the remedy."""


class Convolution(NamedTuple):
    """A 3×3 convolution with zero padding."""

    weight: Tensor  # (C', C, 3, 3)
    bias: Tensor  # (C',)


class LPIPS(NamedTuple):
    """The distance and its weights, a value that `load_lpips` makes."""

    stages: tuple[tuple[Convolution, ...], ...]
    linear: tuple[Tensor, ...]  # (C',) each, how much each channel of a stage's output counts

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """(N,) between frames (N, C, H, W) around [-1, 1], of one channel or three; 0 for equal ones."""
        total = first.new_zeros(len(first))
        for linear, one, other in zip(self.linear, self._features(first), self._features(second), strict=True):
            difference = (one - other).square()
            total = total + torch.einsum("nchw,c->nhw", difference, linear).mean((1, 2))
        return total

    def _features(self, frames: Tensor) -> Iterator[Tensor]:
        """What each stage sees (N, C', H', W'), of length 1 at every position."""
        shift, scale = (frames.new_tensor(values).view(3, 1, 1) for values in (_SHIFT, _SCALE))
        features = (frames - shift) / scale  # one channel becomes three greys
        for number, stage in enumerate(self.stages):
            if number > 0:
                features = F.max_pool2d(features, 2)
            for convolution in stage:
                features = F.conv2d(features, convolution.weight, convolution.bias, padding=1).relu()
            yield features * (features.square().sum(1, keepdim=True) + _EPSILON).rsqrt()


def check_perceptual(choice: Perceptual, observation_shape: tuple[int, int, int]) -> None:
    """Refuse frames that VGG16 cannot see; whether there are weights is asked when they are needed."""
    channels, height, width = observation_shape
    if choice == "lpips" and (channels not in (1, 3) or min(height, width) < 16):
        raise ValueError(
            f"LPIPS compares frames of 1 or 3 channels and at least 16×16 pixels, not {observation_shape}; "
            "use perceptual 'none'"
        )


def perceptual_distance(first: Tensor, second: Tensor) -> Tensor:
    """LPIPS (N,) of frames (N, C, H, W) around [-1, 1], with the weights that DREAMENVS_LPIPS names."""
    return _cached(str(weights_path()), first.device, first.dtype)(first, second)


def weights_path() -> Path:
    """Where the weights lie; an error says how to make them."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise LPIPSError(f"LPIPS needs a file of weights, and {VARIABLE} names none: {_REMEDY}")
    return Path(named)


def load_lpips(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LPIPS:
    """LPIPS with the weights of a safetensors file, whose tensors are those of `lpips_shapes`."""
    shapes = lpips_shapes()
    # Tensors made in inference mode could never take part in training.
    with torch.inference_mode(False):
        weights = {name: value.to(device, dtype) for name, value in _read(Path(path), shapes).items()}
    stages = tuple(
        tuple(Convolution(weights[f"features.{n}.weight"], weights[f"features.{n}.bias"]) for n in numbers)
        for numbers, _ in _STAGES
    )
    return LPIPS(stages, tuple(weights[f"lin{stage}.model.1.weight"].flatten() for stage in range(len(_STAGES))))


def lpips_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights: `features.N.…` of torchvision's vgg16, `linN.model.1.weight` of lpips."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = 3
    for stage, (numbers, outputs) in enumerate(_STAGES):
        for number in numbers:
            shapes |= {f"features.{number}.weight": (outputs, inputs, 3, 3), f"features.{number}.bias": (outputs,)}
            inputs = outputs
        shapes[f"lin{stage}.model.1.weight"] = (1, outputs, 1, 1)
    return shapes


@lru_cache(maxsize=2)
def _cached(path: str, device: torch.device, dtype: torch.dtype) -> LPIPS:
    return load_lpips(path, device, dtype)


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    if not path.is_file():
        raise LPIPSError(f"there is no file {path} with the weights of LPIPS: {_REMEDY}")
    try:
        with safe_open(path, framework="pt") as file:
            found = set(file.keys())
            missing = [name for name in shapes if name not in found]
            if missing:
                raise LPIPSError(f"{path} lacks {missing[0]} and is no file of LPIPS weights: {_REMEDY}")
            weights = {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise LPIPSError(f"{path} is no safetensors file ({error}): {_REMEDY}") from error
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise LPIPSError(f"{name} in {path} has shape {tuple(weights[name].shape)}, not {shape}: {_REMEDY}")
    return weights
