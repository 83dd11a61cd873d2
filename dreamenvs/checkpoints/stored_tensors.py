"""Tensors as a checkpoint stores them: what becomes of a model's weights, and what is refused when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from dreamenvs.files.atomic_directory import ArtifactError
from dreamenvs.protocols import WorldModel

MAX_TENSORS = 2**16

WeightsDtype = Literal["float32", "float16"]


def with_new_weight_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an earlier version under the names that models have now."""
    old = ("reward.", "termination.")
    return {f"outcomes.{name}" if name.startswith(old) else name: tensor for name, tensor in weights.items()}


def stored_weights(model: WorldModel[Any], weights_dtype: WeightsDtype) -> dict[str, Tensor]:
    """The weights as a checkpoint keeps them; the tokenizer's stay as they are.

    Rounded, it would put frames that lie near the border between two codes on the other side of it, and the dynamics
    would see tokens that they never learned from.
    """
    tokenizer: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in cast(nn.Module, model).state_dict().items():
        (tokenizer if name.startswith("tokenizer.") else rest)[name] = tensor
    return pack_tensors(tokenizer, torch.float32) | pack_tensors(rest, getattr(torch, weights_dtype))


def fits_half(model: WorldModel[Any]) -> bool:
    """Whether `float16` keeps every weight as it is."""
    weights = cast(nn.Module, model).state_dict()
    rest = (weights[name] for name in weights if not name.startswith("tokenizer."))
    return all(tensor.half().to(tensor.dtype).equal(tensor) for tensor in rest if tensor.is_floating_point())


def pack_tensors(tensors: Mapping[str, Any], floating: torch.dtype) -> dict[str, Tensor]:
    """Tensors as they are stored: on the CPU, sharing no memory, floating ones in one dtype."""
    packed = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            raise TypeError(
                f"{name} is {getattr(tensor, 'dtype', type(tensor))}; floating values must be float32 tensors"
            )
        stored = tensor.detach().to("cpu", floating if tensor.is_floating_point() else tensor.dtype)
        if not stored.isfinite().all():
            raise ValueError(f"{name} holds NaN, infinity or numbers too large for {floating}")
        packed[name] = stored.clone(memory_format=torch.contiguous_format)
    return packed


def unpack_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, all of them finite."""
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # the reader has several exception types for what it refuses
        raise ArtifactError(f"{path} is no safetensors file: {error}") from error
    if len(tensors) > MAX_TENSORS:
        raise ArtifactError(f"{path} holds {len(tensors)} tensors; {MAX_TENSORS} is the most")
    for name, tensor in tensors.items():
        # A byte other than 0 and 1 in a bool tensor is undefined behaviour in torch.
        if tensor.dtype == torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise ArtifactError(f"{path}: {name!r:.80} holds bytes that are no booleans")
        if tensor.dtype in (torch.float32, torch.float16) and not tensor.isfinite().all():
            raise ArtifactError(f"{path}: {name!r:.80} holds NaN or infinity")
    return tensors
