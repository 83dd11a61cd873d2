"""Δ-IRIS's tokenizer and losses against naive loops, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dreamenvs.nn.frame_networks.delta_iris import FrameDecoder, FrameEncoder, FrameNetworkConfig, Upsample
from dreamenvs.tokenizers.cosine_codebook import UnitQuantizer, usage_entropy
from dreamenvs.tokenizers.delta import DeltaTokenizer
from tests.small import DELTA, DISCRETE, build_small, random_segment

pytestmark = pytest.mark.portable


def quantizer(codes: int = 32, revival_updates: int = 0) -> UnitQuantizer:
    torch.manual_seed(0)
    return UnitQuantizer(codes, 3, decay=0.99, revival_updates=revival_updates).double()


def units(count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, dtype=torch.float64, generator=generator)


def test_codes_follow_the_mean_direction_of_their_vectors() -> None:
    module, vectors = quantizer(), units(40)
    before = module.codebook.clone()
    result = module.train()(vectors)
    counts = [0] * 32
    for code in range(32):
        members = [n for n in range(40) if int(result.tokens[n]) == code]
        counts[code] = len(members)
        expected = before[code]
        if members:
            mean = sum((vectors[n] / vectors[n].norm() for n in members), torch.zeros(3)) / len(members)
            expected = 0.99 * before[code] + 0.01 * mean / mean.norm()
            expected = expected / expected.norm()
        assert torch.allclose(module.codebook[code], expected)
        assert math.isclose(float(module.usage[code]), 0.98 / 32 + 0.02 * counts[code] / 40)
    for n in range(40):
        cosines = [float(before[code] @ vectors[n] / vectors[n].norm()) for code in range(32)]
        assert int(result.tokens[n]) == cosines.index(max(cosines))
        assert torch.allclose(result.vectors[n], before[int(result.tokens[n])])
    differences = [(vectors[n] / vectors[n].norm() - before[int(result.tokens[n])]) ** 2 for n in range(40)]
    assert torch.allclose(result.commitment, torch.stack(differences).mean())


def test_gradients_pass_straight_through() -> None:
    module, vectors = quantizer().eval(), units(5).requires_grad_()
    weights = units(5, seed=2)
    (module(vectors).vectors * weights).sum().backward()
    straight = vectors.detach().clone().requires_grad_()
    (F.normalize(straight, dim=-1) * weights).sum().backward()
    assert vectors.grad is not None
    assert straight.grad is not None
    assert torch.allclose(vectors.grad, straight.grad)


@pytest.mark.parametrize(
    ("shares", "updates", "revived"),
    [
        ([1.0] + [0.0] * 31, 5, True),  # collapsed: revived whenever that happens
        ([1.0] * 5 + [0.0] * 27, 5, False),  # 2.3 bits of 5: only in the first updates
        ([1.0] * 5 + [0.0] * 27, 0, True),
        ([1.0] * 12 + [0.0] * 20, 0, False),  # 3.6 bits: good enough
    ],
)
def test_revival(shares: list[float], updates: int, revived: bool) -> None:
    module, vectors = quantizer(revival_updates=1), F.normalize(units(40), dim=-1)
    module.usage.copy_(torch.tensor(shares, dtype=torch.float64) / sum(shares))
    module.updates.fill_(updates)
    before = module.codebook.clone()
    module._revive(vectors)
    for code, share in enumerate(shares):
        new = any(torch.equal(module.codebook[code], vector) for vector in vectors)
        assert new == (revived and share == 0)
        assert torch.equal(module.codebook[code], before[code]) == (not new)
        assert math.isclose(float(module.usage[code]), 1 / 32 if new else share / sum(shares))


def test_entropy_in_bits() -> None:
    assert math.isclose(usage_entropy(torch.tensor([0.5, 0.25, 0.25, 0.0])), 1.5, rel_tol=1e-6)


def test_the_loss_of_the_tokenizer() -> None:
    torch.manual_seed(0)
    tokenizer = DeltaTokenizer(DELTA, (3, 12, 16), 4).double().eval()
    frames = random_segment(rows=3, steps=2).observations
    actions = F.one_hot(torch.tensor([0, 3, 1]), 4).double()
    terms = tokenizer.loss(frames[:, 0], actions, frames[:, 1])
    tokens = tokenizer.encode(frames[:, 0], actions, frames[:, 1])
    pixels = tokenizer.decode(frames[:, 0], actions, tokenizer.embed(tokens))
    absolute = squared = largest = 0.0
    for row in range(3):
        worst = 0.0
        for guess, real in zip(pixels[row].flatten().tolist(), frames[row, 1].flatten().tolist(), strict=True):
            error = guess - real / 255
            absolute += abs(error) / (3 * 3 * 12 * 16)
            squared += error**2 / (3 * 3 * 12 * 16)
            worst = max(worst, error**2)
        largest += worst / 3
    assert math.isclose(float(terms.parts["absolute"]), absolute)
    assert math.isclose(float(terms.parts["squared"]), squared)
    assert math.isclose(float(terms.parts["largest"]), largest)
    expected = 0.1 * absolute + squared + 0.01 * largest + 0.02 * float(terms.parts["commitment"])
    assert math.isclose(terms.total.item(), expected)


def test_the_loss_of_the_dynamics_has_no_target_in_padding() -> None:
    """The published code learns the transition from the last real frame into black padding."""
    model = build_small("DeltaIRIS", dtype=torch.float64)
    segment = random_segment(rows=3, steps=5)
    lengths = (5, 3, 1)
    for row, length in enumerate(lengths):
        segment.valid[row, length:] = False
        segment.observations[row, length:] = 0
    terms = model.dynamics_loss(segment)
    nats, rewards = [], []
    for row, length in enumerate(lengths):
        inputs, targets, acted = [torch.zeros(32, dtype=torch.float64)], {}, []
        for step in range(length):
            frame, action = segment.observations[row, step : step + 1], segment.actions[row, step : step + 1]
            inputs += [model.frame_token(frame)[0, 0], model.action_input.linear.weight[:, action[0]]]
            acted.append(len(inputs) - 1)
            if step + 1 < length:
                encoded = F.one_hot(action, 4).double()
                tokens = model.tokenizer.encode(frame, encoded, segment.observations[row, step + 1 : step + 2])[0]
                targets |= {len(inputs) - 1 + k: int(token) for k, token in enumerate(tokens)}
                inputs += [model.embed_tokens.weight[token] for token in tokens]
        hidden = model.sequence(torch.stack(inputs)[None])[0]
        nats += [-model.prior.logits(hidden[at]).log_softmax(-1)[token] for at, token in targets.items()]
        rewards.append(
            model.outcomes.reward.loss(hidden[acted], segment.rewards[row, :length], segment.valid[row, :length])
        )
    assert len(nats) == (4 + 2 + 0) * 4
    assert torch.allclose(terms.parts["dynamics"] / 4, torch.stack(nats).mean())
    mean = sum(reward * length for reward, length in zip(rewards, lengths, strict=True)) / sum(lengths)
    assert torch.allclose(terms.parts["reward"], mean, rtol=1e-5)


def test_doubling_and_a_convolution_are_one_transposed_convolution() -> None:
    torch.manual_seed(0)
    layer = Upsample(6).double()
    features = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    doubled = features.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.allclose(layer(features), F.conv2d(doubled, layer.weight, layer.bias, padding=1))


def test_groups_of_frames_give_what_all_at_once_do() -> None:
    torch.manual_seed(0)
    config = FrameNetworkConfig(channels=(8, 16, 16), strides=(2, 1, 2), groups=4)
    encoder, decoder = FrameEncoder(config, 3, 5).double(), FrameDecoder(config, 5, 3).double()
    frames = torch.rand(7, 3, 16, 24, dtype=torch.float64)
    expected = decoder(encoder(frames))
    with torch.no_grad():
        assert torch.allclose(decoder(encoder(frames)), expected)


def test_a_frame_has_the_same_bits_in_a_batch_of_any_size(threads: int, frames_agree: Any) -> None:
    torch.manual_seed(0)
    config = FrameNetworkConfig(channels=(32, 64), strides=(2, 1))
    encoder, decoder = FrameEncoder(config, 3, 8), FrameDecoder(config, 8, 3)
    frames, before = torch.rand(13, 3, 32, 32), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            expected = decoder(encoder(frames))
            for first, last in ((0, 1), (1, 2), (3, 11), (5, 9), (0, 12)):
                assert frames_agree(decoder(encoder(frames[first:last])), expected[first:last])
    finally:
        torch.set_num_threads(before)


def test_the_shape_of_the_frame_decides_the_patches() -> None:
    network = FrameNetworkConfig(channels=(8, 8), strides=(2, 2), groups=4)
    for shape, action_width in (((3, 40, 40), 6), ((1, 24, 16), 2)):
        config = type(DELTA)(network=network, condition=network, channels=2, codes=8, code_width=4)
        tokenizer = DeltaTokenizer(config, shape, action_width)
        frames = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
        tokens = tokenizer.encode(frames, torch.zeros(2, action_width), frames.flip(0))
        assert tokens.shape == (2, 4)
        assert tokenizer.decode(frames, torch.zeros(2, action_width), tokenizer.embed(tokens)).shape == frames.shape
    with pytest.raises(ValueError, match="patches"):
        DeltaTokenizer(type(DELTA)(network=network, condition=network, patches=(3, 3)), DISCRETE.observation_shape, 4)
