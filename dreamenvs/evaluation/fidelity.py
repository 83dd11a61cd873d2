"""Fidelity: how far an imagined future stays like the real one, given the same start and the same actions.

Two kinds of figures: open loop, by the number of imagined steps, from contexts drawn uniformly; and one step ahead,
over every step of whole episodes. Each stands beside a copy of the last real frame or event, and what is most common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.detection import Events
from dreamenvs.evaluation.fidelity_tables import (
    CodebookUse,
    EventFigures,
    PixelFigures,
    TokenFigures,
    codebook_use,
    event_figures,
    event_scale,
    frequencies,
    one_step_tokens,
    pixel_figures,
    token_figures,
)
from dreamenvs.evaluation.one_step import OneStep, predict_steps
from dreamenvs.evaluation.open_loop import OpenLoop, draw_starts, imagine
from dreamenvs.evaluation.results import Progress, text_table, to_json
from dreamenvs.evaluation.reward_error import RewardErrors, reward_errors
from dreamenvs.protocols import WorldModel


class Setting(NamedTuple):
    """What the figures were measured on."""

    episodes: int
    steps: int
    """Real steps that count one step ahead: all but the first `context` - 1 of each episode."""
    rewards: int
    """How many of these steps have a reward."""
    terminations: int
    starts: int
    """Dreams in the open loop."""
    context: int
    """Real frames that are seen before the first imagined one."""
    warmup: int
    """Real frames that are seen, where there are so many, before a step is predicted one step ahead."""
    seed: int
    """Of the dreams."""


class Fidelity(NamedTuple):
    """Figures over held-out episodes; a list has one entry for each imagined step."""

    psnr: float
    """Of imagined frames, averaged over the steps, in dB."""
    setting: Setting
    pixels: list[PixelFigures]
    tokens: list[TokenFigures]
    events: list[EventFigures]
    all_events: EventFigures
    """Over all imagined steps together."""
    one_step_tokens: TokenFigures
    one_step_events: EventFigures
    codebook: CodebookUse
    reward_errors: list[RewardErrors]
    one_step_reward_errors: RewardErrors

    @property
    def psnr_by_step(self) -> list[float]:
        return [figures.psnr for figures in self.pixels]

    @property
    def copy_psnr_by_step(self) -> list[float]:
        return [figures.copy_psnr for figures in self.pixels]

    def to_json(self) -> dict[str, Any]:
        """For a card or a file: tables of flat rows, and None for what cannot be measured."""
        return {
            "psnr": to_json(self.psnr),
            "setting": to_json(self.setting),
            "one_step": {name: to_json(dict(row)) for name, row in self._one_step().items()},
            "pixels": _by_horizon(to_json(self.pixels)),
            "tokens": _by_horizon(to_json(self.tokens)),
            "rewards": _by_horizon([_flat(step.rewards) for step in self.events], _flat(self.all_events.rewards)),
            "reward_errors": _by_horizon(to_json(self.reward_errors)),
            "terminations": _by_horizon(
                [_flat(step.terminations) for step in self.events], _flat(self.all_events.terminations)
            ),
            "codebook": to_json(self.codebook),
        }

    def table(self) -> str:
        """The figures for people."""
        columns = ["step", "frames", "PSNR", "copy", "PSNR of changes", "copy", "tokens", "copy", "perplexity"]
        rows: list[list[Any]] = [
            [step, *pixels, *tokens[:2], tokens.perplexity, events.rewards.model.f1, events.terminations.model.f1]
            for step, (pixels, tokens, events) in enumerate(zip(self.pixels, self.tokens, self.events, strict=True), 1)
        ]
        by_horizon = text_table([*columns, "reward F1", "end F1"], rows)
        one_step = self._one_step()
        names = [name.replace("_", " ") for name in one_step["model"]]
        ahead = text_table(
            ["one step ahead", *names], [[name, *(value for value in row.values())] for name, row in one_step.items()]
        )
        return f"{by_horizon}\n\n{ahead}\n\n{self._summary()}"

    def _one_step(self) -> dict[str, dict[str, float]]:
        """The model and the baselines, each with the same figures."""
        tokens, (rewards, terminations) = self.one_step_tokens, self.one_step_events
        errors = self.one_step_reward_errors
        return {
            name: {"token_accuracy": accuracy, "perplexity": perplexity, "reward_error": error}
            | {f"reward_{score}": value for score, value in getattr(rewards, name)._asdict().items()}
            | {f"termination_{score}": value for score, value in getattr(terminations, name)._asdict().items()}
            for name, accuracy, perplexity, error in (
                ("model", tokens.accuracy, tokens.perplexity, errors.model),
                ("copy", tokens.copy_accuracy, float("nan"), errors.copy),
                ("majority", tokens.majority_accuracy, tokens.marginal_perplexity, errors.mean),
            )
        }

    def _summary(self) -> str:
        setting, codebook = self.setting, self.codebook
        return (
            f"{setting.steps:,} steps of {setting.episodes} held-out episodes, {setting.rewards} with a reward and "
            f"{setting.terminations} that end; open loop from {setting.starts} contexts of {setting.context} frames; "
            f"{codebook.used:.0%} of {codebook.codes} codes used, with perplexity {codebook.perplexity:.3g}"
        )


def measure(
    model: WorldModel[Any],
    episodes: Sequence[Episode],
    rng: np.random.Generator,
    *,
    starts: int = 256,
    context: int = 4,
    horizon: int = 15,
    warmup: int = 16,
    rows: int = 64,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Fidelity:
    """Compare a model with held-out episodes, open loop and one step ahead.

    Args:
        model: In evaluation mode, on `device`.
        episodes: Real episodes that the model was not fitted on.
        rng: Chooses the starts and seeds the dreams.
        starts: How many open-loop dreams.
        context: Real frames before a dream; steps that have seen fewer do not count one step ahead either.
        horizon: Imagined steps, fewer where no episode is that long.
        warmup: Real frames before a piece of an episode that is predicted one step ahead.
        rows: How many are computed side by side; memory grows with it, and what is measured stays the same.
        device: Where the model runs.
        progress: Called with the number of steps and dreams that are done, and of all there are.
    """
    numbers = {"starts": starts, "context": context, "horizon": horizon, "warmup": warmup, "rows": rows}
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    lengths = [len(episode) for episode in episodes]
    seed = int(rng.integers(2**31))
    places = draw_starts(lengths, starts, context, horizon, rng)
    horizon = max(place.end - place.counted for place in places)
    done, total = 0, sum(max(length - context + 1, 0) for length in lengths) + starts

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    shared: dict[str, Any] = {"context": context, "rows": rows, "device": device, "progress": advance}
    single = predict_steps(model, episodes, warmup=warmup, **shared)
    marginal = frequencies(single.histogram)
    dreamed = imagine(model, episodes, places, horizon=horizon, marginal=marginal, seed=seed, **shared)
    setting = Setting(
        episodes=sum(length >= context for length in lengths),
        steps=len(single.rewards),
        rewards=int(np.count_nonzero(single.real_rewards)),
        terminations=int(single.real_terminated.sum()),
        starts=starts,
        context=context,
        warmup=warmup,
        seed=seed,
    )
    return _summarize(single, dreamed, setting)


def _summarize(single: OneStep, dreamed: OpenLoop, setting: Setting) -> Fidelity:
    scale, mean = event_scale(single), float(single.real_rewards.mean(dtype=np.float64))
    columns = [OpenLoop(*(field[:, step] for field in dreamed)) for step in range(dreamed.counted.shape[1])]
    pixels = [pixel_figures(column) for column in columns]
    psnr = [figures.psnr for figures in pixels if figures.frames]
    return Fidelity(
        psnr=sum(psnr) / len(psnr) if psnr else float("nan"),
        setting=setting,
        pixels=pixels,
        tokens=[token_figures(column) for column in columns],
        events=[event_figures(column, column.counted > 0, scale) for column in columns],
        all_events=event_figures(dreamed, dreamed.counted > 0, scale),
        one_step_tokens=one_step_tokens(single, frequencies(single.histogram)),
        one_step_events=event_figures(single, np.ones(len(single.rewards), bool), scale),
        codebook=codebook_use(single.histogram),
        reward_errors=[reward_errors(column, column.counted > 0, mean) for column in columns],
        one_step_reward_errors=reward_errors(single, np.ones(len(single.rewards), bool), mean),
    )


def _flat(events: Events) -> dict[str, Any]:
    """One row of a table: the model's scores by their names, the baselines' with a prefix."""
    row: dict[str, Any] = {"steps": events.steps, "positives": events.positives, **to_json(events.model)}
    for name, detection in (("copy", events.copy), ("majority", events.majority)):
        row |= {f"{name}_{score}": value for score, value in to_json(detection).items()}
    return row


def _by_horizon(rows: list[dict[str, Any]], overall: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    numbered: list[dict[str, Any]] = [{"horizon": number} | row for number, row in enumerate(rows, 1)]
    return numbered if overall is None else [*numbered, {"horizon": "all"} | overall]
