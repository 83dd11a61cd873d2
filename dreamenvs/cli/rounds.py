"""Collect, fit, learn in the dream, collect again: each round's policy finds what the next round's dream must know.

    python training/rounds.py stepvq --env MinAtar/Breakout-v1 --rounds 5 --steps 20000

The first round plays at random (Pong's with a scripted tracker; see --policy), the others with PPO that learned in the
last dream, mixed with random moves. The tokenizer is fitted in the first round and then stays; the dynamics go on from
round to round. What is done is not done again: a command that was stopped goes on where it was, and one with more
rounds or other numbers adds to what is there.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

import dreamenvs
from dreamenvs.checkpoints.library import new_name, user_directory
from dreamenvs.checkpoints.world_model import LIMITS, Checkpoint
from dreamenvs.cli.collect import PolicyName, collect_into, default_policy
from dreamenvs.cli.fit import Bookkeeping, FitRecipe, fit_dream
from dreamenvs.cli.progress import ppo_progress
from dreamenvs.data.collect import EpsilonPolicy
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.transfer import Transfer, transfer
from dreamenvs.families import BY_SPELLING
from dreamenvs.files.atomic_directory import read_artifact, write_artifact
from dreamenvs.ids import world_name
from dreamenvs.models.actions import action_space
from dreamenvs.models.step_vq import StepVQConfig
from dreamenvs.models.two_stage import TwoStageOptimization
from dreamenvs.presets.world_models import model_config
from dreamenvs.studies.baselines import EXPLORATION, PPOConfig, explorer, learn
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import choose_source


@dataclass(frozen=True)
class Args:
    """Collect, fit, learn in the dream, and collect again."""

    family: Annotated[str, tyro.conf.Positional] = "stepvq"
    """Which family: stepvq, stepvqt, cb, cbt, iris, rem or deltairis."""
    env: str = "MinAtar/Breakout-v1"
    """The real environment."""
    preset: Literal["small", "cells", "local"] = "small"
    """Model sizes; `cells` has a token for each cell of MinAtar that depends on nothing else, `local` is for little
    things that move across a large screen."""
    init: str | None = None
    """A dream or the directory of a run, whose weights the first round starts from."""
    stale: float = 0.0
    """The share of the frames that the dynamics see with old tokens among the new, so that they learn to do without."""
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
    rows: int = 32
    """Segments in a batch that the dynamics learn from."""
    length: int = 32
    """Steps of these segments."""
    sampled: int = 32
    """Tokens per frame whose likelihood an update computes; 0 for all of them."""
    frame_weight: float = 1.0
    """Of the next frame's likelihood, a sum over its tokens, beside those of reward and termination. Lower it where
    these hang on what few tokens show, such as who meets whom: frames are learned without that."""
    exclusive: bool = False
    """Let what may appear in many places appear in turn rather than everywhere at once: for worlds with entrances."""
    ppo_steps: int = 300_000
    """Imagined steps of a round's policy."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How it learns."""
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
    threads: int = 1


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    family, world = BY_SPELLING[args.family], world_name(args.env)
    if not isinstance(model_config(family, args.preset).optimization, TwoStageOptimization):
        raise SystemExit(
            f"rounds fit the tokenizer once and the dynamics every time, while {args.family} is fitted all at once; "
            "use training/fit_world_model.py"
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
    report(args, out)
    print(f"saved {out}\ngymnasium.make({dreamenvs.register(out)!r}) dreams it")


def remember_command(run: Path) -> tuple[str, ...]:
    """All commands that the run was made with, this one included, for the cards."""
    run.mkdir(parents=True, exist_ok=True)
    file = run / "commands.txt"
    command = shlex.join(["python", "training/rounds.py", *sys.argv[1:]])
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


def learned(args: Args, dream: Path, seed: int) -> EpsilonPolicy:
    """PPO that learned in a dream, measured if asked for, on real frames and with random moves."""
    checkpoint = dreamenvs.load(dream)
    policy = train_policy(args, checkpoint, seed)
    if args.episodes:
        print(measure_transfer(args, policy, checkpoint, seed).table())
    return explorer(policy, checkpoint, action_space(checkpoint.model.spec.actions), args.epsilons, seed)


def train_policy(args: Args, checkpoint: Checkpoint, seed: int) -> Any:
    """PPO in a dream."""
    with ppo_progress("PPO in the dream", args.ppo_steps) as progress:
        return learn(checkpoint, args.ppo_steps, seed, args.ppo, progress=progress)


def measure_transfer(args: Args, policy: Any, checkpoint: Checkpoint, seed: int) -> Transfer:
    """What a policy earns in the dream, as it learned there, and for real."""
    return transfer(
        policy,
        checkpoint,
        obs_type="latent",
        episodes=args.episodes,
        seed=seed,
        horizon=args.ppo.horizon,
        temperature=args.ppo.temperature,
    )


def fit_round(args: Args, family: str, replay: Replay, run: Path, number: int, commands: tuple[str, ...]) -> None:
    """Fit this round's dream, from the weights of the round before."""
    config = model_config(family, args.preset)
    if isinstance(config, StepVQConfig):
        prior: Any = config.prior
        objective = replace(prior.objective, sampled=args.sampled, weight=args.frame_weight)
        chosen = {"exclusive": True} if args.exclusive else {}
        config = replace(config, prior=replace(prior, objective=objective, **chosen))
    turns = config.optimization
    updates = args.last_updates if number == args.rounds - 1 and args.last_updates else args.dynamics_updates
    turns = replace(
        turns,
        tokenizer=replace(turns.tokenizer, updates=args.tokenizer_updates if number == 0 else 0),
        dynamics=replace(turns.dynamics, updates=updates, rows=args.rows, length=args.length),
        stale=args.stale,
    )
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
        contexts=args.contexts,
        context_length=args.context_length,
        beginnings=args.beginnings,
    )
    fit_dream(recipe, replay, directory, dream_of(run, number), book)
    (directory / "done").touch()


def report(args: Args, dream: Path) -> None:
    """What a policy that learned in the last dream earns for real."""
    if args.episodes:
        checkpoint = dreamenvs.load(dream)
        policy = train_policy(args, checkpoint, args.seed)
        print(measure_transfer(args, policy, checkpoint, args.seed).table())


if __name__ == "__main__":
    main(tyro.cli(Args))
