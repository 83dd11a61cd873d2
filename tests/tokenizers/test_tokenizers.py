"""What all tokenizers of whole frames promise, and what sets them apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.nn.frame_networks.iris import ResidualNetworkConfig
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.priors.factorized import FactorizedConfig, FactorizedPrior
from dreamenvs.protocols import Tokenizer
from dreamenvs.tokenizers.categorical import CategoricalConfig, CategoricalTokenizer
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer
from dreamenvs.tokenizers.vqgan import DiscreteConfig, DiscreteTokenizer

pytestmark = pytest.mark.portable
SHAPE = (3, 16, 24)
CONV = ConvConfig(channels=(8, 16), strides=(2, 2))
PLAIN = PlainNetworkConfig(channels=8, halvings=2)
RESIDUAL = ResidualNetworkConfig(channels=(8, 16, 16), blocks=1, attention=(4,), features=24, groups=8)
KINDS = ["vq", "categorical", "plain", "residual"]


def build(kind: str) -> Any:
    torch.manual_seed(0)
    if kind in ("plain", "residual"):
        network = PLAIN if kind == "plain" else RESIDUAL
        return DiscreteTokenizer(DiscreteConfig(network=network, codes=12, code_width=6), SHAPE)
    if kind == "vq":
        return VQTokenizer(VQConfig(conv=CONV, codes=12, code_width=6), SHAPE)
    return CategoricalTokenizer(CategoricalConfig(conv=CONV, categories=5, classes=7), SHAPE)


def frames(count: int = 4) -> Tensor:
    return torch.randint(256, (count, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "tokens", "vocabulary", "width"),
    [("vq", 24, 12, 144), ("categorical", 5, 7, 35), ("plain", 24, 12, 144), ("residual", 24, 12, 144)],
)
def test_sizes(kind: str, tokens: int, vocabulary: int, width: int) -> None:
    tokenizer: Tokenizer = build(kind)
    assert (tokenizer.num_tokens, tokenizer.vocabulary, tokenizer.latent_width) == (tokens, vocabulary, width)
    posterior = tokenizer.posterior(frames())
    assert posterior.tokens.shape == (4, tokens)
    assert posterior.logits.shape == (4, tokens, vocabulary)
    assert posterior.latent.shape == (4, width)
    assert posterior.commitment.shape == (4,)
    encoded = tokenizer.encode(frames())
    assert encoded.shape == (4, tokens)
    assert encoded.dtype == torch.int64
    assert tokenizer.decode(tokenizer.embed(encoded)).shape == (4, *SHAPE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_latent_of_training_is_the_embedding_of_its_tokens(kind: str) -> None:
    tokenizer = build(kind)
    tokenizer.posterior(frames())
    embedded = tokenizer.embed(tokenizer.encode(frames()))
    posterior = tokenizer.eval().posterior(frames())
    assert torch.equal(posterior.tokens, tokenizer.encode(frames()))
    torch.testing.assert_close(posterior.latent, embedded)
    assert torch.equal(posterior.logits.argmax(-1), posterior.tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["latent", "logits", "commitment"])
def test_gradients_reach_the_encoder(kind: str, part: str) -> None:
    tokenizer = build(kind)
    output = getattr(tokenizer.posterior(frames()), part)
    if (kind, part) == ("categorical", "commitment"):
        assert not output.any()
        return
    output.square().sum().backward()
    assert all(weights.grad is not None and weights.grad.any() for weights in tokenizer.encoder.parameters())


@pytest.mark.parametrize("kind", ["vq", "categorical"])
def test_a_few_updates_lower_the_reconstruction_error(kind: str) -> None:
    tokenizer = build(kind)
    optimizer = torch.optim.Adam(tokenizer.parameters(), 3e-3)
    target = frames(2)
    errors = []
    for _ in range(30):
        posterior = tokenizer.posterior(target)
        error = tokenizer.reconstruction(tokenizer.decode(posterior.latent), target).mean()
        optimizer.zero_grad()
        (error + posterior.commitment.mean()).backward()
        optimizer.step()
        errors.append(error.item())
    assert min(errors[-5:]) < 0.75 * errors[0]


@pytest.mark.parametrize("kind", ["vq", "categorical"])
def test_reconstruction_is_the_squared_error_summed_over_each_frame(kind: str) -> None:
    pixels = torch.rand(4, *SHAPE, dtype=torch.float64)
    expected = [((one - frame / 255) ** 2).sum() for one, frame in zip(pixels, frames().double(), strict=True)]
    torch.testing.assert_close(build(kind).reconstruction(pixels, frames()), torch.stack(expected))


def test_commitment_is_equation_1_over_the_whole_frame() -> None:
    tokenizer = build("vq")
    posterior = tokenizer.posterior(frames())
    assert isinstance(tokenizer, VQTokenizer)
    encoded = tokenizer.contract(tokenizer.encoder(frames()).permute(0, 2, 3, 1)).flatten(1)
    expected = 0.25 * (encoded - posterior.latent.detach()).square().sum(1)
    torch.testing.assert_close(posterior.commitment, expected)


def test_a_token_belongs_to_its_place_on_the_grid() -> None:
    tokenizer = build("vq")
    tokenizer.posterior(frames())
    tokens = torch.zeros(1, 24, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 8] = 1  # row 1, column 2 of the 4 × 6 grid
    # Without normalisation, whose statistics reach everywhere, a token reaches its neighbourhood alone.
    tokenizer.decoder.layers = torch.nn.Sequential(
        *(layer for layer in tokenizer.decoder.layers if not isinstance(layer, torch.nn.GroupNorm))
    )
    difference = tokenizer.decode(tokenizer.embed(changed)) - tokenizer.decode(tokenizer.embed(tokens))
    rows, columns = difference[0].abs().sum(0).nonzero().unbind(-1)
    assert rows.float().mean().item() == pytest.approx(5.5, abs=1.5)
    assert columns.float().mean().item() == pytest.approx(9.5, abs=1.5)


def test_sharpness_scales_the_logits() -> None:
    base, sharp = (
        VQTokenizer(VQConfig(conv=CONV, codes=4, code_width=6, sharpness=sharpness), SHAPE).eval()
        for sharpness in (1.0, 3.0)
    )
    sharp.load_state_dict(base.state_dict())
    torch.testing.assert_close(sharp.posterior(frames()).logits, 3 * base.posterior(frames()).logits)


def test_categorical_samples_in_training_follow_the_posterior_and_the_seed() -> None:
    tokenizer = build("categorical")
    many = frames(1).expand(4000, -1, -1, -1)

    def sample() -> Tensor:
        torch.manual_seed(3)
        with torch.no_grad():
            return tokenizer.posterior(many).tokens

    tokens = sample()
    assert torch.equal(tokens, sample())
    shares = torch.nn.functional.one_hot(tokens, 7).float().mean(0)
    torch.testing.assert_close(shares, tokenizer.posterior(frames(1)).logits[0].exp(), atol=0.04, rtol=0)


def test_categorical_logits_are_log_probabilities_with_a_floor() -> None:
    tokenizer = build("categorical")
    with torch.no_grad():
        tokenizer.contract.weight.mul_(100)
        probabilities = tokenizer.posterior(frames()).logits.exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, 5))
    assert probabilities.min().item() == pytest.approx(0.01 / 7, rel=1e-3)


def test_parameter_counts_of_the_paper() -> None:
    """Section 3.2: 2,175,616 against 8,919,552, bottleneck and dynamics head, at 64×64 and a hidden width of 512."""
    counts = []
    for tokenizer in (VQTokenizer(VQConfig(), (3, 64, 64)), CategoricalTokenizer(CategoricalConfig(), (3, 64, 64))):
        prior = FactorizedPrior(FactorizedConfig(), 512, tokenizer.num_tokens, tokenizer.vocabulary)
        counts.append(tokenizer.bottleneck_size + sum(weights.numel() for weights in prior.parameters()))
    assert counts == [2_175_616, 8_919_552]


@pytest.mark.parametrize("kind", [VQTokenizer, CategoricalTokenizer])
def test_a_frame_that_does_not_divide_is_refused(kind: type[VQTokenizer] | type[CategoricalTokenizer]) -> None:
    config = VQConfig(conv=CONV) if kind is VQTokenizer else CategoricalConfig(conv=CONV)
    with pytest.raises(ValueError, match=r"\(1, 10, 12\).*total stride 4"):
        kind(config, (1, 10, 12))  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [VQConfig(conv=CONV, revival=0.1), CategoricalConfig()])
def test_configs_survive_json(config: VQConfig | CategoricalConfig) -> None:
    assert from_json(type(config), to_json(config)) == config
