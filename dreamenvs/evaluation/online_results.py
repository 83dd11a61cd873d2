"""What an online run reports: real episodes under a named protocol, in a file that depends on nothing but the run."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from dreamenvs.agents.acting import Acting, ActingPolicy
from dreamenvs.data.collect import collect
from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.episodes import Played, play
from dreamenvs.evaluation.results import to_json
from dreamenvs.evaluation.statistics import LEVEL, RESAMPLES, estimate_mean
from dreamenvs.files.atomic_directory import dump_json
from dreamenvs.types import SourceEnv
from dreamenvs.worlds.source import make_source

HELD_OUT_STEPS = 2_000
"""Real steps that the dream's fidelity is measured on, at the most."""
_EVALUATION, _FINAL, _HELD_OUT = 101, 102, 103  # apart from the purposes of the run itself


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How an agent is measured in the real environment."""

    episodes: int = 10
    """At each point of the curve."""
    final: int = 100
    """At the end."""
    temperature: float = 1.0
    """Of the policy; 0 takes its most likely action."""
    num_envs: int = 8
    max_episode_steps: int = 27_000
    """The longest Atari game at four frames a step."""


class Trial:
    """The agent in the real environment, at any point of a run."""

    def __init__(self, acting: Acting, source: SourceEnv, evaluation: Evaluation, seed: int) -> None:
        self.acting, self.source, self.evaluation, self.seed = acting, source, evaluation, seed

    def evaluate(self, number: int) -> dict[str, Any]:
        """A point of the curve."""
        played = self._play(self.evaluation.episodes, self._seed(_EVALUATION, number))
        return self._summary(played)

    def final(self) -> dict[str, Any]:
        """The result of the run, with every episode's return."""
        played = self._play(self.evaluation.final, self._seed(_FINAL, 0))
        summary = self._summary(played)
        estimate = {name: summary.pop(name) for name in ("mean", "low", "high")}
        return {"return": estimate, **summary, "returns": to_json(played.returns.tolist())}

    def protocol(self) -> dict[str, Any]:
        """How it was measured."""
        settings = {**self.source.kwargs, **self.source.options, "preprocessing": self.source.preprocessing}
        return {
            "env": self.source.id,
            "settings": settings,
            **asdict(self.evaluation),
            "policy": "the most likely action" if self.evaluation.temperature == 0 else "sampled",
            "watching": "the world model sees whole episodes, from their first frames on",
            "interval": f"{LEVEL:.0%} percentile bootstrap over episodes, {RESAMPLES:,} resamples",
        }

    def held_out(self) -> list[Episode]:
        """Episodes that nothing was fitted on, for the dream's fidelity; the agent plays them."""
        env = make_source(self.source)
        seed = self._seed(_HELD_OUT, 0)
        episodes = list(collect(env, ActingPolicy(self.acting, seed=seed), HELD_OUT_STEPS, seed))
        env.close()
        return episodes

    def _play(self, episodes: int, seed: int) -> Played:
        settings = self.evaluation

        def build() -> Any:
            return TimeLimit(make_source(self.source), settings.max_episode_steps)

        rows = min(settings.num_envs, episodes)
        envs = SyncVectorEnv([build] * rows, autoreset_mode=AutoresetMode.NEXT_STEP)
        policy = ActingPolicy(self.acting, temperature=settings.temperature, seed=seed)
        try:
            return play(envs, policy, episodes, seed=seed)
        finally:
            envs.close()

    def _summary(self, played: Played) -> dict[str, Any]:
        estimate = estimate_mean(played.returns, np.random.default_rng(self.seed))
        lengths = {"mean_length": float(played.lengths.mean()), "truncated": int(played.truncated.sum())}
        summary: dict[str, Any] = to_json({**estimate._asdict(), "episodes": len(played.returns), **lengths})
        return summary

    def _seed(self, purpose: int, number: int) -> int:
        return int(np.random.default_rng((self.seed, purpose, number)).integers(2**31))


def results_json(results: dict[str, Any]) -> bytes:
    """The file: no times, no paths, nothing that differs from one machine's clock to another's."""
    return dump_json(results)


def weights_digest(*modules: Any) -> str:
    """SHA-256 over all weights, by which two runs can be told apart or found equal."""
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
