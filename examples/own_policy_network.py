"""A policy network of your own learns in a dream: any actor and critic that take the world model's features.

Here each reads the features of a frame and of what the model remembers by itself, before both are mixed. Everything
else, from λ-returns to playing, stays as it is.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor, nn
from tqdm import tqdm

import dreamenvs
from dreamenvs.agents.critic_outputs import TwoHotValues
from dreamenvs.agents.defaults import default_recipe
from dreamenvs.agents.dream_trainer import DreamTrainer
from dreamenvs.agents.latent_actor_critic import LatentAgent
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.evaluation.episodes import play
from dreamenvs.models.actions import ActionChoice


class TwoStreams(nn.Module):
    """The frame's latent (…, L) and the sequence model's hidden (…, F - L), each through its own layer."""

    def __init__(self, latent: int, hidden: int, units: int, outputs: int) -> None:
        super().__init__()
        self.latent, self.hidden = nn.Linear(latent, units), nn.Linear(hidden, units)
        self.mix = nn.Sequential(nn.LayerNorm(2 * units), nn.SiLU(), nn.Linear(2 * units, units), nn.SiLU())
        self.output = nn.Linear(units, outputs)
        nn.init.zeros_(self.output.weight)  # a policy that begins uniform, a critic that begins at zero
        nn.init.zeros_(self.output.bias)
        self.split = [latent, hidden]

    def forward(self, features: Tensor) -> Tensor:
        latent, hidden = torch.split(features, self.split, -1)
        outputs: Tensor = self.output(self.mix(torch.cat([self.latent(latent), self.hidden(hidden)], -1)))
        return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="dreamenvs/STEPVQ-MinAtarBreakout-v0", help="which dream")
    parser.add_argument("--updates", type=int, default=300, help="how often the agent learns")
    parser.add_argument("--rows", type=int, default=64, help="dreams side by side")
    parser.add_argument("--episodes", type=int, default=50, help="dreamed episodes to measure a policy with")
    args = parser.parse_args()

    dream = dreamenvs.load(args.id)
    spec = agent_spec(dream.model, "latent")
    hidden = dream.model.sequence.width  # type: ignore[attr-defined]
    sizes = {"latent": spec.num_features - hidden, "hidden": hidden, "units": 128}
    torch.manual_seed(0)
    actor = TwoStreams(**sizes, outputs=ActionChoice(spec.actions).outputs)
    agent = LatentAgent(spec, actor, TwoStreams(**sizes, outputs=TwoHotValues.outputs))
    config = replace(default_recipe(dream.family).learning, rows=args.rows)
    trainer = DreamTrainer(Learner(agent, config), dream.model, dream.contexts)
    for _ in tqdm(range(args.updates), desc="learning in the dream", unit="update"):
        trainer.advance()

    envs = DreamVectorEnv(min(10, args.episodes), checkpoint=dream, obs_type="latent", horizon=100)
    for name, policy in (("random", "random"), ("own network", dreamenvs.Player(agent))):
        played = play(envs, policy, args.episodes)  # type: ignore[arg-type]
        print(f"{name}: dreamed return {played.returns.mean():.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
