"""Fit a world model of a real environment or of a data set, and save it as a dream.

    python training/fit_world_model.py                                     # a small dream of MinAtar Breakout
    python training/fit_world_model.py stepvq --env ALE/Pong-v5            # collects first, where there is no data
    python training/fit_world_model.py stepvq --dataset my/minari-dataset-v0
    python training/fit_world_model.py stepvq --data data/Pong --preset small
    torchrun --nproc-per-node 4 training/fit_world_model.py stepvq         # four processes share every batch

The model says in which stages it is optimised. A run that was stopped, by Ctrl-C or by a power cut, goes on when the
same command is given again, and ends with the same weights. Held-out episodes tell how good the dream is, and the
figures go into its card.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

import dreamenvs
from dreamenvs.checkpoints.library import new_name, user_directory
from dreamenvs.checkpoints.world_model import stored_weights
from dreamenvs.cli.collect import PolicyName, collect_into, default_policy
from dreamenvs.cli.fit_monitor import FitMonitor
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.config import to_json
from dreamenvs.data.episode import Episode
from dreamenvs.data.minari import episodes_from_minari, spec_from_minari
from dreamenvs.data.replay import Replay
from dreamenvs.data.samplers import CountSampler, FrequencySampler, Sampler, UniformSampler
from dreamenvs.data.segments import start_contexts
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.families import BY_SPELLING
from dreamenvs.files.atomic_directory import ArtifactError, is_artifact
from dreamenvs.fitting.distributed import ALONE, TIMEOUT, Ranks, open_ranks
from dreamenvs.fitting.fit import Fit
from dreamenvs.fitting.optimizer import NonFiniteLossError
from dreamenvs.fitting.state import StateError, read_weights
from dreamenvs.ids import world_name
from dreamenvs.interruption import interruption
from dreamenvs.models import FAMILIES
from dreamenvs.nn.distributed import RankError
from dreamenvs.presets.variants import vary, with_batches, with_updates
from dreamenvs.presets.world_models import model_config
from dreamenvs.worlds.source import choose_source

SAMPLERS: dict[str, type[Sampler]] = {"uniform": UniformSampler, "count": CountSampler, "frequency": FrequencySampler}


@dataclass(frozen=True)
class Args:
    """Fit a world model and save it as a dream."""

    family: Annotated[str, tyro.conf.Positional] = "stepvq"
    """Which family: stepvq, stepvqt, cb, cbt, storm, gitstorm, iris, rem or deltairis."""
    env: str | None = None
    """The real environment to collect from where there is no data yet; MinAtar/Breakout-v1 if nothing is given."""
    dataset: str | None = None
    """A local Minari data set to fit on instead."""
    data: Path | None = None
    """A replay, from training/collect.py; by default data/<World>, which is filled first where it is empty."""
    collect_steps: int = 60_000
    """Real steps to collect."""
    policy: PolicyName | None = None
    """Who plays them: by default the tracker in ALE/Pong, held random actions in dm_control, random ones elsewhere."""
    num_envs: int = 1
    """Environments that are played at once: many give many short episodes."""
    preset: Literal["small", "cells", "local", "paper"] = "small"
    """Model sizes, and how they are optimised."""
    variant: Literal["kl", "ce", "no-i-tokens"] | None = None
    """A part as a paper's comparison has it: STEP-VQ or a baseline fitted all at once with the KL or with the cross
    entropy, or Δ-IRIS without I-tokens."""
    update_share: float = 1.0
    """How many of the preset's updates are made, where their number is not given."""
    tokenizer_updates: int | None = None
    """Updates of the tokenizer, where it has a stage of its own."""
    dynamics_updates: int | None = None
    """Updates of the dynamics, where they have a stage of their own."""
    joint_updates: int | None = None
    """Updates of a model that is fitted all at once."""
    batch_rows: int | None = None
    """Segments in a batch that the dynamics learn from; many small batches may teach more in the same time than few."""
    batch_length: int | None = None
    """Steps of these segments."""
    sampler: Literal["uniform", "count", "frequency"] = "uniform"
    """Which segments come up: all alike, of episodes that were used least, or around steps that were used least."""
    init: str | None = None
    """A dream (id or path) or the directory of a run, whose weights this one starts from."""
    name: str | None = None
    """The run is kept in runs/<name>; by default named after the family and the world."""
    restart: bool = False
    """Begin again, removing what the run's directory holds."""
    save_minutes: float = 5.0
    """How often the state of the run is saved."""
    picture_minutes: float = 3.0
    """How often pictures are drawn."""
    contexts: int = 24
    """Start contexts to put into the dream."""
    context_length: int = 4
    """Frames in a start context."""
    out: Path | None = None
    """The dream's directory; by default in the user's data directory, where gym.make finds it."""
    seed: int = 0
    """Of collecting, weights, batches and contexts."""
    threads: int | None = None
    """CPU threads, by default 2, and 1 for each process of torchrun; the same number gives the same weights."""
    rank_timeout: float = TIMEOUT
    """Seconds after which a process of torchrun that does not answer ends the run."""


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
class Bookkeeping:
    """What does not change the weights."""

    arguments: Mapping[str, Any]
    """What the run was asked for, kept with it."""
    commands: tuple[str, ...]
    """For the card."""
    contexts: int = 24
    context_length: int = 4
    beginnings: float = 0.5
    """The share of contexts that are beginnings of episodes."""
    save_minutes: float = 5.0
    picture_minutes: float = 3.0
    restart: bool = False


def main(args: Args) -> None:
    if args.family not in BY_SPELLING:
        raise SystemExit(f"unknown family {args.family!r}: choose from {', '.join(BY_SPELLING)}")
    with open_ranks(args.rank_timeout) as ranks:
        torch.set_num_threads(args.threads or (2 if ranks.count == 1 else 1))
        try:
            with nullcontext() if ranks.first else quiet():
                fit_and_tell(args, ranks)
        except RankError as error:
            kept = "the same command goes on from the last state that was saved"
            raise SystemExit(f"rank {ranks.number}: {error}\n{kept}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Of several ranks the first tells for all."""
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    except SystemExit as end:
        raise SystemExit(1 if isinstance(end.code, str) else end.code) from end


def fit_and_tell(args: Args, ranks: Ranks) -> None:
    """Fit the dream that the arguments ask for; of several ranks each comes here."""
    family = BY_SPELLING[args.family]
    chosen_config(family, args)  # so that what is wrong with it is told before all else
    with ranks.first_ahead():
        replay = open_replay(args)
    config = chosen_config(family, args, replay.spec.observation_shape)
    name = args.name or f"{family}-{replay.spec.world}"
    out = args.out or user_directory() / new_name(family, replay.spec.world)
    launcher = ["python"] if ranks.count == 1 else ["torchrun", "--nproc-per-node", str(ranks.count)]
    fit_dream(
        FitRecipe(family=family, config=config, seed=args.seed, sampler=args.sampler, init=args.init),
        replay,
        Path("runs") / name,
        out,
        Bookkeeping(
            arguments={key: str(value) if isinstance(value, Path) else value for key, value in asdict(args).items()},
            commands=(shlex.join([*launcher, "training/fit_world_model.py", *sys.argv[1:]]),),
            contexts=args.contexts,
            context_length=args.context_length,
            save_minutes=args.save_minutes,
            picture_minutes=args.picture_minutes,
            restart=args.restart and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0",  # by torchrun itself
        ),
        ranks,
    )
    if ranks.first:
        print(f"saved {out}\ngymnasium.make({dreamenvs.register(out)!r}) dreams it")


def chosen_config(family: str, args: Args, frame: tuple[int, ...] = (3, 40, 40)) -> Any:
    """The preset's config for frames (C, H, W), with what the command line changes in it."""
    asked = {"tokenizer": args.tokenizer_updates, "dynamics": args.dynamics_updates, "joint": args.joint_updates}
    config = with_updates(vary(model_config(family, args.preset, frame), args.variant), asked, args.update_share)
    return with_batches(config, args.batch_rows, args.batch_length)


def open_replay(args: Args) -> Replay:
    """The data, which is copied from Minari or collected first where it is not there yet."""
    env = args.env or "MinAtar/Breakout-v1"
    world = world_name(env) if args.dataset is None else re.sub(r"[^A-Za-z0-9-]", "-", args.dataset)
    directory = args.data or Path("data") / world
    if (directory / "index.json").exists() and len(replay := Replay.open(directory)):
        print(replay.budget())
        return replay
    if args.dataset is not None:
        known = (directory / "index.json").exists()
        replay = Replay.open(directory) if known else Replay.create(directory, spec_from_minari(args.dataset))
        replay.append(episodes_from_minari(args.dataset), {"dataset": args.dataset})
        print(replay.budget())
        return replay
    if args.data is not None and args.env is None:
        raise SystemExit(f"there are no episodes in {directory}; with --env they are collected first")
    print(f"collecting {args.collect_steps:,} steps of {env} into {directory}")
    policy = args.policy or default_policy(env)
    return collect_into(
        directory, choose_source(env), policy, args.collect_steps, seed=args.seed, num_envs=args.num_envs
    )


def fit_dream(
    recipe: FitRecipe, replay: Replay, directory: Path, out: Path, book: Bookkeeping, ranks: Ranks = ALONE
) -> Path:
    """Fit a dream on a replay and save it in `out`; what `directory` holds of the same run is gone on with.

    Of several ranks the first measures and saves the dream, while the others are done.
    """
    run, family = RunDirectory(directory), FAMILIES[recipe.family]
    held_out, fitted = split(replay, recipe.seed)
    steps = {"episodes": len(fitted), "steps": int(fitted.lengths.sum())}
    identity = asdict(recipe) | {"config": to_json(recipe.config), "spec": to_json(replay.spec), "data": steps}
    if ranks.first:
        run.open(identity, book.arguments, restart=book.restart, ranks=ranks.count)
    ranks.wait()
    torch.manual_seed(recipe.seed)
    model = family.build(recipe.config, replay.spec)
    fit = new_fit(model, fitted, recipe, ranks)
    print(f"{len(fitted)} episodes to fit, {steps['steps']:,} steps; {len(held_out)} held out")
    print(f"{family.name}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters; run {directory}")
    if ranks.count > 1:
        print(f"{ranks.count} ranks share every batch")
    if run.begun:
        go_on(fit, run)
    elif recipe.init is not None:
        model.load_state_dict(load_weights(recipe.init, model))
    with closing(FitMonitor(run, fit, held_out, book.picture_minutes)) if ranks.first else nullcontext() as monitor:
        work(fit, run, monitor, book.save_minutes)
    if not ranks.first:
        return out
    model.load_state_dict(stored_weights(model, "float16"))  # so that the figures are those of the saved dream
    model.eval()
    fidelity = measure(model, held_out, np.random.default_rng(recipe.seed))
    print(fidelity.table())
    card = make_card(recipe, replay, (held_out, fitted), fit, fidelity.to_json(), book)
    rng = np.random.default_rng(recipe.seed)
    contexts = start_contexts(fitted, book.contexts, book.context_length, rng, beginnings=book.beginnings)
    dreamenvs.save(out, model, contexts, family=family.name, config=recipe.config, card=card, weights_dtype="float16")
    return out


def split(replay: Replay, seed: int) -> tuple[Any, Any]:
    """A tenth of the episodes, at least one, held out; and the rest."""
    if len(replay) < 2:
        raise SystemExit(f"{replay.directory} has {len(replay)} episodes: one is held out, so that two are needed")
    order = np.random.default_rng(seed).permutation(len(replay))
    count = max(1, len(replay) // 10)
    return replay.subset(np.sort(order[:count])), replay.subset(np.sort(order[count:]))


def new_fit(model: Any, episodes: Sequence[Episode], recipe: FitRecipe, ranks: Ranks) -> Fit:
    """The fit before its first update."""
    try:
        return Fit(model, episodes, seed=recipe.seed, sampler=SAMPLERS[recipe.sampler](), ranks=ranks)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def go_on(fit: Fit, run: RunDirectory) -> None:
    """Load the state of an earlier start of this run."""
    try:
        fit.load(run.state)
    except (ArtifactError, StateError) as error:
        raise SystemExit(f"the run in {run.path} cannot go on: {error}\nbegin again with --restart") from error
    stage = "after its last stage" if fit.finished else f"stage {fit.stages[fit.stage].name}, update {fit.update}"
    print(f"going on with {run.path}: {stage}")


def load_weights(init: str, model: Any) -> dict[str, torch.Tensor]:
    """The weights of a dream or of a run of the same model; `prior` parts that it did not have begin anew."""
    state = next((path for path in (Path(init) / "state", Path(init)) if is_artifact(path)), None)
    if state is not None and (state / "progress.json").exists():
        weights = read_weights(state)
    else:
        weights = dreamenvs.load(init).model.state_dict()  # type: ignore[attr-defined]
    for name, own in model.state_dict().items():
        if name not in weights and name.startswith("prior."):
            print(f"{name} is new")
            weights[name] = own
        if name not in weights or weights[name].shape != own.shape:
            found = tuple(weights[name].shape) if name in weights else "missing"
            raise SystemExit(f"--init {init} is of another model: {name} is {found}, not {tuple(own.shape)}")
    return weights


def work(fit: Fit, run: RunDirectory, monitor: FitMonitor | None, save_minutes: float) -> None:
    """Work through the remaining updates, saving the state every so often, at the end of stages and at Ctrl-C."""
    saved, ranks = time.monotonic(), fit.ranks
    try:
        (begun,) = ranks.any(run.begun)
        with interruption(insistent=ranks.count > 1) as stop:
            for metrics in fit.run():
                if monitor is not None:
                    monitor.record(metrics)
                due, stopping = ranks.any(time.monotonic() - saved >= 60 * save_minutes, stop.is_set())
                if due or stopping or metrics.update == metrics.updates:
                    fit.save(run.state)
                    saved, begun = time.monotonic(), True
                if stopping and not fit.finished:
                    where = f"stage {metrics.stage}, update {metrics.update} of {metrics.updates}"
                    raise SystemExit(f"stopped at {where}; the same command goes on from there")
        if not begun:  # there was nothing to do, but others may start from here
            fit.save(run.state)
    except NonFiniteLossError as error:
        kept = f"the last good state is in {run.state}" if run.begun else "no state was saved yet"
        raise SystemExit(f"{error}\n{kept}; a smaller learning rate or other data may help") from error
    except OSError as error:
        raise SystemExit(f"{error}\nmake room or choose another place; the same command then goes on") from error


def make_card(
    recipe: FitRecipe,
    replay: Replay,
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    fit: Fit,
    fidelity: dict[str, Any],
    book: Bookkeeping,
) -> dict[str, Any]:
    """What the dream says of itself."""
    spec, (held_out, fitted) = replay.spec, episodes
    source = spec.source.id if spec.source is not None else "unknown"
    return {
        "title": f"{recipe.family} dream of {spec.world}",
        "summary": "Fitted with the commands below; the figures are of held-out episodes.",
        "data": {"env": source, "real_steps": replay.steps}
        | {"fitted_episodes": len(fitted), "fitted_steps": sum(map(len, fitted))}
        | {"held_out_episodes": len(held_out), "held_out_steps": sum(map(len, held_out))},
        "collected": replay.notes,
        "fitting": {"seed": recipe.seed, "sampler": recipe.sampler}
        | ({"init": recipe.init} if recipe.init is not None else {})
        | ({"ranks": fit.ranks.count} if fit.ranks.count > 1 else {})
        | {f"{stage.name}_updates": stage.updates for stage in fit.stages},
        "fidelity": fidelity,
        "versions": {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]},
        "commands": list(book.commands),
    }


if __name__ == "__main__":
    main(tyro.cli(Args))
