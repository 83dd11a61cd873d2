"""Where a row's bits are promised to be the same in a batch of any size, and how far they may be apart elsewhere.

The fast paths were made row-exact for processors with AVX-512. With AVX2 or SSE4 alone, BLAS sums some matrix products
in an order that depends on how many rows there are, so that rows agree to rounding and not to the bit. Convolutions are
row-exact through oneDNN alone: without it torch makes matrix products of them, whose order depends on how many frames
there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

EXACT = torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether equal bits are promised on this processor."""
TOLERANCE = 0.0 if EXACT else 1e-4
"""Of floats whose size is about one."""


def few_threads() -> bool:
    """Whether there are so few that BLAS and convolutions share no sum among them."""
    return torch.get_num_threads() <= 2


def exact_frames() -> bool:
    """Whether equal bits are promised of what comes out of convolutions."""
    return EXACT and few_threads() and torch._C._get_mkldnn_enabled()


def rows_agree(found: Tensor, expected: Tensor, *, any_threads: bool = True) -> bool:
    """Whether two results of the same rows are what is promised: the same bits, or the same up to rounding.

    Not for `any_threads`, where BLAS shares its sums among many otherwise than among few: with weights that are not
    packed.
    """
    return _agree(found, expected, EXACT and (any_threads or few_threads()))


def frames_agree(found: Tensor, expected: Tensor) -> bool:
    """The same of what comes out of convolutions: a level more or less of pixels whose value lay between two."""
    return _agree(found, expected, exact_frames())


def _agree(found: Tensor, expected: Tensor, exact: bool) -> bool:
    """Integers are equal anyhow: that the two best of some logits are closer than rounding, is not to be expected."""
    if not exact and expected.dtype is torch.uint8:
        return found.shape == expected.shape and int((found.int() - expected.int()).abs().max()) <= 1
    if exact or not expected.is_floating_point():
        return torch.equal(found, expected)
    if found.shape != expected.shape:
        return False
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    return bool(np.allclose(found.numpy(), expected.numpy(), rtol=0.0, atol=1e-4 * scale))


def conforming() -> dict[str, Any]:
    """What `check_vector_env` is given to compare a batch with single environments."""
    return {"tolerance": TOLERANCE, "pixel_tolerance": 0 if exact_frames() else 1}
