"""Train an agent and its world model together, from real steps that the agent collects itself.

    dreamenvs online                                          # MinAtar Breakout, on one core
    dreamenvs online stepvq --env ALE/Pong-v5 --preset paper  # says first what it costs

Collect, tokenizer, world model, agent, and again. A run that was stopped, by Ctrl-C or by a power cut, goes on when the
same command is given again, and ends with the same weights and the same results.json.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

import dreamenvs
from dreamenvs.agents.acting import Acting
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.saving import build_agent, save_agent
from dreamenvs.checkpoints.library import new_name, user_directory
from dreamenvs.checkpoints.stored_tensors import stored_weights
from dreamenvs.cli.command_line import command_line, parse
from dreamenvs.cli.online_costs import estimate_costs
from dreamenvs.cli.online_monitor import OnlineMonitor
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.cli.threads import use_threads
from dreamenvs.config import to_json
from dreamenvs.data.collector import Gatherer, RepetitionError
from dreamenvs.data.growing_replay import open_experience
from dreamenvs.data.segments import start_contexts
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.evaluation.online_results import Trial, results_json, weights_digest
from dreamenvs.families import BY_SPELLING
from dreamenvs.files.atomic_directory import ArtifactError
from dreamenvs.fitting.online import Online, game_seed
from dreamenvs.fitting.online_state import OnlineState, read_online
from dreamenvs.fitting.optimizer import NonFiniteLossError
from dreamenvs.fitting.state import StateError
from dreamenvs.ids import world_name
from dreamenvs.interruption import interruption
from dreamenvs.models import FAMILIES
from dreamenvs.presets.online import Preset, PresetName, build_samplers, find_preset, sources
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import describe, make_source


@dataclass(frozen=True)
class OnlineOptions:
    """What most people set."""

    family: Annotated[str, tyro.conf.Positional] = "stepvq"
    """Which family of world models."""
    env: str = "MinAtar/Breakout-v1"
    """The real environment."""
    preset: PresetName = "small"
    """Model sizes and the loop: `paper`, or `small` for two cores."""
    steps: int | None = None
    """Real steps altogether; by default the preset's."""
    episodes: int | None = None
    """Real episodes of the last evaluation; by default the preset's."""
    name: str | None = None
    """The run is kept in runs/<name>; by default named after the family, the world and the seed."""
    restart: bool = False
    """Begin again, removing what the run's directory holds."""
    out: Path | None = None
    """The dream's directory; by default in the user's data directory, where gym.make finds it."""
    seed: int = 0
    """Of everything."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores; the same number gives the same weights."""


@dataclass(frozen=True, kw_only=True)
class OnlineExpertOptions:
    """What the defaults are good for."""

    evaluate_every: int | None = None
    """Steps from one evaluation to the next, 0 for none but the last; by default the preset's."""
    resume: bool = False
    """Go on with a run, and refuse to begin one; without it, the same command does either."""
    save_minutes: float = 5.0
    """How often the state of the run is saved."""
    costs: bool = False
    """Measure first what the run will cost, as is always done for the preset `paper`."""
    device: str = "cpu"


@dataclass(frozen=True)
class Args(OnlineExpertOptions, OnlineOptions):
    """Train an agent and its world model together."""


def main(args: Args) -> None:
    if args.family not in BY_SPELLING:
        raise SystemExit(f"unknown family {args.family!r}: choose from {', '.join(BY_SPELLING)}")
    use_threads(args.threads)
    family, world = BY_SPELLING[args.family], world_name(args.env)
    preset = adapt(find_preset(family, args.preset, args.env), args)
    source, test = sources(args.env, preset)
    run = RunDirectory(Path("runs") / (args.name or f"{family}-{world}-online-{args.seed}"))
    arguments = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(args).items()}
    run.open(identify(family, preset, source, args.seed), arguments, restart=args.restart)
    if args.resume and not run.begun:
        raise SystemExit(f"there is nothing to go on with in {run.path}; leave out --resume to begin")
    online, trial = assemble(run, family, preset, (source, test), args)
    model: Any = online.model
    print(f"{family}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters; run {run.path}")
    print(f"from {online.counters.describe()}" if run.begun else f"{preset.schedule.steps:,} real steps of {args.env}")
    if args.costs or (args.preset == "paper" and not run.begun):
        print(estimate_costs(online, preset))
    work(run, online, args.save_minutes)
    finish(run, online, trial, family, preset, args)


def adapt(preset: Preset, args: Args) -> Preset:
    """The preset with what the command line asks for."""
    schedule, evaluation = preset.schedule, preset.evaluation
    if args.steps is not None:
        schedule = replace(schedule, steps=args.steps, warmup=min(schedule.warmup, args.steps))
    if args.evaluate_every is not None:
        schedule = replace(schedule, evaluate_every=args.evaluate_every)
    if args.episodes is not None:
        evaluation = replace(evaluation, final=args.episodes, num_envs=min(args.episodes, evaluation.num_envs))
    return replace(preset, schedule=schedule, evaluation=evaluation)


def identify(family: str, preset: Preset, source: SourceEnv, seed: int) -> Mapping[str, Any]:
    """What decides the weights."""
    parts = asdict(replace(preset, config=None)) | {"config": to_json(preset.config)}
    return {"family": family, "source": to_json(source), "seed": seed, **parts}


def assemble(
    run: RunDirectory, family: str, preset: Preset, envs: tuple[SourceEnv, SourceEnv], args: Args
) -> tuple[Online, Trial]:
    """The run with all its parts, as it was saved last or at its beginning."""
    try:
        state: OnlineState | None = read_online(run.state) if run.begun else None
        real = [make_source(envs[0]) for _ in range(preset.num_envs)]
        spec = describe(real[0], world=world_name(args.env), source=envs[0])
        torch.manual_seed(args.seed)
        model = FAMILIES[family].build(preset.config, spec).to(args.device).eval()
        agent: Any = build_agent(preset.agent.agent, agent_spec(model, preset.agent.obs_type))
        learner = Learner(agent.to(args.device), preset.agent.learning, args.seed)
        acting = Acting(agent, model)
        trial = Trial(acting, envs[1], preset.evaluation, args.seed)
        experience = open_experience(run.path / "replay", spec, state.order if state is not None else ())
        gatherer = Gatherer(real, experience, lambda number: game_seed(args.seed, number))
        online = Online(
            model,
            learner,
            acting,
            gatherer,
            preset.schedule,
            starts=(preset.agent.learning.rows, preset.agent.learning.context),
            seed=args.seed,
            samplers=build_samplers(preset, tuple(stage.name for stage in model.stages())),
            evaluate=trial.evaluate,
        )
        if state is not None:
            online.restore(state)
    except (ArtifactError, StateError, RepetitionError) as error:
        raise SystemExit(f"the run in {run.path} cannot go on: {error}\nbegin again with --restart") from error
    return online, trial


def work(run: RunDirectory, online: Online, save_minutes: float) -> None:
    """Do what is left of a run, saving its state every so often, at Ctrl-C and at the end."""
    saved = time.monotonic()
    try:
        with interruption() as stop, closing(OnlineMonitor(run, online)) as monitor:
            for event in online.run():
                monitor.record(event)
                if stop.is_set() or time.monotonic() - saved >= 60 * save_minutes:
                    online.save(run.state)
                    saved = time.monotonic()
                if stop.is_set() and not online.finished:
                    command = shlex.join(
                        ["dreamenvs", "online", *(word for word in sys.argv[1:] if word != "--restart")]
                    )
                    raise SystemExit(f"stopped at {online.counters.describe()}\nthe same command goes on: {command}")
            if monitor.seconds:
                online.save(run.state)
                add_timings(run, monitor.seconds)
    except NonFiniteLossError as error:
        kept = f"the last good state is in {run.state}" if run.begun else "no state was saved yet"
        raise SystemExit(f"{error}\n{kept}; a smaller learning rate may help") from error
    except OSError as error:
        raise SystemExit(f"{error}\nmake room or choose another place; the same command then goes on") from error


def add_timings(run: RunDirectory, seconds: Mapping[str, float]) -> None:
    """Where the time went in this process; what a killed one took is not known. Not part of the results."""
    path = run.path / "timings.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({name: round(value, 3) for name, value in seconds.items()}) + "\n")


def finish(run: RunDirectory, online: Online, trial: Trial, family: str, preset: Preset, args: Args) -> None:
    """Measure the agent, write the results, and save the dream and the agent."""
    model: Any = online.model
    acting: Any = online.actor
    results = {
        "family": family,
        "preset": args.preset,
        "env": args.env,
        "seed": args.seed,
        "final": trial.final(),
        "protocol": trial.protocol(),
        "counters": to_json(online.counters),
        "real_steps": online.experience.steps,
        "curve": online.curve,
        "weights_sha256": weights_digest(model, acting.agent),
    }
    (run.path / "results.json").write_bytes(results_json(results))
    out = args.out or user_directory() / new_name(family, model.spec.world)
    held_out = trial.held_out()
    model.load_state_dict(stored_weights(model, "float16"))  # so that the figures are those of the saved dream
    fidelity = measure(model, held_out, np.random.default_rng(args.seed))
    length = min(preset.agent.learning.context, int(online.experience.lengths.max()))
    contexts = start_contexts(online.experience, 64, length, np.random.default_rng(args.seed), beginnings=0.5)
    command = command_line("online")
    card = {
        "title": f"{family} dream of {model.spec.world}",
        "summary": "Trained online, with an agent that collected its data; held-out episodes are that agent's.",
        "data": {"env": args.env, "real_steps": online.experience.steps, "episodes": online.counters.episodes},
        "fitting": {"seed": args.seed, "preset": args.preset}
        | {f"{name}_updates": done for name, done in zip(online.counters.stages, online.counters.updates, strict=True)}
        | {"agent_updates": online.counters.agent_updates},
        "agent": results["final"]["return"],
        "fidelity": fidelity.to_json(),
        "versions": {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]},
        "commands": [command],
    }
    config = preset.config
    dreamenvs.save(out, model, contexts, family=family, config=config, card=card, weights_dtype="float16")
    save_agent(run.path / "agent", acting.agent, dream=out.name)
    final = results["final"]["return"]
    interval = f"[{final['low']:g}, {final['high']:g}]" if final["low"] is not None else ""
    print(f"real return {final['mean']:g} {interval} over {results['final']['episodes']} episodes")
    print(f"results {run.path / 'results.json'}\nagent {run.path / 'agent'}\ndream {out}")
    print(f"gymnasium.make({dreamenvs.register(out)!r}) dreams it")


if __name__ == "__main__":
    main(parse(Args))
