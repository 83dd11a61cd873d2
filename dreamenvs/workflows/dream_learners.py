"""What learns in the dreams of rounds: PQN on tokens or latents, or Stable-Baselines3's PPO on latents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dreamenvs.agents.acting import Acting, ActingPolicy
from dreamenvs.agents.pqn import PQNConfig, learn_in_dream
from dreamenvs.agents.q_agent import QAgent
from dreamenvs.agents.saving import load_agent, save_agent
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.collect import EpsilonPolicy, Policy
from dreamenvs.dream import ObservationType
from dreamenvs.files.atomic_directory import is_artifact
from dreamenvs.models.actions import action_space
from dreamenvs.studies.baselines import PPOConfig, PPOProgress, explorer, learn


class RoundLearner(Protocol):
    """A learner of rounds."""

    obs_type: ObservationType
    horizon: int
    temperature: float

    def train(self, checkpoint: Checkpoint, steps: int, seed: int, place: Path, before: Path | None) -> Any:
        """A policy that learned in a dream; it is kept at `place`, and may continue from what is kept at `before`."""
        ...

    def explorer(self, policy: Any, checkpoint: Checkpoint, epsilons: tuple[float, ...], seed: int) -> Policy:
        """The policy on real frames, with a share of random actions drawn for each episode."""
        ...


class PPOLearner:
    """Stable-Baselines3's PPO, which begins anew in every round."""

    obs_type: ObservationType = "latent"

    def __init__(self, config: PPOConfig, report: PPOProgress | None = None) -> None:
        self.config, self.report = config, report
        self.horizon, self.temperature = config.horizon, config.temperature

    def train(self, checkpoint: Checkpoint, steps: int, seed: int, place: Path, before: Path | None) -> Any:
        return learn(checkpoint, steps, seed, self.config, progress=self.report)

    def explorer(self, policy: Any, checkpoint: Checkpoint, epsilons: tuple[float, ...], seed: int) -> Policy:
        return explorer(policy, checkpoint, action_space(checkpoint.model.spec.actions), epsilons, seed)


class PQNLearner:
    """PQN, which keeps its weights from round to round: patches never move, so that tokens keep their meaning."""

    temperature = 1.0

    def __init__(
        self,
        config: PQNConfig,
        *,
        horizon: int = 100,
        obs_type: ObservationType = "tokens",
        continued_epsilon: float = 0.3,
        report: PPOProgress | None = None,
    ) -> None:
        self.config, self.horizon, self.report = config, horizon, report
        self.obs_type: ObservationType = obs_type
        self.continued_epsilon = continued_epsilon
        """The share of random actions at first, where an agent continues."""

    def train(self, checkpoint: Checkpoint, steps: int, seed: int, place: Path, before: Path | None) -> Any:
        config, agent, report = self.config, None, self.report
        if before is not None and is_artifact(before):
            found = load_agent(before)
            if isinstance(found, QAgent):
                agent, config = found, replace(config, epsilon_start=self.continued_epsilon)
        player = learn_in_dream(
            checkpoint,
            steps,
            config,
            seed=seed,
            horizon=self.horizon,
            obs_type=self.obs_type,
            agent=agent,
            progress=None if report is None else lambda done, _: report(done, None),
        )
        save_agent(place, player.agent)
        return player

    def explorer(self, policy: Any, checkpoint: Checkpoint, epsilons: tuple[float, ...], seed: int) -> Policy:
        acting = ActingPolicy(Acting(policy.agent, checkpoint.model), temperature=0.0, seed=seed)
        return EpsilonPolicy(acting, action_space(checkpoint.model.spec.actions), epsilons, seed)
