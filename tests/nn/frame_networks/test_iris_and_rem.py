"""The networks of IRIS and REM."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dreamenvs.nn.frame_networks.iris import AttentionBlock, IRISDecoder, IRISEncoder, ResidualNetworkConfig
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig, REMDecoder, REMEncoder
from dreamenvs.nn.frame_networks.resampling import Double, Halve
from dreamenvs.nn.frame_networks.shapes import grid_shape

pytestmark = pytest.mark.portable
PLAIN = PlainNetworkConfig(channels=8, halvings=2, groups=4)
RESIDUAL = ResidualNetworkConfig(channels=(8, 16, 16), blocks=1, attention=(4,), features=24, groups=4)
NetworkConfig = PlainNetworkConfig | ResidualNetworkConfig
Shape = tuple[int, int, int]


def build(config: NetworkConfig, shape: Shape) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    if isinstance(config, PlainNetworkConfig):
        return REMEncoder(config, shape), REMDecoder(config, shape)
    return IRISEncoder(config, shape), IRISDecoder(config, shape)


def noise(count: int, shape: Shape) -> Tensor:
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("config", "shape", "grid"),
    [
        (PlainNetworkConfig(), (3, 64, 64), (8, 8)),
        (PlainNetworkConfig(halvings=4), (3, 64, 64), (4, 4)),
        (ResidualNetworkConfig(), (3, 64, 64), (4, 4)),
        (ResidualNetworkConfig(channels=(64,) * 4), (3, 64, 64), (8, 8)),
        (ResidualNetworkConfig(channels=(64,) * 4), (3, 40, 40), (5, 5)),
        (PlainNetworkConfig(), (4, 40, 40), (5, 5)),
        (PLAIN, (1, 12, 20), (3, 5)),
        (RESIDUAL, (1, 12, 20), (3, 5)),
    ],
)
def test_the_decoder_mirrors_the_encoder(config: NetworkConfig, shape: Shape, grid: tuple[int, int]) -> None:
    encoder, decoder = build(config, shape)
    assert grid_shape(config, shape) == grid
    features = encoder(noise(1, shape))
    assert features.shape == (1, config.features, *grid)
    assert decoder(features).shape == (1, *shape)


@pytest.mark.parametrize("config", [PLAIN, RESIDUAL])
def test_networks_see_and_say_numbers_from_minus_one_to_one(config: NetworkConfig) -> None:
    encoder, decoder = (network.double() for network in build(config, (3, 8, 8)))
    frames = noise(2, (3, 8, 8))
    features = encoder(frames)
    torch.testing.assert_close(features, encoder.layers(frames.double() / 255 * 2 - 1))  # type: ignore[operator]
    torch.testing.assert_close(decoder(features) * 2 - 1, decoder.layers(features))  # type: ignore[operator]


@pytest.mark.parametrize("config", [PLAIN, RESIDUAL])
def test_a_frame_does_not_depend_on_its_batch(config: NetworkConfig, threads: int, frames_agree: Any) -> None:
    frames = noise(20, (3, 20, 28))
    encoder, decoder = build(config, (3, 20, 28))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            features = encoder(frames)
            pixels = decoder(features)
            for rows in (1, 3, 8, 17):
                assert frames_agree(encoder(frames[:rows]), features[:rows]), rows
                assert frames_agree(decoder(features[:rows]), pixels[:rows]), rows
    finally:
        torch.set_num_threads(before)


def test_halving_pads_on_the_right_and_below_alone() -> None:
    layer = Halve(1, 1)
    nn.init.ones_(layer.conv.weight)
    nn.init.zeros_(layer.conv.bias)  # type: ignore[arg-type]
    frame = torch.arange(16.0).view(1, 1, 4, 4)
    expected = torch.tensor(
        [[0 + 1 + 2 + 4 + 5 + 6 + 8 + 9 + 10, 2 + 3 + 6 + 7 + 10 + 11], [8 + 9 + 10 + 12 + 13 + 14, 10 + 11 + 14 + 15]]
    )
    torch.testing.assert_close(layer(frame)[0, 0], expected.float())


def test_doubling_repeats_every_position() -> None:
    layer = Double(1, 1)
    nn.init.dirac_(layer.conv.weight)
    nn.init.zeros_(layer.conv.bias)  # type: ignore[arg-type]
    frame = torch.tensor([[[[1.0, 2.0]]]])
    assert layer(frame).tolist() == [[[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]]]


def test_attention_is_a_softmax_over_the_positions_of_the_frame() -> None:
    torch.manual_seed(0)
    block = AttentionBlock(8, 4).double()
    features = torch.randn(2, 8, 3, 2, dtype=torch.float64)
    result = block(features)
    for frame, out in zip(features, result, strict=True):
        projected = block.project(block.norm(frame[None])[0].flatten(1).T)
        for position in range(6):
            query = projected[position, :8]
            scores = torch.stack([query @ projected[other, 8:16] / 8**0.5 for other in range(6)])
            mixed = sum(weight * projected[other, 16:] for other, weight in enumerate(scores.softmax(0)))
            expected = frame.flatten(1)[:, position] + block.output(mixed)
            torch.testing.assert_close(out.flatten(1)[:, position], expected)


def test_attention_stands_at_its_strides_and_in_the_middle() -> None:
    encoder, decoder = build(ResidualNetworkConfig(), (3, 64, 64))
    counts = [sum(isinstance(part, AttentionBlock) for part in network.modules()) for network in (encoder, decoder)]
    assert counts == [2 * 2 + 1, 2 * 3 + 1]


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (PlainNetworkConfig, {"channels": 20}, "8 groups"),
        (PlainNetworkConfig, {"halvings": 0}, "halvings"),
        (ResidualNetworkConfig, {"channels": (64,)}, "two levels"),
        (ResidualNetworkConfig, {"channels": (64, 64, 64)}, r"attention \(4, 8\).*\[1, 2, 4\]"),
        (ResidualNetworkConfig, {"groups": 48}, "48 groups"),
    ],
)
def test_impossible_configs_are_refused(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**wrong)


@pytest.mark.parametrize("config", [PlainNetworkConfig(halvings=4), ResidualNetworkConfig()])
def test_an_odd_shape_is_named_with_the_total_stride(config: NetworkConfig) -> None:
    with pytest.raises(ValueError, match=r"\(3, 40, 40\).*total stride 16"):
        build(config, (3, 40, 40))
