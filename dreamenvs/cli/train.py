"""Train the built-in agent inside one dream, with no real step while it learns, then let it play the real game.

    dreamenvs train dreamenvs/STEPVQ-Pong-v0
    dreamenvs train dreamenvs/STEPVQ-MinAtarBreakout-v0 --steps 500000 --limit 100
    dreamenvs train runs/my-dream --size paper

The dream's family says which agent learns there, and how: dreamenvs/agents/defaults.py. A run that was stopped, by
Ctrl-C or by a power cut, goes on when the same command is given again, and ends with the same weights. At the end the
agent and a random policy play the real environment; the scores with their intervals, and how they were measured, go
into results.json, and a real episode into episode.gif.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.torch
import torch
import tyro
from tqdm import tqdm

import dreamenvs
from dreamenvs.agents.defaults import AgentRecipe, Size, default_recipe
from dreamenvs.agents.dream_trainer import DreamTrainer
from dreamenvs.agents.player import Player
from dreamenvs.agents.saving import save_agent
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.cli.command_line import command_line, parse
from dreamenvs.cli.fit_monitor import open_board
from dreamenvs.cli.progress import bar
from dreamenvs.cli.run_directory import RunDirectory
from dreamenvs.cli.threads import use_threads
from dreamenvs.config import to_json
from dreamenvs.data.collect import collect
from dreamenvs.envs.rendering import to_rgb
from dreamenvs.evaluation.pictures import write_gif
from dreamenvs.evaluation.results import Progress
from dreamenvs.evaluation.transfer import MAX_EPISODE_STEPS, Transfer, transfer
from dreamenvs.files.atomic_directory import dump_json, read_artifact, write_artifact
from dreamenvs.interruption import interruption
from dreamenvs.nn.optimization import NonFiniteLossError
from dreamenvs.workflows.training import adapt_recipe, new_trainer, updates_for
from dreamenvs.worlds.watching import WatchingPolicy

EVERY = 10
"""Updates whose average is one line of metrics."""
STATE = {"learner.safetensors": 2**33, "rows.safetensors": 2**33}
SHOWN = ("finished_return", "dream_return", "entropy", "value")


@dataclass(frozen=True)
class TrainOptions:
    """What most people set."""

    dream: Annotated[str, tyro.conf.Positional]
    """An environment id or the path of a checkpoint directory."""
    steps: int = 1_000_000
    """Imagined steps to learn from."""
    size: Size = "small"
    """Of the agent and its batches: small for a few cores, or the paper's."""
    limit: int = 100
    """Imagined steps after which a dream is left: in long ones an agent learns to live off the model's errors."""
    name: str | None = None
    """The run is kept in runs/<name>; by default named after the dream."""
    restart: bool = False
    """Begin again, removing what the run's directory holds."""
    episodes: int = 100
    """Real episodes to measure a policy with, and as many dreamed ones; 0 does not."""
    seed: int = 0
    """Of weights, dreams and the games that are played."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores; the same number gives the same weights."""


@dataclass(frozen=True, kw_only=True)
class TrainExpertOptions:
    """What the defaults are good for."""

    rows: int | None = None
    """Imagined episodes side by side, if not as many as the recipe has; so for all that follow."""
    horizon: int | None = None
    """Imagined steps of an update."""
    rate: float | None = None
    """The learning rate; by default the recipe's."""
    decay: bool = True
    """Whether it falls to a tenth on the way."""
    entropy: float | None = None
    """The weight of the policy's entropy."""
    discount: float | None = None
    units: int | None = None
    """Of the networks of actor and critic, where the agent is a latent one, or of the LSTM."""
    temperature: float = 1.0
    """Of the dreamed frames."""
    resume: bool = False
    """Insist on going on: an error where there is no run to go on with."""
    save_minutes: float = 2.0
    """How often the state of the run is saved."""
    num_envs: int = 10
    """How many are played side by side."""
    greedy: bool = False
    """Whether the agent plays its most likely actions; by default they are drawn, as in the dream."""
    action_temperature: float = 1.0
    """Of the drawn actions."""
    max_episode_steps: int = MAX_EPISODE_STEPS
    """Steps after which a real episode is cut."""
    film_steps: int = 400
    """Steps of the real episode in the GIF, at most."""


@dataclass(frozen=True)
class Args(TrainExpertOptions, TrainOptions):
    """Train the built-in agent inside one dream."""


def main(args: Args) -> None:
    use_threads(args.threads)
    dream = dreamenvs.load(args.dream)
    recipe = choose_recipe(args, dream.family)
    run = RunDirectory(Path("runs") / (args.name or f"agent-{dream.path.name}"))
    if args.resume and not run.begun:
        raise SystemExit(f"--resume: {run.path} holds no state to go on from; begin without it")
    identity = {"dream": dream.path.name, "spec": to_json(dream.model.spec), "agent": to_json(recipe.agent)}
    identity |= {"learning": to_json(recipe.learning), "limit": args.limit, "seed": args.seed}
    run.open(identity, asdict(args), restart=args.restart)
    trainer = new_trainer(dream, recipe, seed=args.seed, limit=args.limit)
    agent: Any = trainer.learner.agent
    size = sum(parameter.numel() for parameter in agent.parameters())
    print(f"{type(recipe.agent).__name__} on {recipe.obs_type}: {size:,} parameters; run {run.path}")
    if run.begun:
        load_state(run.state, trainer)
        print(f"going on with {run.path}: update {trainer.update}")
    with closing(AgentMonitor(run, trainer, updates_for(args.steps, recipe))) as monitor:
        work(trainer, run, monitor, args.save_minutes)
    where = save_agent(run.path / "agent", agent, dream=dream.path.name)
    print(f"saved {where}; dreamenvs.load_agent({str(where)!r}) loads it")
    if args.episodes:
        judge(args, dream, recipe, run, Player(agent, temperature=0.0 if args.greedy else args.action_temperature))


def choose_recipe(args: Args, family: str) -> AgentRecipe:
    """The family's recipe, with what the command line changes."""
    try:
        recipe = default_recipe(family, args.size)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    asked = {name: getattr(args, name) for name in ("rows", "horizon", "rate", "entropy", "discount")}
    changes = {name: value for name, value in asked.items() if value is not None} | {"temperature": args.temperature}
    return adapt_recipe(recipe, args.steps, decay=args.decay, units=args.units, changes=changes)


def work(trainer: DreamTrainer, run: RunDirectory, monitor: AgentMonitor, save_minutes: float) -> None:
    """The remaining updates, saving the state every so often, at the end and at Ctrl-C."""
    saved = time.monotonic()
    try:
        with interruption() as stop:
            while trainer.update < monitor.updates:
                monitor.record(trainer.advance())
                ended = trainer.update == monitor.updates
                if ended or stop.is_set() or time.monotonic() - saved >= 60 * save_minutes:
                    save_state(run.state, trainer)
                    saved = time.monotonic()
                if stop.is_set() and not ended:
                    where = f"update {trainer.update} of {monitor.updates}"
                    raise SystemExit(f"stopped at {where}; the same command goes on from there")
    except NonFiniteLossError as error:
        raise SystemExit(f"{error}\nthe last good state is in {run.state}; a smaller --rate may help") from error
    except OSError as error:
        raise SystemExit(f"{error}\nmake room or choose another place; the same command then goes on") from error


def save_state(path: Path, trainer: DreamTrainer) -> None:
    """All that is needed to go on."""
    parts = (trainer.learner.tensors(), trainer.tensors())
    packed = [{name: tensor.cpu().contiguous() for name, tensor in part.items()} for part in parts]
    write_artifact(path, {name: safetensors.torch.save(part) for name, part in zip(STATE, packed, strict=True)})


def load_state(path: Path, trainer: DreamTrainer) -> None:
    """Go on from a state."""
    files = read_artifact(path, STATE)
    learner, rows = (safetensors.torch.load(files[name]) for name in STATE)
    try:
        trainer.learner.restore(learner)
        trainer.restore(rows)
    except ValueError as error:
        raise SystemExit(f"the run in {path.parent} cannot go on: {error}\nbegin again with --restart") from error


class AgentMonitor:
    """The bar, metrics.jsonl and TensorBoard."""

    def __init__(self, run: RunDirectory, trainer: DreamTrainer, updates: int) -> None:
        self.updates, self._trainer = updates, trainer
        done, config = trainer.update, trainer.learner.config
        self._steps = config.rows * config.horizon
        keep_until(run.metrics, done)
        self._lines = run.metrics.open("a", encoding="utf-8")
        self._board = open_board(run, done)
        self._recent: list[dict[str, float]] = []
        self._shown: dict[str, float] = {}
        total = updates * self._steps
        self._bar = tqdm(total=total, initial=done * self._steps, desc="imagined", unit="step", mininterval=1.0)

    def record(self, metrics: dict[str, float]) -> None:
        """One update."""
        self._recent.append(metrics)
        for name in SHOWN:
            if name in metrics:
                before = self._shown.get(name, metrics[name])
                self._shown[name] = before + 0.05 * (metrics[name] - before)
        self._bar.set_postfix({name: f"{value:.3g}" for name, value in self._shown.items()}, refresh=False)
        self._bar.update(self._steps)
        if len(self._recent) == EVERY or self._trainer.update == self.updates:
            self._write(average(self._recent))
            self._recent = []

    def close(self) -> None:
        """Close files and the bar."""
        self._bar.close()
        self._lines.close()
        if self._board is not None:
            self._board.close()

    def _write(self, means: dict[str, float]) -> None:
        update = self._trainer.update
        self._lines.write(json.dumps({"update": update, "imagined_steps": update * self._steps, **means}) + "\n")
        self._lines.flush()
        if self._board is not None:
            for name, value in means.items():
                self._board.add_scalar(f"agent/{name}", value, update)


def average(recent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of several updates, each metric over those that have it."""
    names = dict.fromkeys(name for metrics in recent for name in metrics)
    return {name: statistics.fmean(each[name] for each in recent if name in each) for name in names}


def keep_until(metrics: Path, update: int) -> None:
    """Drop the lines of updates that were lost when the run was killed, and will come again."""
    if not metrics.exists():
        return
    kept = []
    for text in metrics.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break  # cut off by the kill
        if line["update"] <= update:
            kept.append(text + "\n")
    metrics.write_text("".join(kept), encoding="utf-8")


def judge(args: Args, dream: Checkpoint, recipe: AgentRecipe, run: RunDirectory, player: Player) -> None:
    """What the agent is worth in the real environment, beside a random policy."""
    results = {}
    try:
        for name, policy in (("random", "random"), ("agent", player)):
            with bar(f"{name} plays", "episode") as progress:
                results[name] = play(args, dream, recipe, policy, progress)
            print(f"\n{name}\n{results[name].table()}")
        film(run.path / "episode.gif", dream, player, args)
    except ImportError as error:
        print(f"without the real game, what the agent is worth there stays open: {error}")
        return
    except ValueError as error:
        if dream.model.spec.source is not None:
            raise
        print(f"what the agent is worth for real stays open: {error}")
        return
    written = run.path / "results.json"
    written.write_bytes(dump_json(report(args, dream, recipe, results)))
    agent, random = (results[name].real.episode_return for name in ("agent", "random"))
    apart = "apart" if agent.low > random.high or random.low > agent.high else "not apart"
    print(f"real return {agent.mean:.2f} [{agent.low:.2f}, {agent.high:.2f}], ", end="")
    print(f"random {random.mean:.2f} [{random.low:.2f}, {random.high:.2f}]: 95 % intervals {apart}; {written}")


def play(args: Args, dream: Checkpoint, recipe: AgentRecipe, policy: Any, progress: Progress) -> Transfer:
    """Episodes of a policy, dreamed and real."""
    return transfer(
        policy,
        dream,
        obs_type=recipe.obs_type,
        episodes=args.episodes,
        num_envs=args.num_envs,
        seed=args.seed,
        deterministic=args.greedy,
        horizon=args.limit,
        temperature=args.temperature,
        max_episode_steps=args.max_episode_steps,
        progress=progress,
    )


def report(args: Args, dream: Checkpoint, recipe: AgentRecipe, results: Mapping[str, Transfer]) -> dict[str, Any]:
    """Scores, and how they were measured."""
    source = dream.model.spec.source
    assert source is not None  # it has been played
    sticky = source.kwargs.get("repeat_action_probability", source.kwargs.get("sticky_action_prob"))
    protocol = {
        "episodes": args.episodes,
        "actions": "most likely" if args.greedy else f"drawn at temperature {args.action_temperature:g}",
        "sticky_actions": sticky,
        "terminal_on_life_loss": source.options.get("terminal_on_life_loss"),
        "noop_max": source.options.get("noop_max"),
        "max_episode_steps": args.max_episode_steps,
        "interval": "95 % percentile bootstrap over episodes",
    }
    return {
        "dream": dream.path.name,
        "protocol": protocol,
        "learning": {"imagined_steps": args.steps, "real_steps": 0, "limit": args.limit, "seed": args.seed}
        | {"agent": to_json(recipe.agent), "learner": to_json(recipe.learning)},
        "transfer": {name: result.to_json() for name, result in results.items()},
        "command": command_line("train"),
    }


def film(path: Path, dream: Checkpoint, player: Player, args: Args) -> None:
    """A real episode of the agent as a GIF."""
    policy = player if player.obs_type == "rgb" else WatchingPolicy(player, dream.model, player.obs_type)
    env = dreamenvs.make_real(dream)
    torch.manual_seed(args.seed)
    episode = next(collect(env, policy, args.film_steps, args.seed))
    env.close()
    frames = to_rgb(episode.observations)
    scale = max(1, 160 // frames.shape[1])
    write_gif(path, np.repeat(np.repeat(frames, scale, 1), scale, 2), fps=15)
    print(f"a real episode, return {episode.rewards.sum():g}: {path}")


if __name__ == "__main__":
    main(parse(Args))
