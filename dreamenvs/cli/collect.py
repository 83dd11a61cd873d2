"""Collects real episodes into a replay, a new one or one that is there.

dreamenvs collect --env ALE/Pong-v5 --steps 60000 --out data/Pong --policy tracker --num-envs 4
dreamenvs collect --env dm_control/cartpole-swingup-v0 --steps 30000 --out data/Cartpole --policy swingup
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

import dreamenvs
from dreamenvs.cli.progress import ppo_progress
from dreamenvs.data.collect import AnyEnv, Policy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.ids import world_name
from dreamenvs.models.actions import action_space
from dreamenvs.types import Scalar, SourceEnv
from dreamenvs.workflows.collecting import PolicyName, build_policy, make_rows
from dreamenvs.worlds.dmc import Quality, RenderingError
from dreamenvs.worlds.players.pong import EPSILONS
from dreamenvs.worlds.source import choose_source, describe, make_source


@dataclass(frozen=True, kw_only=True)
class Args:
    """Collect real episodes into a replay."""

    env: str
    """A Gymnasium id, such as ALE/Pong-v5, MinAtar/Breakout-v1 or dm_control/cartpole-swingup-v0."""
    out: Path
    """The replay's directory; episodes are added to a replay of the same world."""
    steps: int = 60_000
    """Agent steps, over all episodes."""
    policy: PolicyName = "random"
    """`persistent` holds each random move for a while, and so gets to where single moves would take it back; `tracker`
    is a scripted player of ALE/Pong and of MinAtar's Breakout and Freeway with random bursts, `swingup` one of
    dm_control's cartpole."""
    dream: str | None = None
    """Instead of --policy: PPO that learned in this dream, an id or a path, mixed with random moves (needs sb3)."""
    ppo_steps: int = 400_000
    """Imagined steps that it learns from."""
    epsilons: tuple[float, ...] = EPSILONS
    """Shares of random moves in the play of `tracker` and `swingup`, one of which is drawn for each episode; low ones
    give rallies, and a pole that stands."""
    num_envs: int = 1
    """Environments that are played at once, in processes of their own when there are several."""
    seed: int = 0
    """Of the environment and the policy."""
    size: int | None = None
    """The side of the pictures, where an environment lets one choose; by default 64, or the environment's own."""
    life_loss: bool = False
    """Atari: a lost life ends the episode."""
    drawing: Literal["rgb", "channels"] | None = None
    """MinAtar: in colours, or with the game's own channels; by default in colours."""
    scale: int | None = None
    """MinAtar: the side of a cell in pixels; by default 4."""
    repeat: int | None = None
    """dm_control: control steps for each action; by default 2."""
    quality: Quality | None = None
    """dm_control: `full` has shadows, reflections and smooth edges; by default `fast`, which has none."""


class Summary(NamedTuple):
    """An episode without its frames."""

    rewards: NDArray[np.float32]
    actions: NDArray[Any]
    terminated: bool


def learn_policy(dream: str, source: SourceEnv, steps: int, seed: int) -> Policy:
    """A policy that learned in a dream, with random moves: the dream must be of the source's own world."""
    from dreamenvs.studies.baselines import (  # only here: collecting without a dream needs no Stable-Baselines3
        EXPLORATION,
        explorer,
        learn,
    )

    checkpoint = dreamenvs.load(dream)
    if checkpoint.model.spec.source != source:
        raise SystemExit(f"{dream} is of {checkpoint.model.spec.source}, not of {source}")
    space = action_space(checkpoint.model.spec.actions)
    with ppo_progress("PPO in the dream", steps) as progress:
        policy = learn(checkpoint, steps, seed, progress=progress)
    return explorer(policy, checkpoint, space, EXPLORATION, seed)


def named_policy(*choices: Any, **more: Any) -> Policy:
    """`build_policy`; what it refuses ends the command."""
    try:
        return build_policy(*choices, **more)
    except ValueError as error:
        raise SystemExit(str(error)) from error


def collect_into(
    replay: Replay | Path,
    source: SourceEnv,
    policy: Policy | PolicyName,
    steps: int,
    *,
    seed: int = 0,
    num_envs: int = 1,
    epsilons: tuple[float, ...] = EPSILONS,
    notes: Mapping[str, Scalar] | None = None,
    bar: bool = True,
) -> Replay:
    """Append `steps` real steps of a source to a replay, and report; a directory is opened or becomes a new replay.

    The policy is named, or anything with the `predict` of Stable-Baselines3.
    """
    env = make_source(source)
    spec = describe(env, world=world_name(source.id), source=source)
    name = policy if isinstance(policy, str) else type(policy).__name__
    if isinstance(replay, Path) and (replay / "index.json").exists():
        replay = Replay.open(replay)
    if isinstance(replay, Replay):
        if replay.spec != spec:
            raise SystemExit(f"{replay.directory} holds another world: {'; '.join(differences(replay.spec, spec))}")
        named = isinstance(policy, str)
        if named and any((note.get("policy"), note.get("seed")) == (name, seed) for note in replay.notes):
            raise SystemExit(f"{replay.directory} has these episodes already: {name}, seed {seed}; choose another seed")
    rows: AnyEnv = make_rows(source, num_envs) if num_envs > 1 else env
    summaries: list[Summary] = []
    try:
        if isinstance(policy, str):
            policy = named_policy(policy, source.id, env.action_space, seed, epsilons, rows)
        replay = replay if isinstance(replay, Replay) else Replay.create(replay, spec)
        with tqdm(total=steps, unit="step", mininterval=1.0, disable=not bar) as progress:
            episodes = collect(rows, Ticking(policy, progress), steps, seed)
            replay.append(summarise(episodes, summaries, progress), {"policy": name, "seed": seed, **(notes or {})})
    finally:
        rows.close()
        if rows is not env:
            env.close()
    report(summaries)
    print(replay.budget())
    return replay


def differences(old: Any, new: Any, where: str = "spec") -> list[str]:
    """Where two specs differ, and how."""
    if is_dataclass(old) and not isinstance(old, type) and type(old) is type(new):
        names = [field.name for field in fields(old)]
        return [
            line for name in names for line in differences(getattr(old, name), getattr(new, name), f"{where}.{name}")
        ]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{where}.{key}")]
    return [] if old == new else [f"{where} is {old!r} there and {new!r} here"]


class Ticking:
    """A policy that moves a progress bar."""

    def __init__(self, policy: Policy, progress: Any) -> None:
        self.policy, self.progress = policy, progress

    def predict(
        self, observation: NDArray[np.uint8], state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        """Whatever the policy does."""
        self.progress.update(min(len(observation), self.progress.total - self.progress.n))
        return self.policy.predict(observation, state, episode_start, deterministic)


def summarise(episodes: Iterator[Episode], summaries: list[Summary], progress: Any) -> Iterator[Episode]:
    """Pass episodes on, keeping what the report needs."""
    for episode in episodes:
        summaries.append(Summary(episode.rewards, episode.actions, bool(episode.terminated[-1])))
        progress.set_postfix(episodes=len(summaries), last_return=episode.total_reward, refresh=False)
        yield episode


def report(episodes: list[Summary]) -> None:
    """Print what was collected."""
    if not episodes:
        return
    rewards = np.concatenate([episode.rewards for episode in episodes])
    returns = np.array([episode.rewards.sum() for episode in episodes])
    print(f"{len(episodes)} episodes, {len(rewards)} steps, {sum(e.terminated for e in episodes)} terminated")
    print(f"returns: {returns.mean():.2f} ± {returns.std():.2f}, from {returns.min():g} to {returns.max():g}")
    print(f"rewards: {(rewards > 0).mean():.3%} positive, {(rewards < 0).mean():.3%} negative")
    actions = np.concatenate([episode.actions for episode in episodes])
    if actions.ndim == 1:
        print(f"actions: {' '.join(f'{share:.3f}' for share in np.bincount(actions) / len(actions))}")
    else:
        print(f"actions: means {actions.mean(0).round(3).tolist()}, deviations {actions.std(0).round(3).tolist()}")


def main(args: Args) -> None:
    """Collect, save and report."""
    source = choose_source(
        args.env,
        size=args.size,
        life_loss=args.life_loss,
        drawing=args.drawing,
        scale=args.scale,
        repeat=args.repeat,
        quality=args.quality,
    )
    policy: Policy | PolicyName = args.policy
    notes: dict[str, Scalar] = {}
    if args.dream is not None:
        policy = learn_policy(args.dream, source, args.ppo_steps, args.seed)
        notes = {"dream": args.dream, "ppo_steps": args.ppo_steps}
    try:
        collect_into(
            args.out,
            source,
            policy,
            args.steps,
            seed=args.seed,
            num_envs=args.num_envs,
            notes=notes,
            epsilons=args.epsilons,
        )
    except RenderingError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(tyro.cli(Args))
