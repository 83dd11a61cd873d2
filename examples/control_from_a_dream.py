"""PPO or SAC learns to swing up a pole in a dream, then does it for real: pip install "dreamenvs[sb3,dmc,train]".

No real step is taken while it learns, and actions are continuous. The real cartpole is drawn without a display; the
world model watches its frames and gives the policy the same features as in the dream. It leaves control.gif behind.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor
from tqdm import tqdm

import dreamenvs
from dreamenvs.data.collect import collect
from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.evaluation.episodes import play
from dreamenvs.evaluation.pictures import write_gif
from dreamenvs.evaluation.statistics import estimate_mean
from dreamenvs.worlds.dmc import RenderingError
from dreamenvs.worlds.real import make_real_vec
from dreamenvs.worlds.watching import WatchingPolicy

NET = {"net_arch": [256, 256]}
RECIPES: dict[str, Any] = {
    "ppo": lambda env: PPO(
        "MlpPolicy",
        env,
        lambda left: 5e-4 * left,
        n_steps=64,
        batch_size=1024,
        n_epochs=5,
        gamma=0.99,
        policy_kwargs=NET,
        seed=0,
        device="cpu",
    ),
    # One gradient step for every eight imagined ones: imagining is cheap.
    "sac": lambda env: SAC(
        "MlpPolicy", env, gradient_steps=8, learning_starts=2000, policy_kwargs=NET, seed=0, device="cpu"
    ),
}


class Progress(BaseCallback):
    """A progress bar with the time that is left and the return of the last imagined episodes."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.bar = tqdm(total=steps, desc="learning in the dream", unit="step", mininterval=0.5)

    def _on_step(self) -> bool:
        self.bar.update(min(self.training_env.num_envs, self.bar.total - self.bar.n))
        if self.n_calls % 50 == 0 and self.model.ep_info_buffer:
            recent = np.mean([episode["r"] for episode in self.model.ep_info_buffer])
            self.bar.set_postfix(dream_return=f"{recent:.1f}", refresh=False)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dream", nargs="?", default="dreamenvs/GITSTORM-CartpoleSwingup-v0", help="an id or a path")
    parser.add_argument("--algorithm", choices=RECIPES, default="ppo")
    parser.add_argument("--steps", type=int, default=500_000, help="imagined steps to learn from")
    parser.add_argument("--horizon", type=int, default=100, help="imagined steps of an episode")
    parser.add_argument("--episodes", type=int, default=20, help="real episodes of each policy")
    parser.add_argument("--limit", type=int, default=500, help="real steps after which an episode is cut")
    args = parser.parse_args()

    dream = dreamenvs.load(args.dream)
    env = VecMonitor(DreamVecEnv(dream, num_envs=64, obs_type="latent", horizon=args.horizon))
    policy = RECIPES[args.algorithm](env).learn(args.steps, callback=(progress := Progress(args.steps)))
    progress.bar.close()

    try:
        rows = min(8, args.episodes)
        for name in ("random", "dream-trained"):
            # Random actions need no model to watch.
            real = make_real_vec(
                dream, rows, obs_type="rgb" if name == "random" else "latent", max_episode_steps=args.limit
            )
            played = play(real, "random" if name == "random" else policy, args.episodes, deterministic=True)
            real.close()
            mean, low, high = estimate_mean(played.returns, np.random.default_rng(0))
            print(f"{name} policy, {args.episodes} real episodes: {mean:.1f}, 95 % interval {low:.1f} to {high:.1f}")
        watching = WatchingPolicy(policy, dream.model)
        episode = next(collect(dreamenvs.make_real(dream), watching, args.limit, seed=1))
        print("a real episode:", write_gif("control.gif", episode.observations[::2], fps=25))
    except (ImportError, RenderingError) as error:
        print(f"without the real task, what the policy is worth there stays open: {error}")


if __name__ == "__main__":
    main()
