"""What the command line changes in a preset: the parts that a paper compares, updates and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dreamenvs.models.delta_iris import DeltaIRISConfig
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.frame_token import NoFrameTokenConfig
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.two_stage import DynamicsOptimization, TwoStageOptimization
from dreamenvs.presets.world_models import AT_ONCE
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig, KLObjective
from dreamenvs.tokenizers.categorical import CategoricalConfig
from dreamenvs.tokenizers.vq import VQConfig

VARIANTS = ("kl", "ce", "no-i-tokens")


def vary(config: Any, variant: str | None) -> Any:
    """The config with one part as a paper's comparison has it.

    `kl` and `ce` fit a small STEP-VQ or a baseline all at once, as the paper does, and differ in the objective alone:
    with the tokenizer fitted first there is no posterior for the KL to move. `no-i-tokens` is Δ-IRIS without images.
    """
    if variant is None:
        return config
    if variant not in VARIANTS:
        raise SystemExit(f"there are the variants {', '.join(VARIANTS)}, not {variant!r}")
    if variant == "no-i-tokens":
        if not isinstance(config, DeltaIRISConfig):
            raise SystemExit("the variant no-i-tokens is for deltairis: no other family has I-tokens")
        return replace(config, frame_token=NoFrameTokenConfig())
    if not isinstance(config, StepVQConfig):
        raise SystemExit(f"the variant {variant} is for STEP-VQ and its baselines")
    # Small worlds have little news in a frame: DRAMA's nat of free bits would leave it to chance.
    objective = KLObjective(free_bits=0.1) if variant == "kl" else CrossEntropyObjective()
    given: Any = config.prior
    prior = replace(given, objective=objective)
    if isinstance(config.tokenizer, CategoricalConfig) and isinstance(prior, FactorizedConfig):
        prior = replace(prior, unimix=0.01)  # as the baselines have it, in whose posterior it is too
    if not isinstance(config.optimization, TwoStageOptimization):
        return replace(config, prior=prior)
    tokenizer = config.tokenizer
    if isinstance(tokenizer, VQConfig):
        # The paper's. Codes that restart take over what others stood for, which dynamics that learn beside them would
        # have to follow: with the settings of `cells`, 450 updates left them at a token accuracy below 0.01, and with
        # these two 250 updates gave 0.99. Which of the two matters was not tried.
        tokenizer = replace(tokenizer, revival=0.0, decay=0.99)
    return replace(config, tokenizer=tokenizer, prior=prior, optimization=AT_ONCE)


def with_updates(config: Any, updates: Mapping[str, int | None], share: float = 1.0) -> Any:
    """The config with so many updates of its parts, and a share of the preset's where none are given."""
    if share <= 0:
        raise SystemExit(f"--update-share is {share}; it is above 0")
    chosen = config.optimization
    parts: tuple[str, ...] = ("joint",)
    if isinstance(chosen, TwoStageOptimization):
        parts = ("tokenizer", "dynamics")
    elif isinstance(chosen, DynamicsOptimization):
        parts = ("dynamics",)
    given = {name: count for name, count in updates.items() if count is not None}
    for name in given:
        if name not in parts:
            options = " and ".join(f"--{each}-updates" for each in parts)
            raise SystemExit(f"--{name}-updates: what is asked for is fitted with {options}")
    if isinstance(chosen, JointOptimization):
        return replace(config, optimization=_shortened(chosen, given.get("joint"), share))
    turns = {name: _shortened(getattr(chosen, name), given.get(name), share) for name in parts}
    return replace(config, optimization=replace(chosen, **turns))


def with_batches(config: Any, rows: int | None, length: int | None) -> Any:
    """The config with batches of so many segments, and of so many steps, wherever its dynamics learn."""
    sizes = {name: size for name, size in (("rows", rows), ("length", length)) if size is not None}
    for name, size in sizes.items():
        if size < 1:
            raise SystemExit(f"--batch-{name} is {size}; it is at least 1")
    chosen = config.optimization
    if isinstance(chosen, JointOptimization):
        return replace(config, optimization=replace(chosen, **sizes))
    return replace(config, optimization=replace(chosen, dynamics=replace(chosen.dynamics, **sizes)))


def _shortened(part: Any, updates: int | None, share: float) -> Any:
    return replace(part, updates=max(1, round(share * part.updates)) if updates is None else updates)
