"""From episodes to a dream: what is held out, the fit before its first update, and the checkpoint after its last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dreamenvs.checkpoints.library import new_name
from dreamenvs.checkpoints.stored_tensors import stored_weights
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.data.samplers import CountSampler, FrequencySampler, Sampler, UniformSampler
from dreamenvs.data.segments import episode_lengths, start_contexts
from dreamenvs.evaluation.fidelity import Fidelity, measure
from dreamenvs.evaluation.results import Progress
from dreamenvs.fitting.distributed import ALONE, Ranks
from dreamenvs.fitting.fit import Fit
from dreamenvs.models import FAMILIES
from dreamenvs.types import Scalar, WorldSpec

SAMPLERS: dict[str, type[Sampler]] = {"uniform": UniformSampler, "count": CountSampler, "frequency": FrequencySampler}


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """What decides the weights of a dream, besides the data."""

    family: str
    config: Any
    seed: int = 0
    sampler: str = "uniform"
    init: str | None = None
    """A dream or the directory of a run to start from; a run's weights are in full precision."""


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The real segments that imagined episodes start from."""

    count: int = 24
    length: int = 4
    beginnings: float = 0.5
    """The share of them that are beginnings of episodes."""


class FitData(NamedTuple):
    """Episodes of one world, and how they were made."""

    episodes: Sequence[Episode]
    spec: WorldSpec
    notes: list[dict[str, Scalar]]

    @classmethod
    def of(cls, replay: Replay) -> FitData:
        """All episodes of a replay, which stay on disk."""
        return cls(replay, replay.spec, replay.notes)


class Parts(NamedTuple):
    """Episodes that a model is measured on, and those that it is fitted on."""

    held_out: Sequence[Episode]
    fitted: Sequence[Episode]


def split(episodes: Sequence[Episode], seed: int) -> Parts:
    """A tenth of the episodes, at least one, held out; and the rest."""
    if len(episodes) < 2:
        where = episodes.directory if isinstance(episodes, Replay) else "the data"
        raise ValueError(f"{where} has {len(episodes)} episodes: one is held out, so that two are needed")
    order = np.random.default_rng(seed).permutation(len(episodes))
    count = max(1, len(episodes) // 10)
    chosen = np.sort(order[:count]), np.sort(order[count:])
    if isinstance(episodes, Replay):
        return Parts(*(episodes.subset(indices) for indices in chosen))
    return Parts(*([episodes[index] for index in indices.tolist()] for indices in chosen))


def new_fit(recipe: FitRecipe, spec: WorldSpec, fitted: Sequence[Episode], ranks: Ranks = ALONE) -> Fit:
    """The fit before its first update; the caller's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = FAMILIES[recipe.family].build(recipe.config, spec)
    return Fit(model, fitted, seed=recipe.seed, sampler=SAMPLERS[recipe.sampler](), ranks=ranks)


def finish_fit(
    fit: Fit,
    recipe: FitRecipe,
    data: FitData,
    parts: Parts,
    contexts: Contexts,
    *,
    extra: Mapping[str, Any],
    progress: Progress | None = None,
) -> tuple[Checkpoint, Fidelity]:
    """The dream of a finished fit, measured on the held-out episodes. `extra` ends the card."""
    model: Any = fit.model
    model.load_state_dict(stored_weights(model, "float16"))  # so that the figures are those of the saved dream
    model.eval()
    fidelity = measure(model, parts.held_out, np.random.default_rng(recipe.seed), progress=progress)
    rng = np.random.default_rng(recipe.seed)
    starts = start_contexts(
        parts.fitted, contexts.count, contexts.length, rng, beginnings=contexts.beginnings, padded=True
    )
    card = make_card(recipe, data, parts, fit, fidelity) | dict(extra)
    name = Path(new_name(recipe.family, data.spec.world))
    return Checkpoint(model, starts, recipe.family, recipe.config, card, name), fidelity


def make_card(recipe: FitRecipe, data: FitData, parts: Parts, fit: Fit, fidelity: Fidelity) -> dict[str, Any]:
    """What the dream says of itself."""
    spec, (held_out, fitted) = data.spec, parts
    source = spec.source.id if spec.source is not None else "unknown"
    return {
        "title": f"{recipe.family} dream of {spec.world}",
        "summary": "The figures are of held-out episodes.",
        "data": {"env": source, "real_steps": int(episode_lengths(data.episodes).sum())}
        | {"fitted_episodes": len(fitted), "fitted_steps": int(episode_lengths(fitted).sum())}
        | {"held_out_episodes": len(held_out), "held_out_steps": int(episode_lengths(held_out).sum())},
        "collected": data.notes,
        "fitting": {"seed": recipe.seed, "sampler": recipe.sampler}
        | ({"init": recipe.init} if recipe.init is not None else {})
        | ({"ranks": fit.ranks.count} if fit.ranks.count > 1 else {})
        | {f"{stage.name}_updates": stage.updates for stage in fit.stages},
        "fidelity": fidelity.to_json(),
    }
