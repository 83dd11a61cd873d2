"""Random features: the same everywhere, and a distance on them that knows better videos from worse.

The network's constants were chosen on dots such as these, so that the orders below say that they hold, not how well.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dreamenvs.evaluation.frechet import compare_features
from dreamenvs.evaluation.video_features import RandomFeatures

COUNT, FRAMES, SIDE = 160, 16, 16
PINNED = [[-13.85, -113.35, -56.19, -53.21], [-10.85, -130.07, -51.59, -77.27]]


def moving_dots(seed: int, speed: float = 1.0) -> Tensor:
    """Videos of a bright dot that crosses a dark frame and bounces off its sides."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, COUNT)
    velocity = np.stack([np.cos(angle), np.sin(angle)], 1) * rng.uniform(0.7, 1.3, (COUNT, 1)) * speed
    path = rng.uniform(0, SIDE, (COUNT, 1, 2)) + velocity[:, None] * np.arange(FRAMES)[None, :, None]
    path = SIDE - np.abs(path % (2 * SIDE) - SIDE)
    pixels = np.arange(SIDE)
    away = (pixels[:, None] - path[:, :, :1, None]) ** 2 + (pixels[None] - path[:, :, 1:, None]) ** 2
    frames = torch.from_numpy(20 + 200 * np.exp(-away / 3)).to(torch.uint8)
    return frames[:, :, None].expand(-1, -1, 3, -1, -1)


@pytest.fixture(scope="module")
def real() -> Tensor:
    return moving_dots(0)


def distance(real: Tensor, imagined: Tensor) -> float:
    network = RandomFeatures()
    features = (network.features(real), network.features(imagined))
    return compare_features(*features, np.random.default_rng(0), resamples=2).distance


@pytest.fixture(scope="module")
def alike(real: Tensor) -> float:
    """The distance of other videos of the same kind: what a perfect dream would have."""
    return distance(real, moving_dots(1))


def noisy(videos: Tensor, size: float) -> Tensor:
    noise = torch.randn(videos.shape, generator=torch.Generator().manual_seed(0)) * size
    return (videos + noise).round().clamp(0, 255).to(torch.uint8)


def test_the_same_videos_are_at_no_distance(real: Tensor, alike: float) -> None:
    assert distance(real, real) < 1e-6 * alike


def test_more_noise_is_further_away(real: Tensor, alike: float) -> None:
    distances = [distance(real, noisy(real, size)) for size in (2, 5, 10, 20, 40, 80)]
    assert distances == sorted(distances)
    assert distances[2] > 2 * alike


def test_frozen_shuffled_and_blurred_videos_are_further_away(real: Tensor, alike: float) -> None:
    order = torch.rand(COUNT, FRAMES, generator=torch.Generator().manual_seed(0)).argsort(1)
    blurred = torch.nn.functional.avg_pool2d(real.flatten(0, 1).float(), 3, 1, 1).to(torch.uint8).view(real.shape)
    wrong = {
        "frozen": real[:, :1].expand_as(real),
        "shuffled": real[torch.arange(COUNT)[:, None], order],
        "dark": (0.5 * real).to(torch.uint8),
        "blurred": blurred,
    }
    assert {name: distance(real, videos) > 2 * alike for name, videos in wrong.items()} == dict.fromkeys(wrong, True)


def test_wrong_speeds_are_further_away(real: Tensor, alike: float) -> None:
    distances = [distance(real, moving_dots(1, speed)) for speed in (1.0, 1.5, 2.0, 3.0)]
    assert distances[0] == alike
    assert distances == sorted(distances)
    assert distances[2] > 4 * alike
    assert distance(real, moving_dots(1, 0.4)) > 2 * alike


def test_things_that_stand_elsewhere_are_further_away(real: Tensor, alike: float) -> None:
    """Averages over the whole frame would not see it."""
    still = torch.full_like(real, 20)
    corner, other = still.clone(), still.clone()
    corner[..., 2:5, 2:5], other[..., 11:14, 11:14] = 220, 220
    assert distance(corner, other) > 2 * alike


def test_weights_follow_from_the_seed_alone() -> None:
    """Numbers that no change may move, for they are the definition of the distance."""
    ramp = torch.arange(2 * 4 * 1 * 8 * 8).remainder(251).view(2, 4, 1, 8, 8).to(torch.uint8)
    features = RandomFeatures(4).features(ramp)
    assert features.dtype == np.float64
    assert features.shape == (2, 4)
    torch.manual_seed(7)
    assert np.array_equal(RandomFeatures(4).features(ramp), features)
    assert not np.allclose(RandomFeatures(4, seed=1).features(ramp), features)
    assert features.tolist() == [pytest.approx(row, abs=0.01) for row in PINNED]


def test_a_video_has_features_of_its_own(real: Tensor) -> None:
    network = RandomFeatures()
    together, alone = network.features(real[:5]), network.features(real[2:3])
    assert np.allclose(together[2], alone[0], rtol=1e-5, atol=1e-3)
    assert not np.allclose(together[1], alone[0], rtol=1e-5, atol=1e-3)


def test_names_say_what_it_is_and_is_not() -> None:
    assert RandomFeatures().name == "Fréchet distance on random 3D features (FRVD)"
    assert RandomFeatures(32, seed=3).name.endswith("(FRVD, 32 features, seed 3)")
    for network in (RandomFeatures(), RandomFeatures(32)):
        assert not {"FVD", "LPIPS", "FID"} & set(network.name.replace("(", " ").replace(")", " ").split())


@pytest.mark.parametrize("shape", [(2, 1, 3, 8, 8), (2, 3, 8, 8)])
def test_what_is_no_video_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two frames or more"):
        RandomFeatures().features(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(ValueError, match="uint8"):
        RandomFeatures().features(torch.zeros(2, 3, 3, 8, 8))
    with pytest.raises(ValueError, match="at least one feature"):
        RandomFeatures(0)


def test_frames_of_any_size_and_colour() -> None:
    for shape in ((3, 2, 1, 4, 6), (2, 9, 4, 10, 10), (1, 5, 3, 96, 84)):
        videos = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        assert np.isfinite(RandomFeatures().features(videos)).all()
