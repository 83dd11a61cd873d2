"""Optimisation in two stages: the tokenizer first, then the dynamics on the tokens of the frozen tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from dreamenvs.protocols import ParameterGroup, Stage
from dreamenvs.types import LossTerms, Segment


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """How one part of a model is optimised in its stage."""

    rows: int
    length: int
    updates: int
    rate: float = 1e-3
    weight_decay: float = 0.0
    clip: float = 100.0
    warmup: int = 100
    decay: float = 0.1
    """The share of the learning rate that is left at the end of its cosine."""


@dataclass(frozen=True, kw_only=True)
class TwoStageOptimization:
    """The tokenizer first, on single frames; then the dynamics, on the tokens of a tokenizer that stays as it is."""

    tokenizer: StageConfig = field(default_factory=lambda: StageConfig(rows=32, length=1, updates=5000))
    dynamics: StageConfig = field(
        default_factory=lambda: StageConfig(rows=32, length=64, updates=3000, weight_decay=1e-3)
    )
    stale: float = 0.0
    """Of frame-level models: the share of frames that the dynamics see with about half of their tokens as they were a
    step before. Such are the errors of a dream, where a small thing, once lost, is lost for good, unless the dynamics
    have learned to remember it: what is to be predicted stays as it was."""

    def __post_init__(self) -> None:
        check_share("stale", self.stale)

    def refuse_stale(self) -> None:
        """For families that do not know it: a choice that does nothing would mislead."""
        if self.stale:
            raise ValueError(f"stale={self.stale} is for frame-level models; leave it at 0")


@dataclass(frozen=True, kw_only=True)
class DynamicsOptimization:
    """The dynamics alone, on the tokens of a tokenizer that is not trained."""

    dynamics: StageConfig = field(default_factory=lambda: StageConfig(rows=16, length=16, updates=3000, rate=3e-3))
    stale: float = 0.0
    """As in `TwoStageOptimization`."""

    def __post_init__(self) -> None:
        check_share("stale", self.stale)


def check_share(name: str, value: float) -> None:
    """Raise `ValueError` unless `value` is a share."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a share from 0 to 1, not {value}")


def plain_group(parameters: Iterable[nn.Parameter], config: StageConfig) -> tuple[ParameterGroup, ...]:
    """One group, in which everything decays alike."""
    return (ParameterGroup(parameters=tuple(parameters), learning_rate=config.rate, weight_decay=config.weight_decay),)


def decaying_groups(
    module: nn.Module, parameters: Iterable[nn.Parameter], config: StageConfig
) -> tuple[ParameterGroup, ...]:
    """Two groups, as for GPTs: weights of linear layers decay, while biases, norms, convolutions and tables do not."""
    linear = {id(part.weight) for part in module.modules() if isinstance(part, nn.Linear)}
    kinds: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        kinds[id(parameter) in linear].append(parameter)
    return tuple(
        ParameterGroup(
            parameters=tuple(kind), learning_rate=config.rate, weight_decay=config.weight_decay if decays else 0.0
        )
        for decays, kind in kinds.items()
        if kind
    )


def build_stage(
    name: str,
    config: StageConfig,
    loss: Callable[[Segment], LossTerms],
    groups: tuple[ParameterGroup, ...],
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Stage:
    """The stage of one part."""
    return Stage(
        name=name,
        loss=loss,
        groups=groups,
        clip=config.clip,
        rows=config.rows,
        length=config.length,
        updates=config.updates,
        warmup=config.warmup,
        decay=config.decay,
        prepare=prepare,
    )
