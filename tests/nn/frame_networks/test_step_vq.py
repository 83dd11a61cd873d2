from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.frame_networks.step_vq import ChannelNorm, ConvConfig, Decoder, Encoder

pytestmark = pytest.mark.portable
SMALL = ConvConfig(channels=(8, 16), strides=(2, 2))


@pytest.mark.parametrize(
    ("config", "shape", "grid"),
    [
        (ConvConfig(), (3, 64, 64), (8, 8)),
        (ConvConfig(), (3, 96, 96), (12, 12)),
        (ConvConfig(channels=(32, 64, 128, 256, 256), strides=(1, 2, 2, 2, 2)), (3, 64, 64), (4, 4)),
        (ConvConfig(channels=(8, 16, 16), strides=(2, 2, 2)), (1, 24, 40), (3, 5)),
        (ConvConfig(channels=(8,), strides=(3,)), (4, 9, 12), (3, 4)),
        (ConvConfig(channels=(8, 8), strides=(1, 1), kernel=3), (4, 10, 10), (10, 10)),
        (ConvConfig(channels=(8, 8), strides=(2, 2), kernel=2), (3, 40, 20), (10, 5)),
        (ConvConfig(channels=(8,), strides=(4,), kernel=4), (3, 12, 8), (3, 2)),
    ],
)
def test_decoder_mirrors_encoder(config: ConvConfig, shape: tuple[int, int, int], grid: tuple[int, int]) -> None:
    frames = torch.randint(256, (2, *shape), dtype=torch.uint8)
    assert grid_shape(config, shape) == grid
    features = Encoder(config, shape)(frames)
    assert features.shape == (2, config.channels[-1], *grid)
    assert Decoder(config, shape)(features).shape == frames.shape


def test_the_encoder_sees_bytes_as_shares_of_one() -> None:
    encoder = Encoder(SMALL, (3, 8, 8)).double()
    frames = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(encoder(frames), encoder.layers(frames.double() / 255))


def test_an_odd_shape_is_named_with_the_total_stride() -> None:
    with pytest.raises(ValueError, match=r"\(3, 64, 60\).*total stride 8"):
        Encoder(ConvConfig(), (3, 64, 60))
    with pytest.raises(ValueError, match=r"\(3, 30, 32\).*total stride 4"):
        Decoder(SMALL, (3, 30, 32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": (8, 16), "strides": (2,)},
        {"channels": (), "strides": ()},
        {"kernel": 4},
        {"channels": (8, 8), "strides": (2, 1), "kernel": 2},
        {"strides": (1, 2, 2, 6)},
        {"channels": (32, 64, 128, 250)},
    ],
)
def test_impossible_configs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"channels|kernel"):
        ConvConfig(**wrong)


def test_a_frame_does_not_depend_on_its_batch(frames_agree: Any) -> None:
    frames = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8)
    config = ConvConfig(channels=(8, 16, 32), strides=(2, 2, 2))
    encoder, decoder = Encoder(config, (3, 32, 32)), Decoder(config, (3, 32, 32))
    with torch.inference_mode():
        features = encoder(frames)
        pixels = decoder(features)
        for rows in (1, 3, 8, 13):
            assert frames_agree(encoder(frames[:rows]), features[:rows])
        # Two threads share the transposed convolution of an odd batch in a way that rounds differently.
        for rows in (4, 8, 12):
            assert frames_agree(decoder(features[:rows]), pixels[:rows])


def test_without_a_norm_over_the_frame_a_token_sees_its_surroundings_alone() -> None:
    """A pixel in one corner moves every feature under GroupNorm, and those within reach under ChannelNorm."""
    frames = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    changed = frames.clone()
    changed[0, :, 0, 0] ^= 255
    moved = {}
    for norm in ("group", "channel"):
        encoder = Encoder(ConvConfig(channels=(8, 16), strides=(2, 2), kernel=3, norm=norm), (3, 32, 32))
        moved[norm] = (encoder(frames) != encoder(changed)).any(1)[0]
    assert moved["group"].all()
    assert moved["channel"][0, 0]
    assert not moved["channel"][2:].any()
    assert not moved["channel"][:, 2:].any()


def test_channel_norm_is_rms_norm_at_every_position() -> None:
    norm = ChannelNorm(6).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    features = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    result = norm(features)
    for n, y, x in itertools.product(range(2), range(3), range(4)):
        vector = features[n, :, y, x]
        length = (sum(float(part) ** 2 for part in vector) / 6 + 1e-3) ** 0.5
        expected = vector / length * norm.weight[:, 0, 0] + norm.bias[:, 0, 0]
        torch.testing.assert_close(result[n, :, y, x], expected)


def test_an_unknown_norm_is_named() -> None:
    with pytest.raises(ValueError, match="'batch'"):
        ConvConfig(norm="batch")  # type: ignore[arg-type]


def test_kernels_that_do_not_overlap_keep_patches_apart() -> None:
    """A changed cell moves its own feature and its own pixels, and no others: a token stands for one cell."""
    config = ConvConfig(channels=(8, 8), strides=(2, 2), kernel=2, norm="channel")
    encoder, decoder = Encoder(config, (3, 12, 12)), Decoder(config, (3, 12, 12))
    frames = torch.randint(256, (1, 3, 12, 12), dtype=torch.uint8)
    changed = frames.clone()
    changed[0, :, 4:8, 8:] ^= 255
    features, others = encoder(frames), encoder(changed)
    moved = (features != others).any(1)[0]
    assert moved.nonzero().tolist() == [[1, 2]]
    pixels = (decoder(features) != decoder(others)).any(1)[0]
    assert pixels.sum() == pixels[4:8, 8:].sum() > 0
