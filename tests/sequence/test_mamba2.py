"""Mamba-2: parameters as mamba_ssm names them, the mixer from its definition, and the choice of the scan."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dreamenvs.sequence import mamba2
from dreamenvs.sequence.mamba2 import Mamba2, Mamba2Config, Mamba2Mixer, kernel_scan, select_scan
from dreamenvs.sequence.ssd import ssd_chunked, ssd_recurrent

pytestmark = pytest.mark.portable
CUDA = torch.device("cuda")
SIZES = (4, 8, 2, 4, 16)


def test_paper_sizes() -> None:
    config = Mamba2Config()
    assert (config.width, config.layers, config.heads, config.state_size) == (512, 4, 4, 16)
    assert (config.conv_width, config.expand, config.groups, config.dropout) == (4, 2, 1, 0.1)


@pytest.mark.parametrize("bad", [{"heads": 3}, {"heads": 4, "groups": 3}, {"conv_width": 1}, {"chunk": 0}])
def test_impossible_sizes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"divide|at least"):
        Mamba2Config(**bad)


def test_mixer_parameters_are_those_of_mamba_ssm() -> None:
    shapes = {name: tuple(value.shape) for name, value in Mamba2Mixer(Mamba2Config()).state_dict().items()}
    assert shapes == {
        "dt_bias": (4,),
        "A_log": (4,),
        "D": (4,),
        "in_proj.weight": (2084, 512),
        "conv1d.weight": (1056, 1, 4),
        "conv1d.bias": (1056,),
        "norm.weight": (1024,),
        "out_proj.weight": (512, 1024),
    }


def test_initial_values() -> None:
    torch.manual_seed(0)
    mixer = Mamba2Mixer(Mamba2Config(width=512, heads=256))
    a, dt = mixer.A_log.detach().exp(), F.softplus(mixer.dt_bias).detach()
    assert 1 <= float(a.min()) < 2
    assert 15 < float(a.max()) <= 16
    assert 0.99e-3 < float(dt.min()) < 1.5e-3
    assert 0.08 < float(dt.max()) < 0.101
    assert (mixer.D == 1).all()
    assert (mixer.norm.weight == 1).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_mixer_from_its_definition(groups: int) -> None:
    """With torch's own convolution and the plain recurrence, in the order z, x, B, C, dt, gate before norm."""
    torch.manual_seed(0)
    config = Mamba2Config(width=8, heads=4, groups=groups, state_size=3, chunk=4)
    mixer = Mamba2Mixer(config).double()
    inputs = torch.randn(2, 9, 8, dtype=torch.float64)
    shared = groups * 3
    z, xbc, dt = (inputs @ mixer.in_proj.weight.T).split([16, 16 + 2 * shared, 4], -1)
    xbc = F.silu(mixer.conv1d(F.pad(xbc.mT, (3, 0))).mT)
    x, b, c = xbc.split([16, shared, shared], -1)
    x, b, c = x.reshape(2, 9, 4, 4), b.reshape(2, 9, groups, 3), c.reshape(2, 9, groups, 3)
    start = torch.zeros(2, 4, 3, 4, dtype=torch.float64)
    outputs, _ = ssd_recurrent(x, F.softplus(dt + mixer.dt_bias), -mixer.A_log.exp(), b, c, start)
    gated = (outputs + mixer.D[:, None] * x).flatten(2) * F.silu(z)
    parts = gated.unflatten(-1, (groups, -1))
    normed = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2) * mixer.norm.weight
    conv, ssm = torch.zeros(2, 3, 16 + 2 * shared).double(), torch.zeros(2, groups, 3, 16 // groups).double()
    torch.testing.assert_close(mixer(inputs, conv, ssm)[0], normed @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_the_chunk_changes_nothing(chunk: int) -> None:
    def hidden(chunk: int) -> Tensor:
        torch.manual_seed(0)
        model = Mamba2(Mamba2Config(width=16, layers=2, chunk=chunk)).double().eval()
        return model(torch.randn(2, 23, 16, dtype=torch.float64))

    torch.testing.assert_close(hidden(chunk), hidden(8), rtol=1e-10, atol=1e-10)


def test_flops() -> None:
    projections = 512 * 2084 + 1024 * 512
    expected = 4 * (2 * projections + 2 * 1056 * 4 + 5 * 1024 * 16)
    assert Mamba2(Mamba2Config()).flops_per_step() == expected


def fake_kernel(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int, **options: Any) -> Any:
    """mamba_ssm's signature and state layout (P before N), on any device."""
    assert options["return_final_states"]
    outputs, state = ssd_chunked(x, dt, a, b, c, options["initial_states"].mT, chunk)
    return outputs, state.mT


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A mamba_ssm that can be imported, on a machine that says it has CUDA."""
    select_scan.cache_clear()
    names = ["mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.ssd_combined"]
    for name in ["selective_scan_cuda", *names]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    kernels = sys.modules[names[-1]]
    monkeypatch.setattr(kernels, "mamba_chunk_scan_combined", fake_kernel, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield kernels
    select_scan.cache_clear()


def check_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check = mamba2._agree
    monkeypatch.setattr(mamba2, "_agree", lambda fast, slow, _, sizes: check(fast, slow, torch.device("cpu"), sizes))


def test_kernel_is_chosen_when_it_proves_right(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    check_on_cpu(monkeypatch)
    assert select_scan(CUDA, *SIZES) is kernel_scan


def test_kernel_is_refused_when_it_is_wrong(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Tensor, **options: Any) -> Any:
        outputs, state = fake_kernel(*arguments, **options)  # type: ignore[arg-type]
        return outputs, state * 1.1

    check_on_cpu(monkeypatch)
    monkeypatch.setattr(installed, "mamba_chunk_scan_combined", wrong)
    with pytest.warns(RuntimeWarning, match="differ"):
        assert select_scan(CUDA, *SIZES) is ssd_chunked


def test_kernel_is_refused_when_it_fails(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Tensor, **options: Any) -> Any:
        raise RuntimeError("no Triton here")

    check_on_cpu(monkeypatch)
    monkeypatch.setattr(installed, "mamba_chunk_scan_combined", broken)
    with pytest.warns(RuntimeWarning, match="no Triton here"):
        assert select_scan(CUDA, *SIZES) is ssd_chunked


def test_kernel_is_checked_once(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []
    monkeypatch.setattr(mamba2, "_agree", lambda *_: checks.append(1) or True)
    assert [select_scan(CUDA, *SIZES) for _ in range(3)] == [kernel_scan] * 3
    assert len(checks) == 1


def test_no_kernel_without_its_extension(installed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "selective_scan_cuda", None)
    assert select_scan(CUDA, *SIZES) is ssd_chunked


@pytest.mark.parametrize(("device", "available"), [("cpu", True), ("cuda", False)])
def test_no_kernel_without_cuda(
    installed: ModuleType, monkeypatch: pytest.MonkeyPatch, device: str, available: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert select_scan(torch.device(device), *SIZES) is ssd_chunked


def test_importing_the_module_does_not_import_mamba_ssm() -> None:
    assert "mamba_ssm" not in sys.modules
