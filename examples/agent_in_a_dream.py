"""The built-in agent learns in a dream of MinAtar Breakout, then plays the real game: pip install "dreamenvs[minatar]".

No real step is taken while it learns: rows of the dream go on from update to update, on tensors alone. Afterwards the
world model watches the real frames and shows the agent the same features as in the dream.
"""

from __future__ import annotations

import argparse

import torch
from tqdm import tqdm

import dreamenvs
from dreamenvs.agents.defaults import default_recipe
from dreamenvs.agents.dream_trainer import DreamTrainer
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.saving import build_agent
from dreamenvs.evaluation.transfer import transfer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="dreamenvs/STEPVQ-MinAtarBreakout-v0", help="which dream")
    parser.add_argument(
        "--updates", type=int, default=150, help="how often the agent learns, each time from 2,048 steps"
    )
    parser.add_argument("--episodes", type=int, default=100, help="episodes to measure a policy with")
    parser.add_argument("--limit", type=int, default=5_000, help="real steps after which an episode is cut")
    args = parser.parse_args()

    dream = dreamenvs.load(args.id)
    recipe = default_recipe(dream.family)  # which agent, and how it learns
    torch.manual_seed(0)
    agent = build_agent(recipe.agent, agent_spec(dream.model, recipe.obs_type))
    trainer = DreamTrainer(Learner(agent, recipe.learning, seed=0), dream.model, dream.contexts, limit=100)
    with tqdm(range(args.updates), desc="learning in the dream", unit="update") as bar:
        for _ in bar:
            metrics = trainer.advance()
            bar.set_postfix(dream_return=f"{metrics['dream_return']:.2f}", entropy=f"{metrics['entropy']:.2f}")

    path = dreamenvs.save_agent("agent", agent, dream=dream.path.name)
    player = dreamenvs.Player(dreamenvs.load_agent(path))  # Stable-Baselines3's `predict`
    try:
        for name, policy in (("random", "random"), ("dream-trained", player)):
            settings = {"obs_type": recipe.obs_type, "episodes": args.episodes, "horizon": 100}
            result = transfer(policy, dream, max_episode_steps=args.limit, **settings)  # type: ignore[arg-type]
            print(f"\nthe {name} policy\n{result.table()}")
    except ImportError as error:
        print(f"without the real game, what the agent is worth there stays open: {error}")


if __name__ == "__main__":
    main()
