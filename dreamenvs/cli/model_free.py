"""What PPO earns that learns from real steps alone: what a dream of as many real steps has to beat.

    python -m dreamenvs.cli.model_free --env MinAtar/Breakout-v1 --steps 20000 --seeds 0 1 2
    python -m dreamenvs.cli.model_free --env MinAtar/Breakout-v1 --steps 20000 --seeds 0 1 2 --frames
    python -m dreamenvs.cli.model_free --env ALE/Pong-v5 --steps 100000 --ppo.num-envs 4

In MinAtar it sees the game's own cells or, with --frames, what it sees elsewhere: the frames that dreams are fitted on.
Prints a table, with what each action earns that is taken always, and writes results.json.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

import dreamenvs
from dreamenvs.cli.progress import ppo_progress
from dreamenvs.cli.threads import use_threads
from dreamenvs.evaluation.episodes import PolicyLike, play
from dreamenvs.evaluation.results import text_table, to_json
from dreamenvs.evaluation.statistics import LEVEL, Estimate, estimate_mean
from dreamenvs.evaluation.transfer import MAX_EPISODE_STEPS
from dreamenvs.files.atomic_directory import dump_json
from dreamenvs.studies.baselines import PPOSettings, learn_for_real
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import choose_source, make_source


@dataclass(frozen=True)
class Args:
    """Let PPO learn from real steps alone."""

    env: str = "MinAtar/Breakout-v1"
    """A real environment."""
    steps: int = 20_000
    """Real steps to learn from."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each."""
    frames: bool = False
    """Show it the frames that dreams are fitted on, in MinAtar, too."""
    ppo: PPOSettings = field(default_factory=lambda: PPOSettings(num_envs=8, n_steps=64, batch_size=128, n_epochs=8))
    """How it learns."""
    episodes: int = 40
    """Episodes to measure a policy with."""
    num_envs: int = 20
    """How many of them are played side by side."""
    max_episode_steps: int = MAX_EPISODE_STEPS
    """Steps after which these are cut."""
    deterministic: bool = False
    """Let the trained policy take its most likely action."""
    out: Path | None = None
    """Where results.json goes; by default runs/model-free/<environment>-<own or frames>."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores."""


def main(args: Args) -> None:
    use_threads(args.threads)
    source = choose_source(args.env) if args.frames else own_view(args.env)
    runs: dict[str, dict[str, Estimate]] = {}
    for seed in args.seeds:
        with ppo_progress(f"PPO for real, seed {seed}", args.steps) as progress:
            trained = learn_for_real(source, args.steps, seed, args.ppo, progress)
        policies: dict[str, PolicyLike] = {"random": "random", "trained": trained}
        runs[str(seed)] = {name: judge(args, source, policy, seed) for name, policy in policies.items()}
    constant = {f"always {name}": judge(args, source, policy, args.seeds[0]) for name, policy in stubborn(source)}
    rows = [[f"{name}, seed {seed}", *estimate] for seed, each in runs.items() for name, estimate in each.items()]
    rows += [[name, *estimate] for name, estimate in constant.items()]
    print(f"\n{text_table(['policy', 'mean return', 'low', 'high'], rows)}")
    over_runs = estimate_mean(np.array([each["trained"].mean for each in runs.values()]), np.random.default_rng(0))
    print(f"mean over {len(runs)} runs: {over_runs.mean:.4g}; intervals: {LEVEL:.0%} bootstrap over episodes")
    view = "frames" if args.frames else "own"
    out = args.out or Path("runs") / "model-free" / f"{args.env.replace('/', '-')}-{view}"
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "command": f"python -m dreamenvs.cli.model_free {shlex.join(sys.argv[1:])}",
        "versions": {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]},
        "source": vars(source),
        "steps": args.steps,
        "ppo": vars(args.ppo),
        "runs": runs,
        "over_runs": over_runs,
        "constant": constant,
    }
    (out / "results.json").write_bytes(dump_json(to_json(results)))
    print(f"results are in {out}")


def own_view(env_id: str) -> SourceEnv:
    """The real environment as a player without a world model learns most easily."""
    cells = env_id.startswith("MinAtar/")
    return choose_source(env_id, drawing="channels" if cells else None, scale=1 if cells else None)


def stubborn(source: SourceEnv) -> Iterator[tuple[int, PolicyLike]]:
    """Players of one action each, where actions can be counted: what a policy earns that has learned nothing else."""
    env = make_source(source)
    actions = env.action_space
    env.close()
    for action in range(int(actions.n)) if isinstance(actions, gymnasium.spaces.Discrete) else ():
        yield action, partial(repeat, action)


def repeat(action: int, observations: Any) -> NDArray[np.int64]:
    """The same action in every row."""
    return np.full(len(observations), action)


def judge(args: Args, source: SourceEnv, policy: PolicyLike, seed: int) -> Estimate:
    """The mean return over episodes that nobody learned from."""

    def make() -> gymnasium.Env[Any, Any]:
        return TimeLimit(make_source(source), args.max_episode_steps)

    rows = min(args.num_envs, args.episodes)
    envs = SyncVectorEnv([make] * rows, autoreset_mode=AutoresetMode.NEXT_STEP)
    greedy = args.deterministic and policy != "random"
    played = play(envs, policy, args.episodes, seed=1_000_003 + seed, deterministic=greedy)
    envs.close()
    return estimate_mean(played.returns, np.random.default_rng(seed))


if __name__ == "__main__":
    main(tyro.cli(Args))
