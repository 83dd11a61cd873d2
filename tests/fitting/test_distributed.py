"""Two ranks make the updates that one process makes of the same batch, and never differ from each other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from dreamenvs.data.samplers import CountSampler
from dreamenvs.fitting.distributed import ALONE, Ranks, open_ranks
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization
from dreamenvs.nn import distributed as hook
from dreamenvs.nn.distributed_batch_norm import BatchNorm2d
from dreamenvs.nn.distributions import free_bits, masked_mean
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, KLObjective
from tests.fitting.test_fit import equal, noise_episodes
from tests.small import CONFIGS, DISCRETE

ROOT = Path(__file__).resolve().parent.parent.parent
# An odd number of rows, so that the ranks have different shares.
TURNS = TwoStageOptimization(
    tokenizer=StageConfig(rows=5, length=2, updates=4, warmup=1, clip=0.5),
    dynamics=StageConfig(rows=5, length=7, updates=4, warmup=1, weight_decay=1e-2, clip=0.5),
)
JOINT = JointOptimization(rows=3, length=7, updates=6, warmup=1, clip=0.5, tokenizer_rate=1e-3, dynamics_rate=1e-3)
BITS = 0.1
FREE_BITS = 1.15
FAMILY_NAMES = ("STEPVQ", "CBT", "STORM", "REM", "DeltaIRIS")


def build(family: str, dropout: float = 0.0) -> Any:
    """A model in float64, whose losses are deterministic but for dropout: only rounding may tell ranks apart.

    Codes are revived all the same; the first rank draws which.
    """
    config = CONFIGS[family]
    sequence = replace(config.sequence, dropout=dropout)
    changes: dict[str, Any] = {"optimization": TURNS}
    if family == "STEPVQ":
        changes["prior"] = FactorizedConfig(objective=CrossEntropyObjective())
        changes["tokenizer"] = replace(config.tokenizer, revival=7.45)
    elif family == "CBT":
        # In the second update the free bits lie between the divergences that the ranks have by themselves.
        objective = KLObjective(free_bits=FREE_BITS, representation=0.5)
        changes = {"optimization": JOINT, "prior": replace(config.prior, objective=objective)}
    elif family == "STORM":
        # Learned positions begin anywhere, at random.
        changes, sequence = {"optimization": JOINT}, replace(sequence, positions="rotary")
    elif family == "DeltaIRIS":
        changes["tokenizer"] = replace(config.tokenizer, revival_updates=100)
    torch.manual_seed(7)
    model: Any = FAMILIES[family].build(replace(config, sequence=sequence, **changes), DISCRETE)
    if family == "DeltaIRIS":
        model.tokenizer.quantizer.usage[2:] = 0.0  # idle codes, to be revived
    if "tokenizer" not in {stage.name for stage in model.stages()}:
        model.tokenizer.train = partial(keep_most_likely, model.tokenizer)
    return model.double()


def keep_most_likely(tokenizer: nn.Module, mode: bool = True) -> nn.Module:
    """In the place of a categorical tokenizer's `train`: its parts may train, but it does not draw tokens."""
    nn.Module.train(tokenizer, mode)
    tokenizer.training = False
    return tokenizer


def outcome(family: str, ranks: Ranks = ALONE, dropout: float = 0.0) -> dict[str, Tensor]:
    """What came of a fit: the metrics of all updates, and the weights and codes at the end of each stage."""
    model = build(family, dropout)
    told = {}
    for metrics in Fit(model, noise_episodes(), seed=3, sampler=CountSampler(), ranks=ranks).run():
        numbers = [metrics.loss, metrics.gradient_norm, metrics.frames, *metrics.parts.values()]
        told[f"{metrics.stage}.{metrics.update}"] = torch.tensor(numbers, dtype=torch.float64)
        if metrics.update == metrics.updates:
            for name, value in model.state_dict().items():
                told[f"{metrics.stage}.{name}"] = value.clone(memory_format=torch.contiguous_format)
    return told


def main(directory: Path) -> None:
    """One rank: fits every family, and writes what came of it."""
    torch.set_num_threads(1)
    with open_ranks(timeout=60) as ranks:
        for family in FAMILY_NAMES:
            safetensors.torch.save_file(outcome(family, ranks), directory / f"{family}-{ranks.number}.safetensors")
        dropped = outcome("CBT", ranks, dropout=0.5)
        safetensors.torch.save_file(dropped, directory / f"dropout-{ranks.number}.safetensors")
        safetensors.torch.save_file(primitives(ranks), directory / f"primitives-{ranks.number}.safetensors")


def primitives(ranks: Ranks) -> dict[str, Tensor]:
    """The sums below the losses, on unequal shares of one batch, one of which is empty."""
    torch.manual_seed(ranks.number)
    empty, own = (batch()[:end] if ranks.first else batch()[end:] for end in (5, 3))
    with ranks.together():
        told = {"gathered": hook.gather(own), "chosen": hook.choose(own, 30), "mean": hook.mean(own)}
        told |= {"gathered_empty": hook.gather(empty), "mean_empty": hook.mean(empty)} | losses(own, ranks)
    told["alone"] = hook.mean(torch.full((2,), float(ranks.number)))  # outside, nobody else is asked
    return told | {"flags": torch.tensor(ranks.any(False, ranks.first, True))}


def losses(own: Tensor, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Losses of this rank's share of a batch, their gradients, and statistics that they move."""
    weights, norm = nn.Parameter(torch.ones(4, dtype=torch.float64)), BatchNorm2d(2).double()
    # The bits lie between what the ranks have by themselves.
    free = free_bits(masked_mean((own * weights).sum(1), own[:, 0] > 0), BITS)
    normal = norm(own.view(-1, 2, 2, 1) * weights.view(2, 2, 1))
    uneven = torch.arange(1, 5, dtype=torch.float64).view(2, 2, 1)
    total = free.square() + hook.mean((normal * uneven).exp())
    total.backward()  # type: ignore[no-untyped-call]
    parameters = {"weights": weights} | dict(norm.named_parameters())
    ranks.average_gradients(parameters.values())
    gradients = {f"gradient.{name}": each.grad for name, each in parameters.items() if each.grad is not None}
    return {"free": free.detach(), "total": total.detach()} | gradients | dict(norm.named_buffers())


def batch() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Tensor]]]:
    """What each of two ranks ended with."""
    directory = tmp_path_factory.mktemp("ranks")
    code = f"from pathlib import Path; from tests.fitting.test_distributed import main; main(Path({str(directory)!r}))"
    (directory / "rank.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, str(directory / "rank.py")], env=environment, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    names = (*FAMILY_NAMES, "dropout", "primitives")
    load = safetensors.torch.load_file
    return {name: [load(directory / f"{name}-{rank}.safetensors") for rank in (0, 1)] for name in names}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_two_ranks_are_one_process(family: str, results: dict[str, list[dict[str, Tensor]]]) -> None:
    expected = outcome(family)
    found = results[family][0]
    assert found.keys() == expected.keys()
    # Rounding alone: reward and termination are computed in float32.
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value.double(), rtol=1e-6, atol=1e-7), name
    start, last = build(family).state_dict(), "world_model" if family in ("CBT", "STORM") else "dynamics"
    moved = [name for name, value in start.items() if not torch.equal(value, expected[f"{last}.{name}"])]
    assert len(moved) > 0.9 * len(start)


@pytest.mark.parametrize("name", [*FAMILY_NAMES, "dropout"])
def test_ranks_never_differ(name: str, results: dict[str, list[dict[str, Tensor]]]) -> None:
    assert equal(*results[name])


def test_ranks_draw_numbers_of_their_own(results: dict[str, list[dict[str, Tensor]]]) -> None:
    """With dropout, one process draws other numbers for the rows that another rank has."""
    alone = outcome("CBT", dropout=0.5)["world_model.1"]
    assert not torch.allclose(alone, results["dropout"][0]["world_model.1"], rtol=1e-6)


def test_sums_are_over_all_ranks(results: dict[str, list[dict[str, Tensor]]]) -> None:
    whole, (one, other) = batch(), results["primitives"]
    for rank in (one, other):
        for share in ("", "_empty"):
            assert torch.equal(rank[f"gathered{share}"], whole)
            assert torch.allclose(rank[f"mean{share}"], whole.mean(), rtol=1e-12)
        assert rank["flags"].tolist() == [False, True, True]
    assert torch.equal(one["chosen"], other["chosen"])
    assert one["chosen"].unique(dim=0, return_counts=True)[1].tolist() == [6] * 5  # none again before all were
    assert hook.choose(whole, 0).shape == (0, 4)
    assert all((whole == chosen).all(1).any() for chosen in one["chosen"])
    assert (one["alone"].item(), other["alone"].item()) == (0.0, 1.0)


def test_losses_and_norms_are_those_of_the_whole_batch(results: dict[str, list[dict[str, Tensor]]]) -> None:
    """Free bits and BatchNorm see the whole batch: a mean of what the ranks would make of it is another one."""
    expected = losses(batch())
    assert len(expected) == 8
    for rank in results["primitives"]:
        for name, value in expected.items():
            assert torch.allclose(rank[name].double(), value.double(), rtol=1e-12), name
    shares = [losses(batch()[rows])["free"].item() for rows in (slice(0, 3), slice(3, 5))]
    assert min(shares) == BITS < expected["free"].item() < max(shares)


def test_batch_norm_of_a_process_alone_is_torchs() -> None:
    inputs, ours, theirs = batch().view(-1, 2, 2, 1), BatchNorm2d(2).double(), nn.BatchNorm2d(2).double()
    assert torch.equal(ours(inputs), theirs(inputs))
    assert equal(ours.state_dict(), theirs.state_dict())
    assert torch.equal(ours.eval()(inputs), theirs.eval()(inputs))


def test_every_row_is_one_ranks() -> None:
    for rows, count in ((8, 2), (5, 3), (3, 3), (7, 4)):
        shares = [list(range(rows))[Ranks(number, count).rows(rows)] for number in range(count)]
        assert [row for share in shares for row in share] == list(range(rows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert min(map(len, shares)) >= 1


def test_more_ranks_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 3 rows is too small for 4 ranks: start 3 or fewer"):
        Fit(build("CBT"), noise_episodes(), ranks=Ranks(1, 4))
