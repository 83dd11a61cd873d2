"""Where a row's bits are promised to be the same in a batch of any size, and how far they may be apart elsewhere.

The fast paths were made row-exact for processors with AVX2 or more. With SSE4 alone, matrix products sum in an order
that depends on how many rows there are, so that rows agree to rounding and not to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

EXACT = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether equal bits are promised on this processor."""
TOLERANCE = 0.0 if EXACT else 1e-4
"""Of floats whose size is about one."""
PIXEL_TOLERANCE = 0 if EXACT else 1
"""Of uint8 frames: a level, where a value lay between two."""


def rows_agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two results of the same rows are what is promised: the same bits, or the same up to rounding."""
    if EXACT or not expected.is_floating_point():
        return torch.equal(found, expected)
    if found.shape != expected.shape:
        return False
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    return bool(np.allclose(found.numpy(), expected.numpy(), rtol=0.0, atol=TOLERANCE * scale))


def conforming() -> dict[str, Any]:
    """What `check_vector_env` is given to compare a batch with single environments."""
    return {"tolerance": TOLERANCE, "pixel_tolerance": PIXEL_TOLERANCE}
