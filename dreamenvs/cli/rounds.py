"""Collect, fit, learn in the dream, collect again: each round's policy finds what the next round's dream must know.

    dreamenvs rounds stepvq --env MinAtar/Breakout-v1 --rounds 5 --steps 20000

    dreamenvs rounds grid --env MinAtar/Asterix-v1 --rounds 3 --steps 40000 --policy explorer

The first round plays at random (Pong's with a scripted tracker; see --policy), the others with what learned in the
last dream, mixed with random moves: PQN, which keeps its weights, where actions are discrete and the family is GRID,
and Stable-Baselines3's PPO elsewhere. The tokenizer is fitted in the first round and then stays; the dynamics continue
from round to round. What is done is not done again: a command that was stopped resumes where it was, and one with more
rounds or other numbers adds to what is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import dreamenvs
from dreamenvs.agents.pqn import PQNConfig
from dreamenvs.checkpoints.library import new_name, user_directory
from dreamenvs.checkpoints.world_model import LIMITS, Checkpoint
from dreamenvs.cli.collect import collect_into
from dreamenvs.cli.command_line import command_line
from dreamenvs.cli.fit import Bookkeeping, fit_dream
from dreamenvs.cli.progress import ppo_progress
from dreamenvs.cli.threads import use_threads
from dreamenvs.data.collect import Policy
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.transfer import Transfer, transfer
from dreamenvs.families import BY_SPELLING
from dreamenvs.files.atomic_directory import read_artifact, write_artifact
from dreamenvs.ids import world_name
from dreamenvs.models.frame_level import JointOptimization
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.presets.world_models import model_config
from dreamenvs.studies.baselines import EXPLORATION, PPOConfig
from dreamenvs.types import DiscreteActions, SourceEnv
from dreamenvs.workflows.collecting import PolicyName, default_policy
from dreamenvs.workflows.dream_learners import PPOLearner, PQNLearner, RoundLearner
from dreamenvs.workflows.fitting import Contexts, FitRecipe
from dreamenvs.worlds.source import choose_source


@dataclass(frozen=True)
class Args:
    """Collect, fit, learn in the dream, and collect again."""

    family: Annotated[str, tyro.conf.Positional] = "stepvq"
    """Which family: grid, stepvq, stepvqt, cb, cbt, iris, rem or deltairis."""
    env: str = "MinAtar/Breakout-v1"
    """The real environment."""
    preset: Literal["small", "cells", "patches", "vq"] = "small"
    """Model sizes; `cells` has a token for each cell of MinAtar that depends on nothing else; `patches` is GRID's for
    screens with hundreds of different patches, and `vq` for pictures of any other kind."""
    init: str | None = None
    """A dream or the directory of a run, whose weights the first round starts from."""
    stale: float | None = None
    """The share of the frames that the dynamics see with old tokens among the new, so that they learn to do without; by
    default the preset's."""
    rounds: int = 5
    """How often."""
    steps: int = 20_000
    """Real steps of a round."""
    policy: PolicyName | None = None
    """Who plays the first round: by default the tracker in ALE/Pong, held random actions in dm_control, random ones
    elsewhere."""
    tokenizer_updates: int = 1500
    """Of the first round."""
    dynamics_updates: int = 1500
    """Of every round."""
    last_updates: int | None = None
    """Of the dynamics in the last round; by default as in the others."""
    rows: int | None = None
    """Segments in a batch that the dynamics learn from; by default the preset's."""
    length: int | None = None
    """Steps of these segments."""
    frame_weight: float = 1.0
    """Of the next frame's likelihood, a sum over its tokens, beside those of reward and termination. Lower it where
    these hang on what few tokens show, such as who meets whom: frames are learned without that."""
    ppo_steps: int = 300_000
    """Imagined steps of a round's policy."""
    learner: Literal["auto", "pqn", "ppo"] = "auto"
    """What learns in the dreams: by default PQN in those of GRID with discrete actions, and PPO in others."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How PPO learns."""
    pqn: PQNConfig = field(default_factory=PQNConfig)
    """How PQN learns."""
    pqn_horizon: int = 100
    """Imagined steps after which PQN's episodes are truncated."""
    epsilons: tuple[float, ...] = EXPLORATION
    """Shares of random moves in its real episodes, one of which is drawn for each."""
    num_envs: int = 16
    """Real episodes that are played side by side."""
    contexts: int = 128
    """Start contexts to put into a dream."""
    beginnings: float = 0.5
    """The share of them that are beginnings of episodes; few where an episode is long and begins always alike."""
    context_length: int = 1
    """Frames in each of them: as many as it takes to see what moves."""
    life_loss: bool = False
    """Atari: a lost life ends the episode."""
    episodes: int = 20
    """Real episodes in which each policy is measured; 0 for none."""
    name: str | None = None
    """The run is kept in runs/<name>."""
    out: Path | None = None
    """The last dream's directory; by default in the user's data directory, where gym.make finds it."""
    seed: int = 0
    threads: int | None = None


def main(args: Args) -> None:
    use_threads(args.threads)
    family, world = BY_SPELLING[args.family], world_name(args.env)
    if isinstance(model_config(family, args.preset).optimization, JointOptimization):
        raise SystemExit(
            f"rounds fit the tokenizer once and the dynamics every time, while {args.family} is fitted all at once; "
            "use dreamenvs fit"
        )
    run = Path("runs") / (args.name or f"{family}-{world}-rounds")
    out = args.out or user_directory() / new_name(family, world)
    source = choose_source(args.env, life_loss=args.life_loss)
    commands = remember_command(run)
    for number in range(args.rounds):
        print(f"\nround {number + 1} of {args.rounds}")
        replay = collect_round(args, run, source, number)
        fit_round(args, family, replay, run, number, commands)
    write_artifact(out, read_artifact(dream_of(run, args.rounds - 1), LIMITS))
    report(args, dream_of(run, args.rounds - 1))
    print(f"saved {out}\ngymnasium.make({dreamenvs.register(out)!r}) dreams it")


def remember_command(run: Path) -> tuple[str, ...]:
    """All commands that the run was made with, this one included, for the cards."""
    run.mkdir(parents=True, exist_ok=True)
    file = run / "commands.txt"
    command = command_line("rounds")
    before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    commands = before if command in before else [*before, command]
    file.write_text("".join(line + "\n" for line in commands), encoding="utf-8")
    return tuple(commands)


def dream_of(run: Path, number: int) -> Path:
    """Where the dream of a round is kept."""
    return run / f"round{number}" / "dream"


def collect_round(args: Args, run: Path, source: SourceEnv, number: int) -> Replay:
    """The replay with the episodes of this round, played by the policy of the round before."""
    directory, seed = run / "data", args.seed + 1000 * number
    if (directory / "index.json").exists() and holds(replay := Replay.open(directory), number):
        return replay
    if number == 0:
        policy: Any = args.policy or default_policy(args.env)
    else:
        policy = learned(args, dream_of(run, number - 1), seed)
    return collect_into(
        directory, source, policy, args.steps, seed=seed, num_envs=args.num_envs, notes={"round": number}
    )


def holds(replay: Replay, number: int) -> bool:
    """Whether a replay has the episodes of a round; whatever was collected beforehand stands for the first."""
    return len(replay) > 0 if number == 0 else any(note.get("round") == number for note in replay.notes)


def learned(args: Args, dream: Path, seed: int) -> Policy:
    """What learned in a dream, measured if asked for, on real frames and with random moves."""
    checkpoint = dreamenvs.load(dream)
    policy = train_policy(args, checkpoint, dream, seed)
    if args.episodes:
        print(measure_transfer(args, policy, checkpoint, seed).table())
    return build_learner(args, checkpoint).explorer(policy, checkpoint, args.epsilons, seed)


def build_learner(args: Args, checkpoint: Checkpoint, report: Any = None) -> RoundLearner:
    """What learns in the dreams of these rounds."""
    discrete = isinstance(checkpoint.model.spec.actions, DiscreteActions)
    fitting = discrete and checkpoint.family == "GRID"
    if args.learner == "pqn" or (args.learner == "auto" and fitting):
        obs_type: Any = "tokens" if checkpoint.family == "GRID" else "latent"
        return PQNLearner(args.pqn, horizon=args.pqn_horizon, obs_type=obs_type, report=report)
    return PPOLearner(args.ppo, report)


def train_policy(args: Args, checkpoint: Checkpoint, dream: Path, seed: int) -> Any:
    """A policy that learned in the dream of a round, kept beside it; it may continue from that of the round before."""
    number = int(dream.parent.name.removeprefix("round"))
    before = dream_of(dream.parent.parent, number - 1).parent / "agent" if number else None
    with ppo_progress("learning in the dream", args.ppo_steps) as progress:
        learner = build_learner(args, checkpoint, progress)
        return learner.train(checkpoint, args.ppo_steps, seed, dream.parent / "agent", before)


def measure_transfer(args: Args, policy: Any, checkpoint: Checkpoint, seed: int) -> Transfer:
    """What a policy earns in the dream, as it learned there, and for real."""
    learner = build_learner(args, checkpoint)
    return transfer(
        policy,
        checkpoint,
        obs_type=learner.obs_type,
        episodes=args.episodes,
        seed=seed,
        horizon=learner.horizon,
        temperature=learner.temperature,
    )


def fit_round(args: Args, family: str, replay: Replay, run: Path, number: int, commands: tuple[str, ...]) -> None:
    """Fit this round's dream, from the weights of the round before."""
    config = model_config(family, args.preset)
    if isinstance(config, StepVQConfig):
        prior: Any = config.prior
        config = replace(config, prior=replace(prior, objective=replace(prior.objective, weight=args.frame_weight)))
    turns = config.optimization
    updates = args.last_updates if number == args.rounds - 1 and args.last_updates else args.dynamics_updates
    rows, length = args.rows or turns.dynamics.rows, args.length or turns.dynamics.length
    turns = replace(turns, dynamics=replace(turns.dynamics, updates=updates, rows=rows, length=length))
    if isinstance(turns, TwoStageOptimization):
        tokenizer = replace(turns.tokenizer, updates=args.tokenizer_updates if number == 0 else 0)
        turns = replace(turns, tokenizer=tokenizer)
    if args.stale is not None:
        turns = replace(turns, stale=args.stale)
    directory = run / f"round{number}"
    if (directory / "done").exists():
        return
    recipe = FitRecipe(
        family=family,
        config=replace(config, optimization=turns),
        seed=args.seed + number,
        init=str(run / f"round{number - 1}") if number else args.init,
    )
    arguments = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(args).items()}
    book = Bookkeeping(
        arguments=arguments,
        commands=commands,
        contexts=Contexts(count=args.contexts, length=args.context_length, beginnings=args.beginnings),
    )
    fit_dream(recipe, replay, directory, dream_of(run, number), book)
    (directory / "done").touch()


def report(args: Args, dream: Path) -> None:
    """What a policy that learned in the last dream earns for real."""
    if args.episodes:
        checkpoint = dreamenvs.load(dream)
        policy = train_policy(args, checkpoint, dream, args.seed)
        print(measure_transfer(args, policy, checkpoint, args.seed).table())


if __name__ == "__main__":
    main(tyro.cli(Args))
