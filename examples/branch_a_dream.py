"""Plan by branching: try sixteen futures of one moment in a single batch, then take the first action of the best."""

from __future__ import annotations

import argparse

import numpy as np

from dreamenvs.envs.vector import DreamVectorEnv

ID = "dreamenvs/STEPVQ-Pong-v0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=5, help="actions to plan")
    parser.add_argument("--depth", type=int, default=20, help="imagined steps of a branch")
    args = parser.parse_args()

    branches = 16
    world = DreamVectorEnv(1, checkpoint=ID, obs_type="tokens", horizon=1_000)
    planner = DreamVectorEnv(branches, checkpoint=ID, obs_type="tokens", horizon=1_000)
    planner.action_space.seed(0)
    world.reset(seed=0)
    planner.reset(seed=0)
    for move in range(args.moves):
        # One row of the world becomes every row of the planner, randomness included.
        planner.restore(world.snapshot(), rows=range(branches), source=[0] * branches)
        plans = np.stack([planner.action_space.sample() for _ in range(args.depth)])
        returns, running = np.zeros(branches), np.ones(branches, dtype=bool)
        for actions in plans:
            _, rewards, terminated, truncated, _ = planner.step(actions)
            returns += rewards * running
            running &= ~(terminated | truncated)
        best = int(returns.argmax())
        _, reward, *_ = world.step(plans[0, best : best + 1])
        print(f"move {move}: action {plans[0, best]}, best branch {returns[best]:+.3f}, reward {reward[0]:+.3f}")


if __name__ == "__main__":
    main()
