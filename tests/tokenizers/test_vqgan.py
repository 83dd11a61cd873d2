"""The tokenizers of IRIS and REM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamenvs.config import from_json, to_json
from dreamenvs.models.reconstruction import autoencoder_loss
from dreamenvs.nn import lpips
from dreamenvs.nn.frame_networks.iris import ResidualNetworkConfig
from dreamenvs.nn.frame_networks.rem import PlainNetworkConfig
from dreamenvs.nn.lpips import LPIPS, Convolution, LPIPSError
from dreamenvs.tokenizers.gradient_codebook import Codebook
from dreamenvs.tokenizers.vqgan import DiscreteConfig, DiscreteTokenizer
from tests.rounding import TOLERANCE

pytestmark = pytest.mark.portable
IRIS = DiscreteConfig()
REM = DiscreteConfig(network=PlainNetworkConfig(), code_width=256, reconstruction="l2")
SMALL = {
    "plain": DiscreteConfig(
        network=PlainNetworkConfig(channels=16, halvings=2), codes=64, code_width=32, reconstruction="l2"
    ),
    "residual": DiscreteConfig(
        network=ResidualNetworkConfig(channels=(16, 16, 16), blocks=1, attention=(4,), features=32, groups=4),
        codes=64,
        code_width=32,
        reconstruction="l2",
    ),
}


def build(config: DiscreteConfig, shape: tuple[int, int, int] = (3, 24, 24)) -> DiscreteTokenizer:
    torch.manual_seed(0)
    return DiscreteTokenizer(config, shape)


def noise(count: int, shape: tuple[int, int, int] = (3, 24, 24)) -> Tensor:
    return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def cells(count: int, side: int) -> Tensor:
    """Frames as MinAtar draws them: coloured cells of 4×4 pixels here and there on black."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.tensor([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [0, 255, 255]])
    kinds = torch.randint(6, (count, side, side), generator=generator)
    shown = torch.rand(count, side, side, generator=generator) < 0.15
    frames = colours[kinds * shown].permute(0, 3, 1, 2).to(torch.uint8)
    return frames.repeat_interleave(4, 2).repeat_interleave(4, 3)


@pytest.mark.parametrize(("config", "parameters", "tokens"), [(IRIS, 4_027_523, 16), (REM, 3_189_667, 64)])
def test_parameter_counts_of_the_papers(config: DiscreteConfig, parameters: int, tokens: int) -> None:
    tokenizer = build(config, (3, 64, 64))
    assert sum(weights.numel() for weights in tokenizer.parameters()) == parameters
    assert tokenizer.num_tokens == tokens
    assert tokenizer.vocabulary == 512


@pytest.mark.parametrize("config", [IRIS, REM])
def test_a_frames_tokens_do_not_depend_on_its_batch(config: DiscreteConfig) -> None:
    tokenizer = build(config, (3, 64, 64)).eval()
    frames = noise(9, (3, 64, 64))
    tokens = tokenizer.encode(frames)
    pixels = tokenizer.decode(tokenizer.embed(tokens)).detach()
    assert len(tokens.unique()) > 10
    for rows in (1, 3, 8):
        assert torch.equal(tokenizer.encode(frames[:rows]), tokens[:rows])
        few = tokenizer.decode(tokenizer.embed(tokens[:rows])).detach()
        # With AVX2 alone, pixels of the paper's network are 2e-5 apart; they are promised to the bit nowhere.
        torch.testing.assert_close(few, pixels[:rows], atol=max(5e-5, TOLERANCE), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_it_learns_a_few_frames(kind: str) -> None:
    frames = cells(8, side=4)
    tokenizer = build(SMALL[kind], (3, 16, 16))
    optimizer = torch.optim.Adam(tokenizer.parameters(), 2e-3)
    for _ in range(250):
        terms = autoencoder_loss(tokenizer, tokenizer.posterior(frames), frames)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
    with torch.no_grad():
        restored = tokenizer.decode(tokenizer.embed(tokenizer.encode(frames))).clamp(0, 1)
    error = (restored - frames / 255).square().mean()
    assert -10 * error.log10() > 20  # decibels; all black is 12


def test_the_nearest_code_is_chosen() -> None:
    torch.manual_seed(0)
    codebook = Codebook(7, 5, commitment=1.0).double()
    torch.nn.init.normal_(codebook.codes)
    vectors = torch.randn(40, 5, dtype=torch.float64)
    distances = torch.stack([((vectors - code) ** 2).sum(1) for code in codebook.codes], 1)
    coded = codebook(vectors)
    assert torch.equal(coded.tokens, distances.argmin(1))
    assert torch.equal(codebook.encode(vectors), distances.argmin(1))
    torch.testing.assert_close(coded.logits.log_softmax(-1), (-distances).log_softmax(-1))
    torch.testing.assert_close(coded.vectors, codebook.codes[coded.tokens])


def test_codes_and_vectors_are_drawn_to_each_other_by_their_own_terms() -> None:
    """Equation 8 of REM with means for norms, and β on the vectors' side alone."""
    torch.manual_seed(0)
    codebook = Codebook(7, 5, commitment=0.5).double()
    vectors = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    coded = codebook(vectors)
    difference = (vectors - codebook.codes[coded.tokens]).detach()
    torch.testing.assert_close(coded.penalties, 1.5 * difference.square().mean(1))
    coded.penalties.sum().backward()
    torch.testing.assert_close(vectors.grad, 0.5 * 2 * difference / 5)
    expected = torch.zeros_like(codebook.codes).index_add(0, coded.tokens, -2 * difference / 5)
    torch.testing.assert_close(codebook.codes.grad, expected)


@pytest.mark.parametrize("part", ["latent", "logits"])
def test_the_penalty_alone_moves_the_codes(part: str) -> None:
    tokenizer = build(SMALL["plain"])
    posterior = tokenizer.posterior(noise(2))
    getattr(posterior, part).square().sum().backward()
    assert tokenizer.codebook.codes.grad is None
    tokenizer.posterior(noise(2)).commitment.sum().backward()
    assert tokenizer.codebook.codes.grad is not None


def test_reconstruction_is_a_mean_from_minus_one_to_one() -> None:
    frames = noise(3)
    pixels = torch.rand(3, 3, 24, 24, dtype=torch.float64)
    errors = (pixels * 2 - 1) - (frames.double() / 255 * 2 - 1)
    for kind, expected in (("l1", errors.abs()), ("l2", errors**2)):
        tokenizer = build(DiscreteConfig(network=PlainNetworkConfig(channels=8), reconstruction=kind))  # type: ignore[arg-type]
        torch.testing.assert_close(tokenizer.reconstruction(pixels, frames), expected.flatten(1).mean(1))


def test_lpips_is_added_and_never_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Convolution(torch.randn(4, 3, 3, 3), torch.zeros(4))
    distance = LPIPS(((layer,),), (torch.ones(4),))
    monkeypatch.setenv(lpips.VARIABLE, "anywhere")
    monkeypatch.setattr(lpips, "load_lpips", lambda *_: distance)
    lpips._cached.cache_clear()
    network = PlainNetworkConfig(channels=8)
    with_lpips, without = (build(DiscreteConfig(network=network, perceptual=choice)) for choice in ("lpips", "none"))  # type: ignore[arg-type]
    frames, pixels = noise(2), torch.rand(2, 3, 24, 24)
    added = with_lpips.reconstruction(pixels, frames) - without.reconstruction(pixels, frames)
    torch.testing.assert_close(added, distance(pixels * 2 - 1, frames / 127.5 - 1))
    assert with_lpips.state_dict().keys() == without.state_dict().keys()
    assert len(list(with_lpips.parameters())) == len(list(without.parameters()))
    lpips._cached.cache_clear()


def test_only_training_needs_the_weights_of_lpips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lpips.VARIABLE, str(tmp_path / "absent"))
    tokenizer = build(DiscreteConfig(network=PlainNetworkConfig(channels=8), perceptual="lpips"))
    pixels = tokenizer.decode(tokenizer.embed(tokenizer.encode(noise(1))))
    with pytest.raises(LPIPSError, match="absent"):
        tokenizer.reconstruction(pixels, noise(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"codes": 1}, "two codes"),
        ({"reconstruction": "l3"}, "'l3'"),
        ({"perceptual": "vgg"}, "'vgg'"),
    ],
)
def test_impossible_configs_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiscreteConfig(**wrong)


def test_lpips_of_frames_that_it_cannot_see_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"\(4, 64, 64\)"):
        build(DiscreteConfig(perceptual="lpips"), (4, 64, 64))


@pytest.mark.parametrize("config", [IRIS, REM])
def test_configs_survive_json(config: DiscreteConfig) -> None:
    assert from_json(DiscreteConfig, to_json(config)) == config
