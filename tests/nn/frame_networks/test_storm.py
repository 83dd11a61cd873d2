"""STORM's convolutions: their shapes, their norms, and frames that do not depend on one another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamenvs.nn.frame_networks.shapes import grid_shape
from dreamenvs.nn.frame_networks.storm import BatchConvConfig, BatchDecoder, BatchEncoder
from dreamenvs.tokenizers.categorical import CategoricalConfig, CategoricalTokenizer

pytestmark = pytest.mark.portable
SMALL = BatchConvConfig(channels=(8, 16))


def random_frames(count: int, shape: tuple[int, int, int] = (3, 16, 24), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("config", "shape", "grid"),
    [
        (BatchConvConfig(), (3, 64, 64), (4, 4)),
        (SMALL, (1, 8, 12), (2, 3)),
        (BatchConvConfig(channels=(4,)), (5, 2, 6), (1, 3)),
    ],
)
def test_decoder_mirrors_encoder(config: BatchConvConfig, shape: tuple[int, int, int], grid: tuple[int, int]) -> None:
    assert grid_shape(config, shape) == grid
    features = BatchEncoder(config, shape)(random_frames(2, shape))
    assert features.shape == (2, config.channels[-1], *grid)
    assert BatchDecoder(config, shape)(features).shape == (2, *shape)


def test_sizes_of_tables_9_and_10() -> None:
    encoder, decoder = (kind(BatchConvConfig(), (3, 64, 64)) for kind in (BatchEncoder, BatchDecoder))
    assert sum(weights.numel() for weights in encoder.parameters()) == 690_624
    # With the linear layer from 1,024 numbers to 4,096, which the tokenizer has.
    assert sum(weights.numel() for weights in decoder.parameters()) + 1024 * 4096 == 4_884_931


def test_no_bias_before_a_norm() -> None:
    tokenizer = CategoricalTokenizer(CategoricalConfig(conv=SMALL, categories=4, classes=4), (3, 16, 24))
    assert tokenizer.expand.bias is None
    assert tokenizer.contract.bias is not None


def trained() -> CategoricalTokenizer:
    """A tokenizer whose norms have seen frames."""
    torch.manual_seed(0)
    tokenizer = CategoricalTokenizer(CategoricalConfig(conv=SMALL, categories=8, classes=6), (3, 16, 24))
    for seed in range(20):
        tokenizer.decode(tokenizer.posterior(random_frames(8, seed=seed)).latent)
    return tokenizer.eval()


@torch.inference_mode()
def test_a_frame_does_not_depend_on_its_batch(frames_agree: Any) -> None:
    tokenizer, frames = trained(), random_frames(64, seed=99)
    tokens = tokenizer.encode(frames)
    pixels = tokenizer.decode(tokenizer.embed(tokens))
    for count in (8, 12, 16, 32):
        assert torch.equal(tokenizer.encode(frames[:count]), tokens[:count])
        assert frames_agree(tokenizer.decode(tokenizer.embed(tokens[:count])), pixels[:count])


def test_statistics_move_in_training_alone() -> None:
    tokenizer = trained()
    before = {name: value.clone() for name, value in tokenizer.named_buffers()}
    tokenizer.decode(tokenizer.posterior(random_frames(8)).latent)
    assert all(torch.equal(value, before[name]) for name, value in tokenizer.named_buffers())
    tokenizer.train()
    tokenizer.decode(tokenizer.posterior(random_frames(8)).latent)
    assert not any(torch.equal(value, before[name]) for name, value in tokenizer.named_buffers())


def test_in_use_a_norm_is_a_fixed_scale_and_shift() -> None:
    tokenizer = trained()
    convolution, norm = tokenizer.encoder.layers[0], tokenizer.encoder.layers[1]
    frames = random_frames(3)
    with torch.no_grad():
        plain = convolution(frames.float() / 255)
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        expected = (plain - norm.running_mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
        torch.testing.assert_close(norm(plain), expected)


@pytest.mark.parametrize("channels", [(), (8, 0)])
def test_channels_that_are_none_are_named(channels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="channels are"):
        BatchConvConfig(channels=channels)
