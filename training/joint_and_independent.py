"""What the same learner makes of one dream whose frames are drawn jointly, or each token by itself.

    python training/joint_and_independent.py dreamenvs/GRID-MinAtarAsterix-v0 --steps 200000 --seeds 3

It prints returns in the dream and for real, for each seed of PQN, as a table for the documentation. The world model is
the same in all rows: only how it is drawn from differs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import tyro

import dreamenvs
from dreamenvs.agents.pqn import learn_in_dream
from dreamenvs.evaluation.transfer import transfer
from dreamenvs.priors.raster import RasterPrior


@dataclass(frozen=True)
class Args:
    """Learn in a dream twice, and play the real game."""

    dream: Annotated[str, tyro.conf.Positional]
    """An id or a path; its prior must be a joint one."""
    steps: int = 200_000
    """Imagined steps of each learner."""
    seeds: int = 3
    """Learners of each kind."""
    episodes: int = 50
    """Real episodes that each plays."""
    horizon: int = 100
    """Steps of a dream."""
    threads: int = 1
    """Of torch."""


def main(args: Args) -> None:
    """Print a row for every learner."""
    torch.set_num_threads(args.threads)
    checkpoint = dreamenvs.load(args.dream)
    prior: Any = checkpoint.model.prior  # type: ignore[attr-defined]
    if not isinstance(prior, RasterPrior):
        raise SystemExit(f"{args.dream} draws no frames jointly: its prior is a {type(prior).__name__}")
    given = prior.config
    limit = f"at most {args.horizon} steps"
    print(f"| frames | seed | dream, {limit} | real, {limit} | real, whole | steps/s |")
    print("|---|---|---|---|---|---|")
    for joint in (False, True):
        prior.config = replace(given, joint=joint)
        for seed in range(args.seeds):
            begin = time.perf_counter()
            player = learn_in_dream(checkpoint, args.steps, seed=seed, horizon=args.horizon)
            rate = args.steps / (time.perf_counter() - begin)
            found = transfer(
                player, checkpoint, obs_type="tokens", episodes=args.episodes, seed=seed, horizon=args.horizon
            )
            columns = [found.dream.episode_return, found.real_early, found.real.episode_return]
            shown = " | ".join(f"{each.mean:.2f} [{each.low:.2f}, {each.high:.2f}]" for each in columns)
            print(f"| {'joint' if joint else 'independent'} | {seed} | {shown} | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args))
