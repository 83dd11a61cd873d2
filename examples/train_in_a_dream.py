"""PPO learns in a dream of MinAtar Breakout, then plays the real game: pip install "dreamenvs[sb3,minatar,train]".

No real step is taken while it learns; then the world model watches the real frames. Leaves dream.png and dream.gif.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor
from tqdm import tqdm

import dreamenvs
from dreamenvs.data.collect import collect
from dreamenvs.envs.sb3 import DreamVecEnv
from dreamenvs.evaluation.open_loop import imagine_beside
from dreamenvs.evaluation.pictures import side_by_side, write_gif
from dreamenvs.evaluation.transfer import Transfer, transfer
from dreamenvs.worlds.watching import WatchingPolicy

DREAM: dict[str, Any] = {"obs_type": "latent", "horizon": 70}  # short dreams, for errors add up


class Progress(BaseCallback):
    """A progress bar with the time that is left, and the learning curve."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.bar = tqdm(total=steps, desc="PPO in the dream", unit="step", mininterval=0.5)
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        self.bar.update(min(self.training_env.num_envs, self.bar.total - self.bar.n))
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        self.curve.append((self.num_timesteps, float(np.mean(returns)) if returns else np.nan))
        self.bar.set_postfix(dream_return=f"{self.curve[-1][1]:.2f}", refresh=False)


def film(policy: PPO, dream: Any, steps: int) -> None:
    """A real game of the policy, and the dream from the same first frame under the same actions."""
    episode = next(collect(dreamenvs.make_real(dream), WatchingPolicy(policy, dream.model), steps, seed=1))
    frames = side_by_side(*imagine_beside(dream.model, episode, context=1, horizon=steps))
    print("reality on the left, the dream on the right:", write_gif("dream.gif", frames, fps=10))


def plot(curve: list[tuple[int, float]], scores: dict[str, Transfer]) -> None:
    """The learning curve, and the returns with their intervals."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*np.array(curve).T)
    left.set(title="learning in the dream", xlabel="imagined steps", ylabel="return of imagined episodes")
    for place, (name, result) in enumerate(scores.items()):
        means, low, high = np.array([result.dream.episode_return, result.real.episode_return]).T
        spread = np.nan_to_num([means - low, high - means])
        right.bar(np.arange(2) + 0.4 * place, means, 0.4, yerr=spread, capsize=4, label=name)
        right.legend(title="policy")
    right.set(title="mean return", xticks=[0.2, 1.2], xticklabels=["dream", "real game"])
    figure.savefig("dream.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="dreamenvs/STEPVQ-MinAtarBreakout-v0", help="which dream")
    parser.add_argument("--steps", type=int, default=500_000, help="imagined steps to learn from")
    parser.add_argument("--seed", type=int, default=0, help="of PPO")
    parser.add_argument("--episodes", type=int, default=100, help="episodes to measure a policy with")
    parser.add_argument("--limit", type=int, default=5_000, help="real steps after which an episode is cut")
    args = parser.parse_args()

    dream = dreamenvs.load(args.id)
    env, net = VecMonitor(DreamVecEnv(dream, num_envs=64, **DREAM)), {"net_arch": [128, 128]}
    recipe: dict[str, Any] = {"n_steps": 64, "batch_size": 1024, "n_epochs": 4, "gamma": 0.98, "ent_coef": 0.01}
    policy = PPO("MlpPolicy", env, lambda left: 1e-3 * left, policy_kwargs=net, seed=args.seed, device="cpu", **recipe)
    policy.learn(args.steps, callback=(progress := Progress(args.steps)))
    progress.bar.close()

    scores = {}
    try:
        for name in ("random", "dream-trained"):
            settings = {"episodes": args.episodes, "max_episode_steps": args.limit, "deterministic": True, **DREAM}
            scores[name] = transfer("random" if name == "random" else policy, dream, **settings)
            print(f"\nthe {name} policy\n{scores[name].table()}")
        film(policy, dream, steps=200)
    except ImportError as error:
        print(f"without the real game, what the policy is worth there stays open: {error}")
    plot(progress.curve, scores)
    print("how it learned and what it earns: dream.png")


if __name__ == "__main__":
    main()
