"""Fit a world model of a real environment or of a data set, and save it as a dream.

    dreamenvs fit                                     # a small dream of MinAtar Breakout
    dreamenvs fit stepvq --env ALE/Pong-v5            # collects first, where there is no data
    dreamenvs fit stepvq --dataset my/minari-dataset-v0
    dreamenvs fit stepvq --data data/Pong --preset small
    torchrun --nproc-per-node 4 -m dreamenvs.cli.fit stepvq         # four processes share every batch

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
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

import dreamenvs
from dreamenvs.checkpoints.library import new_name, user_directory
from dreamenvs.cli.collect import collect_into
from dreamenvs.cli.command_line import command_line, parse
from dreamenvs.cli.fit_monitor import FitMonitor
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.cli.threads import use_threads
from dreamenvs.config import to_json
from dreamenvs.data.minari import episodes_from_minari, spec_from_minari
from dreamenvs.data.replay import Replay
from dreamenvs.families import BY_SPELLING, FAMILIES
from dreamenvs.files.atomic_directory import ArtifactError, is_artifact
from dreamenvs.fitting.distributed import ALONE, TIMEOUT, Ranks, open_ranks
from dreamenvs.fitting.fit import Fit
from dreamenvs.fitting.optimizer import NonFiniteLossError
from dreamenvs.fitting.state import StateError, read_weights
from dreamenvs.ids import world_name
from dreamenvs.interruption import interruption
from dreamenvs.nn.distributed import RankError
from dreamenvs.presets.choice import choose_preset
from dreamenvs.presets.variants import vary, with_batches, with_updates
from dreamenvs.presets.world_models import model_config
from dreamenvs.workflows.collecting import PolicyName, default_policy
from dreamenvs.workflows.fitting import Contexts, FitData, FitRecipe, finish_fit, new_fit, split
from dreamenvs.worlds.source import choose_source


@dataclass(frozen=True)
class FitOptions:
    """What most people set."""

    family: Annotated[str, tyro.conf.Positional] = "grid"
    """Which family: grid, stepvq, stepvqt, cb, cbt, storm, gitstorm, iris, rem or deltairis."""
    env: str | None = None
    """The real environment to collect from where there is no data yet; MinAtar/Breakout-v1 if nothing is given."""
    dataset: str | None = None
    """A local Minari data set to fit on instead."""
    data: Path | None = None
    """A replay, from `dreamenvs collect`; by default data/<World>, which is filled first where it is empty."""
    collect_steps: int = 60_000
    """Real steps to collect."""
    policy: PolicyName | None = None
    """Who plays them: by default the tracker in ALE/Pong, held random actions in dm_control, random ones elsewhere."""
    size: int | None = None
    """The side of the pictures that are collected, where an environment lets one choose; by default 64, or its own."""
    preset: Literal["small", "cells", "patches", "vq", "paper"] | None = None
    """Model sizes, and how they are optimised."""
    update_share: float = 1.0
    """How many of the preset's updates are made, where their number is not given."""
    name: str | None = None
    """The run is kept in runs/<name>; by default named after the family and the world."""
    restart: bool = False
    """Begin again, removing what the run's directory holds."""
    out: Path | None = None
    """The dream's directory; by default in the user's data directory, where gym.make finds it."""
    seed: int = 0
    """Of collecting, weights, batches and contexts."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores; the same number gives the same weights."""


@dataclass(frozen=True, kw_only=True)
class FitExpertOptions:
    """What the defaults are good for."""

    num_envs: int = 1
    """Environments that are played at once: many give many short episodes."""
    variant: Literal["kl", "ce", "no-i-tokens"] | None = None
    """A part as a paper's comparison has it: STEP-VQ or a baseline fitted all at once with the KL or with the cross
    entropy, or Δ-IRIS without I-tokens."""
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
    save_minutes: float = 5.0
    """How often the state of the run is saved."""
    picture_minutes: float = 3.0
    """How often pictures are drawn."""
    contexts: int = 24
    """Start contexts to put into the dream."""
    context_length: int = 4
    """Frames in a start context."""
    rank_timeout: float = TIMEOUT
    """Seconds after which a process of torchrun that does not answer ends the run."""


@dataclass(frozen=True)
class Args(FitExpertOptions, FitOptions):
    """Fit a world model and save it as a dream."""


@dataclass(frozen=True, kw_only=True)
class Bookkeeping:
    """What does not change the weights."""

    arguments: Mapping[str, Any]
    """What the run was asked for, kept with it."""
    commands: tuple[str, ...]
    """For the card."""
    contexts: Contexts = field(default_factory=Contexts)
    save_minutes: float = 5.0
    picture_minutes: float = 3.0
    restart: bool = False


def main(args: Args) -> None:
    if args.family not in BY_SPELLING:
        raise SystemExit(f"unknown family {args.family!r}: choose from {', '.join(BY_SPELLING)}")
    with open_ranks(args.rank_timeout) as ranks:
        use_threads(args.threads)
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
    chosen_config(family, args, args.preset or FAMILIES[family].presets[0])  # so that what is wrong is told first
    with ranks.first_ahead():
        replay = open_replay(args)
    preset = args.preset or choose_preset(family, replay)
    print(f"preset {preset}{'' if args.preset else ', which suits these frames'}")
    config = chosen_config(family, args, preset, replay.spec.observation_shape)
    name = args.name or f"{family}-{replay.spec.world}"
    out = args.out or user_directory() / new_name(family, replay.spec.world)
    launcher = ["torchrun", "--nproc-per-node", str(ranks.count), "-m", "dreamenvs.cli.fit", *sys.argv[1:]]
    fit_dream(
        FitRecipe(family=family, config=config, seed=args.seed, sampler=args.sampler, init=args.init),
        replay,
        Path("runs") / name,
        out,
        Bookkeeping(
            arguments={key: str(value) if isinstance(value, Path) else value for key, value in asdict(args).items()},
            commands=(command_line("fit") if ranks.count == 1 else shlex.join(launcher),),
            contexts=Contexts(count=args.contexts, length=args.context_length),
            save_minutes=args.save_minutes,
            picture_minutes=args.picture_minutes,
            restart=args.restart and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0",  # by torchrun itself
        ),
        ranks,
    )
    if ranks.first:
        print(f"saved {out}\ngymnasium.make({dreamenvs.register(out)!r}) dreams it")


def chosen_config(family: str, args: Args, preset: str, frame: tuple[int, ...] = (3, 40, 40)) -> Any:
    """The preset's config for frames (C, H, W), with what the command line changes in it."""
    asked = {"tokenizer": args.tokenizer_updates, "dynamics": args.dynamics_updates, "joint": args.joint_updates}
    config = with_updates(vary(model_config(family, preset, frame), args.variant), asked, args.update_share)
    return with_batches(config, args.batch_rows, args.batch_length)


def open_replay(args: Args) -> Replay:
    """The data, which is copied from Minari or collected first where it is not there yet."""
    env = args.env or "MinAtar/Breakout-v1"
    world = world_name(env) if args.dataset is None else re.sub(r"[^A-Za-z0-9-]", "-", args.dataset)
    directory = args.data or Path("data") / world
    if args.size is not None and args.dataset is not None:
        raise SystemExit("--size is of what is collected; a data set is fitted on as it is")
    if (directory / "index.json").exists() and len(replay := Replay.open(directory)):
        if args.size is not None and set(replay.spec.observation_shape[1:]) != {args.size}:
            shape = " × ".join(map(str, replay.spec.observation_shape[1:]))
            raise SystemExit(f"{directory} holds frames of {shape} pixels, not {args.size}; choose another --data")
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
        directory,
        choose_source(env, size=args.size),
        policy,
        args.collect_steps,
        seed=args.seed,
        num_envs=args.num_envs,
    )


def fit_dream(
    recipe: FitRecipe, replay: Replay, directory: Path, out: Path, book: Bookkeeping, ranks: Ranks = ALONE
) -> Path:
    """Fit a dream on a replay and save it in `out`; what `directory` holds of the same run is gone on with.

    Of several ranks the first measures and saves the dream, while the others are done.
    """
    run = RunDirectory(directory)
    try:
        parts = held_out, fitted = split(replay, recipe.seed)
        steps = {"episodes": len(fitted), "steps": int(fitted.lengths.sum())}  # type: ignore[attr-defined]
        identity = asdict(recipe) | {"config": to_json(recipe.config), "spec": to_json(replay.spec), "data": steps}
        if ranks.first:
            run.open(identity, book.arguments, restart=book.restart, ranks=ranks.count)
        ranks.wait()
        fit = new_fit(recipe, replay.spec, fitted, ranks)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    model: Any = fit.model
    print(f"{len(fitted)} episodes to fit, {steps['steps']:,} steps; {len(held_out)} held out")
    print(
        f"{recipe.family}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters; run {directory}"
    )
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
    versions = {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]}
    extra = {"versions": versions, "commands": list(book.commands)}
    dream, fidelity = finish_fit(fit, recipe, FitData.of(replay), parts, book.contexts, extra=extra)
    print(fidelity.table())
    dream.save(out)
    return out


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


if __name__ == "__main__":
    main(parse(Args))
