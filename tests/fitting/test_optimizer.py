"""The optimiser of a stage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from dreamenvs.fitting.optimizer import NonFiniteLossError, Updater, learning_rate_share
from dreamenvs.protocols import ParameterGroup, Stage
from dreamenvs.types import LossTerms


def stage(loss: Any, rates: dict[nn.Parameter, float], **settings: Any) -> Stage:
    groups = tuple(ParameterGroup(parameters=(each,), learning_rate=rate) for each, rate in rates.items())
    shape: dict[str, Any] = {"clip": 1e9, "rows": 1, "length": 1, "updates": 100, **settings}
    return Stage(name="toy", loss=loss, groups=groups, **shape)


def squared_distance(parameter: nn.Parameter, target: Any) -> LossTerms:
    error = (parameter - target).square().sum()
    return LossTerms(error, {"error": error.detach()})


def test_it_minimises_and_tells() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    updater = Updater(stage(lambda target: squared_distance(parameter, target), {parameter: 0.1}))
    measured = [updater(3.0, update) for update in range(300)]  # type: ignore[arg-type]
    assert measured[0].loss == measured[0].parts["error"] == 18.0
    assert measured[0].gradient_norm == pytest.approx(72**0.5)
    assert measured[0].learning_rate == 0.1
    assert torch.allclose(parameter.detach(), torch.full((2,), 3.0), atol=0.05)


def test_groups_have_their_own_learning_rates() -> None:
    slow, fast = (nn.Parameter(torch.zeros(1)) for _ in range(2))

    def loss(target: Any) -> LossTerms:
        return LossTerms(squared_distance(slow, target).total + squared_distance(fast, target).total, {})

    updater = Updater(stage(loss, {slow: 0.01, fast: 0.1}))
    for update in range(3):
        updater(9.0, update)  # type: ignore[arg-type]
    assert fast.item() / slow.item() == pytest.approx(10, rel=0.01)


def test_warmup_and_decay_shape_the_learning_rate() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    falling = stage(None, {parameter: 0.1}, warmup=10, decay=0.1, updates=40)
    shares = [learning_rate_share(falling, update) for update in range(40)]
    assert shares[0] == pytest.approx(0.1, rel=0.01)
    assert max(shares) > 0.85
    assert shares[-1] == pytest.approx(0.1, rel=0.02)
    assert all(later < earlier for earlier, later in pairwise(shares[10:]))
    level = stage(None, {parameter: 0.1}, warmup=4, updates=40)
    assert [learning_rate_share(level, update) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_before_it_does_harm(what: str) -> None:
    parameter, buffer = nn.Parameter(torch.zeros(1)), torch.zeros(1)

    def loss(target: Any) -> LossTerms:
        buffer.add_(target)
        error = (parameter - target).square().sum()
        if target < 0:
            # The square root of zero is finite; its gradient is not.
            error = error * float("nan") if what == "loss" else (parameter - parameter.detach()).sqrt().sum()
        return LossTerms(error, {"error": error.detach()})

    updater = Updater(stage(loss, {parameter: 0.1}), (buffer,))
    updater(1.0, 0)  # type: ignore[arg-type]
    before = parameter.item(), buffer.item(), updater.export()["0.exp_avg"].item()
    with pytest.raises(NonFiniteLossError, match=rf"the {what} of stage 'toy' is (nan|inf) at update 1 \(error "):
        updater(-1.0, 1)  # type: ignore[arg-type]
    assert (parameter.item(), buffer.item(), updater.export()["0.exp_avg"].item()) == before


def test_moments_of_another_stage_are_refused() -> None:
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    updater = Updater(stage(lambda target: squared_distance(one, target), {one: 0.1}))
    updater(1.0, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"0\.exp_avg has the shape \(2,\)"):
        Updater(stage(None, {other: 0.1})).restore(updater.export())
    with pytest.raises(ValueError, match=r"'1\.step'"):
        updater.restore({"1.step": torch.tensor(1.0)})
