"""The optimisation loop."""

from __future__ import annotations

from itertools import pairwise, repeat

import pytest
import torch
from torch import nn

from dreamenvs.fitting.loop import NonFiniteLossError, optimize
from dreamenvs.protocols import ParameterGroup
from dreamenvs.types import LossTerms


def squared_distance(parameter: nn.Parameter, target: float) -> LossTerms:
    error = (parameter - target).square().sum()
    return LossTerms(error, {"error": error.detach()})


def test_it_minimises_and_tells() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    group = ParameterGroup(parameters=(parameter,), learning_rate=0.1)
    steps = optimize("toy", lambda t: squared_distance(parameter, t), (group,), repeat(3.0, 300), clip=10.0, warmup=1)
    metrics = list(steps)
    assert [metrics[0].update, metrics[-1].update] == [0, 299]
    assert metrics[0].loss == metrics[0].parts["error"] == 18.0
    assert torch.allclose(parameter.detach(), torch.full((2,), 3.0), atol=0.05)


def test_groups_have_their_own_learning_rates() -> None:
    slow, fast = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = tuple(
        ParameterGroup(parameters=(parameter,), learning_rate=rate) for parameter, rate in [(slow, 0.01), (fast, 0.1)]
    )

    def loss(target: float) -> LossTerms:
        return LossTerms(squared_distance(slow, target).total + squared_distance(fast, target).total, {})

    list(optimize("toy", loss, groups, repeat(9.0, 3), clip=1e9, warmup=1))
    assert fast.item() / slow.item() == pytest.approx(10, rel=0.01)


def test_warmup_and_decay_shape_the_steps() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    group = ParameterGroup(parameters=(parameter,), learning_rate=0.1)
    places = [0.0]
    steps = optimize(
        "toy", lambda t: squared_distance(parameter, t), (group,), repeat(1e6, 40), clip=1.0, warmup=10, updates=40
    )
    for _ in steps:
        places.append(parameter.item())
    sizes = [after - before for before, after in pairwise(places)]
    assert sizes[0] == pytest.approx(0.01, rel=0.05)
    assert max(sizes) == pytest.approx(0.1, rel=0.15)
    assert sizes[-1] == pytest.approx(0.01, rel=0.2)


def test_a_loss_that_is_not_finite_stops_before_it_does_harm() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    group = ParameterGroup(parameters=(parameter,), learning_rate=0.1)
    steps = optimize("toy", lambda t: squared_distance(parameter, t), (group,), [1.0, float("nan")], clip=1.0, warmup=1)
    next(steps)
    before = parameter.item()
    with pytest.raises(NonFiniteLossError, match=r"stage 'toy' is nan at update 1: error nan"):
        next(steps)
    assert parameter.item() == before
