from __future__ import annotations

import numpy as np
import pytest

from dreamenvs.worlds.area_resize import AreaResize, area_weights


def naive_resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Every pixel repeated until the new size divides the old one, then averaged in exact integers."""
    repeated = image.astype(np.int64).repeat(height, 0).repeat(width, 1)
    blocks = repeated.reshape(height, image.shape[0], width, image.shape[1], image.shape[2])
    area = image.shape[0] * image.shape[1]
    return (blocks.sum((1, 3)) * 2 + area) // (2 * area)


@pytest.mark.parametrize(("old", "new"), [((21, 16), (6, 8)), ((10, 6), (4, 4)), ((5, 7), (8, 3)), ((8, 8), (8, 8))])
def test_every_pixel_is_the_rounded_mean_of_its_area(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*old, 3)).astype(np.uint8)
    np.testing.assert_array_equal(AreaResize(old, new)(image), naive_resize(image, *new))


def test_a_size_too_large_for_float32_stays_exact() -> None:
    resize = AreaResize((509, 503), (67, 61))
    image = np.random.default_rng(0).integers(0, 256, (509, 503, 1)).astype(np.uint8)
    columns, rows = area_weights(503, 61), area_weights(509, 67)
    exact = np.einsum("ih,hwc,jw->ijc", rows, image.astype(np.int64), columns, optimize=True)
    np.testing.assert_array_equal(resize(image), (exact + 509 * 503 // 2) // (509 * 503))


def test_white_stays_white() -> None:
    assert (AreaResize((210, 160), (64, 64))(np.full((210, 160, 3), 255, np.uint8)) == 255).all()
