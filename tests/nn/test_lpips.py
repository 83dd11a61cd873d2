"""LPIPS against a slow one in float64, and the file that its weights come from. The weights here are random."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dreamenvs.nn import lpips as perceptual
from dreamenvs.nn.lpips import LPIPS, LPIPSError, check_perceptual, load_lpips, lpips_shapes, perceptual_distance

ROOT = Path(__file__).resolve().parent.parent.parent
VGG16 = [0, 2, "pool", 5, 7, "pool", 10, 12, 14, "pool", 17, 19, 21, "pool", 24, 26, 28]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every tensor of VGG16's convolutions, drawn so that features keep their size."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in lpips_shapes().items():
        if name.startswith("lin"):
            tensors[name] = torch.rand(shape, generator=generator)
        else:
            fan = shape[1] * 9 if len(shape) == 4 else 100
            tensors[name] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
    path = tmp_path_factory.mktemp("lpips") / "lpips.safetensors"
    save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def lpips(weights: Path) -> LPIPS:
    return load_lpips(weights)


def pictures(seed: int, count: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 16, 20, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def convolve(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(C', H, W) of (C, H, W): the nine shifted copies, each through its matrix."""
    _, height, width = features.shape
    padded = torch.nn.functional.pad(features, (1, 1, 1, 1))
    result = bias[:, None, None].expand(-1, height, width).clone()
    for y in range(3):
        for x in range(3):
            shifted = padded[:, y : y + height, x : x + width].flatten(1)
            result += (weight[:, :, y, x] @ shifted).view(-1, height, width)
    return result


def naive(path: Path, first: Tensor, second: Tensor) -> float:
    """LPIPS of two pictures (3, H, W), as the paper describes it: equation 1."""
    tensors = {name: tensor.double() for name, tensor in load_file(path).items()}
    total, stage = 0.0, 0
    sides = []
    for picture in (first, second):
        rgb = [(0.030, 0.458), (0.088, 0.448), (0.188, 0.450)]
        sides.append(
            torch.stack([(c + shift) / scale for c, (shift, scale) in zip(picture.double(), rgb, strict=True)])
        )
    for layer in [*VGG16, "end"]:
        if isinstance(layer, int):
            weight, bias = tensors[f"features.{layer}.weight"], tensors[f"features.{layer}.bias"]
            sides = [convolve(side, weight, bias).clamp(min=0) for side in sides]
            continue
        one, other = (side / side.norm(dim=0) for side in sides)
        difference = (one - other) ** 2 * tensors[f"lin{stage}.model.1.weight"][0]
        total += float(difference.sum(0).mean())
        stage += 1
        if layer == "pool":
            halves = [(side.shape[1] // 2, side.shape[2] // 2) for side in sides]
            sides = [
                side[:, : 2 * h, : 2 * w].reshape(-1, h, 2, w, 2).amax((2, 4))
                for side, (h, w) in zip(sides, halves, strict=True)
            ]
    return total


def test_it_is_the_papers_distance(weights: Path, lpips: LPIPS) -> None:
    first, second = pictures(1), pictures(2)
    expected = [naive(weights, one, other) for one, other in zip(first, second, strict=True)]
    assert lpips(first, second).tolist() == pytest.approx(expected, rel=1e-4)
    assert expected[0] > 0.01


def test_equal_pictures_are_at_no_distance(lpips: LPIPS) -> None:
    assert lpips(pictures(1), pictures(1)).tolist() == [0, 0]


def test_grey_pictures_are_seen_as_three_equal_colours(lpips: LPIPS) -> None:
    first, second = pictures(1, channels=1), pictures(2, channels=1)
    torch.testing.assert_close(lpips(first, second), lpips(first.expand(-1, 3, -1, -1), second.expand(-1, 3, -1, -1)))


def test_gradients_reach_the_pictures_alone_and_are_finite_where_nothing_is_seen(weights: Path) -> None:
    blind = load_lpips(weights)
    blind.stages[0][0].bias.fill_(-1e4)  # no feature ever fires after this
    for network in (blind, load_lpips(weights)):
        frames = pictures(1).requires_grad_()
        network(frames, pictures(2)).sum().backward()
        assert frames.grad is not None
        assert frames.grad.isfinite().all()
        assert not any(tensor.requires_grad for stage in network.stages for layer in stage for tensor in layer)
    assert frames.grad.any()


def test_weights_that_were_first_used_in_inference_mode_still_train(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(perceptual.VARIABLE, str(weights))
    perceptual._cached.cache_clear()
    with torch.inference_mode():
        perceptual_distance(pictures(1, 1), pictures(2, 1))
    frames = pictures(1, 1).requires_grad_()
    perceptual_distance(frames, pictures(2, 1)).sum().backward()
    assert frames.grad is not None


def test_without_a_file_the_error_names_it_and_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(perceptual.VARIABLE, raising=False)
    with pytest.raises(LPIPSError, match=r"DREAMENVS_LPIPS names none.*python -m dreamenvs.cli.lpips"):
        perceptual_distance(pictures(1), pictures(2))
    monkeypatch.setenv(perceptual.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(LPIPSError, match=r"absent.*python -m dreamenvs.cli.lpips"):
        perceptual_distance(pictures(1), pictures(2))


def test_other_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no weights")
    with pytest.raises(LPIPSError, match="text is no safetensors file"):
        load_lpips(text)
    other = tmp_path / "other"
    save_file({"features.0.weight": torch.zeros(64, 3, 3, 3)}, other)
    with pytest.raises(LPIPSError, match=r"other lacks features\.0\.bias"):
        load_lpips(other)
    narrow = tmp_path / "narrow"
    save_file({name: torch.zeros(2) for name in lpips_shapes()}, narrow)
    with pytest.raises(LPIPSError, match=r"features\.0\.weight in .*narrow has shape \(2,\), not \(64, 3, 3, 3\)"):
        load_lpips(narrow)


@pytest.mark.parametrize("shape", [(4, 64, 64), (3, 12, 64)])
def test_frames_that_vgg_cannot_see_are_refused(shape: tuple[int, int, int]) -> None:
    check_perceptual("none", shape)
    with pytest.raises(ValueError, match="1 or 3 channels"):
        check_perceptual("lpips", shape)


def test_the_converter_joins_both_files(weights: Path, lpips: LPIPS, tmp_path: Path) -> None:
    tensors = load_file(weights)
    torch.save({n: t for n, t in tensors.items() if n[0] == "f"} | {"classifier.0.bias": torch.ones(9)}, tmp_path / "v")
    torch.save({n: t for n, t in tensors.items() if n[0] == "l"}, tmp_path / "l")
    out = tmp_path / "made" / "lpips.safetensors"
    from tests.warm import run_python

    command = [str(ROOT / "training" / "convert_lpips.py")]
    files = ["--vgg", str(tmp_path / "v"), "--linear", str(tmp_path / "l"), "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = run_python([*command, *files], env=environment, timeout=240)
    assert result.returncode == 0, result.stderr
    assert f"DREAMENVS_LPIPS={out}" in result.stdout
    assert load_file(out).keys() == tensors.keys()
    torch.testing.assert_close(load_lpips(out)(pictures(1), pictures(2)), lpips(pictures(1), pictures(2)))
