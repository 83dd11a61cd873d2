"""Collects real episodes.

python training/collect.py --env ALE/Pong-v5 --steps 60000 --out data/pong --policy tracker
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from policies import PongTracker
from tqdm import tqdm

from dreamenvs.data.collect import Policy, collect, random_policy
from dreamenvs.data.episode import Episode
from dreamenvs.data.storage import save_episodes
from dreamenvs.envs.catalog import WORLDS
from dreamenvs.envs.source import default_source, describe, make_source


@dataclass(frozen=True, kw_only=True)
class Args:
    """Collect real episodes."""

    env: str
    """A Gymnasium id, such as ALE/Pong-v5, MinAtar/Breakout-v1 or dm_control/cartpole-swingup-v0."""
    out: Path
    """A new directory for the episodes."""
    steps: int = 60_000
    """Agent steps, over all episodes."""
    policy: Literal["random", "tracker"] = "random"
    """`tracker` is a scripted player of ALE/Pong with random bursts."""
    seed: int = 0


def world_name(env_id: str) -> str:
    """The name of a world in dream ids: Pong for ALE/Pong-v5."""
    known = {known_id: world for world, known_id in WORLDS.items()}
    return known.get(env_id) or re.sub(r"-v\d+$|[^A-Za-z0-9]", "", env_id.rpartition("/")[2])


class Summary(NamedTuple):
    """An episode without its frames."""

    rewards: NDArray[np.float32]
    actions: NDArray[Any]
    terminated: bool


def with_bar(episodes: Iterator[Episode], steps: int, summaries: list[Summary]) -> Iterator[Episode]:
    """Pass episodes on, moving a progress bar and keeping what the report needs."""
    with tqdm(total=steps, unit="step", mininterval=1.0) as bar:
        for episode in episodes:
            summaries.append(Summary(episode.rewards, episode.actions, bool(episode.terminated[-1])))
            bar.set_postfix(episodes=len(summaries), last_return=episode.total_reward, refresh=False)
            bar.update(len(episode))
            yield episode


def report(episodes: list[Summary], labels: list[float]) -> None:
    """Print what was collected, also by the labels of the episodes if they have any."""
    rewards = np.concatenate([episode.rewards for episode in episodes])
    print(f"{len(episodes)} episodes, {len(rewards)} steps, {sum(e.terminated for e in episodes)} terminated")
    print(f"rewards: {(rewards > 0).mean():.3%} positive, {(rewards < 0).mean():.3%} negative")
    actions = np.concatenate([episode.actions for episode in episodes])
    if actions.ndim == 1:
        print(f"actions: {np.bincount(actions) / len(actions)}")
    for label in sorted(set(labels)):
        returns = [e.rewards.sum() for e, own in zip(episodes, labels, strict=True) if own == label]
        print(f"epsilon {label}: {len(returns)} episodes, return {np.mean(returns):.1f} ± {np.std(returns):.1f}")


def main(args: Args) -> None:
    """Collect, save and report."""
    source = default_source(args.env)
    env = make_source(source)
    if args.policy == "tracker" and not args.env.startswith("ALE/Pong-"):
        raise SystemExit(f"the tracker plays ALE/Pong only, not {args.env}; use --policy random")
    policy: Policy = PongTracker() if args.policy == "tracker" else random_policy(env.action_space)
    summaries: list[Summary] = []
    episodes = with_bar(collect(env, policy, args.steps, args.seed), args.steps, summaries)
    spec = describe(env, world=world_name(args.env), source=source)
    save_episodes(args.out, episodes, spec, {"policy": args.policy, "seed": args.seed, "steps": args.steps})
    env.close()
    report(summaries, policy.history if isinstance(policy, PongTracker) else [])


if __name__ == "__main__":
    main(tyro.cli(Args))
