"""Two ranks make the updates that one process makes of the same batch, and never differ from each other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from dreamenvs.data.samplers import CountSampler
from dreamenvs.fitting.fit import Fit, Metrics
from dreamenvs.fitting.parallel import ALONE, Ranks, open_ranks
from dreamenvs.models import FAMILIES
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.turns import TurnConfig, TurnsOptimization
from dreamenvs.nn import ranks as hook
from dreamenvs.nn.distributions import masked_mean
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, KLObjective
from tests.fitting.test_fit import equal, noise_episodes
from tests.small import CONFIGS, DISCRETE

ROOT = Path(__file__).resolve().parent.parent.parent
# An odd number of rows, so that the ranks have different shares.
TURNS = TurnsOptimization(
    tokenizer=TurnConfig(rows=5, length=2, updates=4, warmup=1, clip=0.5),
    dynamics=TurnConfig(rows=5, length=7, updates=4, warmup=1, weight_decay=1e-2, clip=0.5),
)
JOINT = JointOptimization(rows=3, length=7, updates=6, warmup=1, clip=0.5, tokenizer_rate=1e-3, dynamics_rate=1e-3)
FAMILY_NAMES = ("STEPVQ", "CBT", "REM", "DeltaIRIS")


def build(family: str, dropout: float = 0.0) -> Any:
    """A model in float64, whose losses are deterministic but for dropout: only rounding may tell ranks apart.

    Codes are revived all the same; the first rank draws which.
    """
    config = CONFIGS[family]
    sequence = replace(config.sequence, dropout=dropout)
    changes: dict[str, Any] = {"optimization": TURNS}
    if family == "STEPVQ":
        changes["prior"] = FactorizedConfig(objective=CrossEntropyObjective())
        changes["tokenizer"] = replace(config.tokenizer, revival=1.0)
    elif family == "CBT":
        # The free bits are between the divergences of the ranks in some updates, and bind one term and not the other.
        objective = KLObjective(free_bits=1.6, representation=0.5)
        changes = {"optimization": JOINT, "prior": replace(config.prior, objective=objective)}
    elif family == "DeltaIRIS":
        changes["tokenizer"] = replace(config.tokenizer, revival_updates=100)
    torch.manual_seed(7)
    model: Any = FAMILIES[family].build(replace(config, sequence=sequence, **changes), DISCRETE)
    if family == "CBT":
        model.tokenizer.eval()
        model.tokenizer.train = lambda mode=True: model.tokenizer  # its tokens are then the most likely ones
    return model.double()


def fit(family: str, ranks: Ranks = ALONE, dropout: float = 0.0) -> tuple[Fit, list[Metrics]]:
    work = Fit(build(family, dropout), noise_episodes(), seed=3, sampler=CountSampler(), ranks=ranks)
    return work, list(work.run())


def outcome(work: Fit, metrics: list[Metrics]) -> dict[str, Tensor]:
    """Everything that ranks may not differ in, as tensors."""
    state = {f"weights.{name}": value for name, value in work.model.state_dict().items()}  # type: ignore[attr-defined]
    numbers = [[each.loss, each.gradient_norm, each.learning_rate, *each.parts.values()] for each in metrics]
    told = {f"metrics.{number}": torch.tensor(values, dtype=torch.float64) for number, values in enumerate(numbers)}
    return state | told | {"frames": torch.tensor([each.frames for each in metrics])}


def main(directory: Path) -> None:
    """One rank: fits every family, and writes what came of it."""
    torch.set_num_threads(1)
    with open_ranks(timeout=60) as ranks:
        for family in FAMILY_NAMES:
            results = outcome(*fit(family, ranks))
            safetensors.torch.save_file(results, directory / f"{family}-{ranks.number}.safetensors")
        work, metrics = fit("CBT", ranks, dropout=0.5)
        safetensors.torch.save_file(outcome(work, metrics), directory / f"dropout-{ranks.number}.safetensors")
        safetensors.torch.save_file(primitives(ranks), directory / f"primitives-{ranks.number}.safetensors")


def primitives(ranks: Ranks) -> dict[str, Tensor]:
    """The sums below the losses, on unequal shares of one batch, one of which is empty."""
    torch.manual_seed(ranks.number)
    own = batch()[slice(0, 5) if ranks.first else slice(5, 5)]
    weights = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with ranks.together():
        result = {"gathered": hook.gather(own), "chosen": hook.choose(own, 30), "mean": hook.mean(own)}
        loss = masked_mean((own * weights).sum(1), own[:, 0] > 0).clamp(min=-10).exp()
        loss.backward()  # type: ignore[no-untyped-call]
    alone = hook.mean(torch.full((2,), float(ranks.number)))  # outside, nobody else is asked
    weights.grad = None if weights.grad is None else weights.grad.clone()
    ranks.average_gradients([weights])  # type: ignore[list-item]
    assert weights.grad is not None
    flags = torch.tensor(ranks.any(False, ranks.first, True))
    return result | {"loss": loss.detach(), "gradient": weights.grad, "alone": alone, "flags": flags}


def batch() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Tensor]]]:
    """What each of two ranks ended with."""
    directory = tmp_path_factory.mktemp("ranks")
    code = f"from pathlib import Path; from tests.fitting.test_parallel import main; main(Path({str(directory)!r}))"
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
    expected = outcome(*fit(family))
    found = results[family][0]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value.double(), rtol=1e-9, atol=1e-9), name
    start = build(family).state_dict()
    moved = [name for name, value in start.items() if not torch.equal(value, expected[f"weights.{name}"])]
    assert len(moved) > 0.9 * len(start)


@pytest.mark.parametrize("name", [*FAMILY_NAMES, "dropout"])
def test_ranks_never_differ(name: str, results: dict[str, list[dict[str, Tensor]]]) -> None:
    assert equal(*results[name])


def test_ranks_draw_numbers_of_their_own(results: dict[str, list[dict[str, Tensor]]]) -> None:
    """With dropout, one process draws other numbers for the rows that another rank has."""
    alone = outcome(*fit("CBT", dropout=0.5))
    assert not torch.allclose(alone["metrics.0"], results["dropout"][0]["metrics.0"], rtol=1e-6)


def test_sums_are_over_all_ranks(results: dict[str, list[dict[str, Tensor]]]) -> None:
    whole, (one, other) = batch(), results["primitives"]
    weights = torch.ones(4, dtype=torch.float64, requires_grad=True)
    loss = masked_mean((whole * weights).sum(1), whole[:, 0] > 0).exp()
    loss.backward()  # type: ignore[no-untyped-call]
    for rank in (one, other):
        assert torch.equal(rank["gathered"], whole)
        assert torch.allclose(rank["mean"], whole.mean(), rtol=1e-12)
        assert torch.allclose(rank["loss"], loss, rtol=1e-12)
        assert torch.allclose(rank["gradient"], weights.grad, rtol=1e-12)
        assert rank["flags"].tolist() == [False, True, True]
    assert torch.equal(one["chosen"], other["chosen"])
    assert len(one["chosen"].unique(dim=0)) > 3
    assert all((whole == chosen).all(1).any() for chosen in one["chosen"])
    assert (one["alone"].item(), other["alone"].item()) == (0.0, 1.0)


def test_every_row_is_one_ranks() -> None:
    for rows, count in ((8, 2), (5, 3), (3, 3), (7, 4)):
        shares = [list(range(rows))[Ranks(number, count).rows(rows)] for number in range(count)]
        assert sum(shares, []) == list(range(rows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert min(map(len, shares)) >= 1


def test_more_ranks_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 3 rows is too small for 4 ranks: start 3 or fewer"):
        Fit(build("CBT"), noise_episodes(), ranks=Ranks(1, 4))
