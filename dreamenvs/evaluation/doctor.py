"""The doctor: says whether a dream is worth training in, and if not, why and what to try.

What unmasks a dream comes first: what is conserved is counted, then what random play earns, then what a strong learner
finds, then rewards and ends one step ahead, then the imagined step from which on frames stop looking real. Token
accuracy comes last: a dream with 0.997 may pay twenty times what the game pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from dreamenvs.agents.player import Player
from dreamenvs.agents.pqn import PQNConfig, learn_in_dream
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.dream import Dream, ObservationType, observe_contexts
from dreamenvs.envs.vector import DreamVectorEnv
from dreamenvs.evaluation.conservation import Conservation, Rates, build_counter, conservation
from dreamenvs.evaluation.detection import reward_signs, smallest_reward
from dreamenvs.evaluation.diagnosis import (
    Diagnosis,
    Learned,
    OneStepFigures,
    Tier,
    find_accuracy,
    find_drift,
    find_events,
    find_exploitation,
    find_objects,
    find_random_play,
)
from dreamenvs.evaluation.episodes import play
from dreamenvs.evaluation.one_step import predict_steps
from dreamenvs.evaluation.results import Progress
from dreamenvs.evaluation.statistics import estimate_mean
from dreamenvs.evaluation.transfer import transfer
from dreamenvs.models.actions import sample_actions
from dreamenvs.types import DiscreteActions
from dreamenvs.worlds.real import make_real

ROWS = 64
"""Dreams side by side."""
PARTS = 20
"""Into which the steps of real random play are cut, for intervals."""
VIEWS: dict[str, ObservationType] = {"DeltaIRIS": "rgb"}
"""What the learner sees in dreams of a family whose tokens do not show the whole frame."""

Report = Callable[[str], Progress | None]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """How thorough the doctor is; the defaults take up to two minutes on one core for a dream of MinAtar."""

    real_steps: int = 5_000
    """Of random play in the real environment."""
    dream_steps: int = 12_800
    """Imagined under random actions, and half as many under the learner's."""
    horizon: int = 100
    """Imagined steps after which an episode is cut; what the tier says holds up to there."""
    learner_steps: int = 80_000
    """Imagined steps that PQN learns from; 0 leaves the learner out."""
    pqn: PQNConfig = field(default_factory=PQNConfig)
    """How it learns."""
    episodes: int = 40
    """Of the learner and of random play, in the dream and for real."""
    seed: int = 1_000_003
    """Of everything; far from the seeds that data is collected with."""

    def __post_init__(self) -> None:
        if min(self.real_steps, self.dream_steps, self.horizon, self.episodes) < 1 or self.learner_steps < 0:
            raise ValueError(f"steps, horizon and episodes are at least 1, and learner_steps at least 0: {self}")


def examine(
    checkpoint: Checkpoint,
    episodes: Sequence[Episode] | None = None,
    *,
    random_play: bool = True,
    given: Player | None = None,
    examination: Examination | None = None,
    report: Report | None = None,
) -> Diagnosis:
    """Examine a dream.

    Args:
        checkpoint: The dream.
        episodes: Real episodes that it was not fitted on; by default random actions are played for real.
        random_play: Whether uniformly random actions made these episodes. Otherwise random play is compared where the
            real environment is installed.
        given: An agent that learned in this dream, in place of PQN.
        examination: How thorough the doctor is.
        report: Gives, for the name of a part, what is called with the steps that are done and their total.
    """
    plan, report = examination or Examination(), report or (lambda _: None)
    env, why = _open_real(checkpoint)
    randomly = list(episodes) if episodes and random_play else _play_randomly(env, plan)
    if env is not None:
        env.close()
    held_out = list(episodes or randomly or [])
    if not held_out:
        raise ValueError(f"the doctor needs real episodes that the dream was not fitted on, since {why}")
    unknown = [] if randomly else [f"what random play earns for real, since {why}"]
    counting = _Counting(checkpoint, randomly or held_out, plan, unknown)
    counted = counting.count(None, plan.dream_steps, report("random play in the dream"))
    random_dream = counted.dream if counted is not None else _dream_randomly(checkpoint, plan)
    random_real = _rates(randomly, plan.seed) if randomly else None
    player = given or _learn(checkpoint, plan, unknown, report("PQN in the dream"))
    learned, learner_counted = None, None
    if player is not None:
        learned = _measure(checkpoint, player, "PQN" if given is None else "the given agent", plan, env is not None)
        learner_counted = counting.count(player, -(-plan.dream_steps // 2), report("the learner in the dream"))
        if learned.real is None:
            unknown.append(f"what a policy that learned inside earns for real, since {why}")
    ahead = _predict(checkpoint, held_out, report("one step ahead"))
    unknown += [] if ahead.rewards else ["whether rewards are predicted: the held-out episodes have none"]
    unknown += [] if ahead.ends else ["whether ends are predicted: no held-out episode terminates"]
    findings = [
        *find_objects(counted, "random play", broken=True),
        *find_objects(learner_counted, "the learner's play", broken=False),
        *find_random_play(random_dream, random_real, _smallest(held_out)),
        *find_exploitation(learned),
        *find_events(ahead),
        *find_drift(counted),
        *find_accuracy(ahead),
    ]
    return Diagnosis(
        tier=_tier([finding.broken for finding in findings], learned),
        findings=findings,
        unknown=unknown,
        conservation=counted,
        learner_conservation=learner_counted,
        random_dream=random_dream,
        random_real=random_real,
        learned=learned,
        one_step=ahead,
    )


def _tier(broken: Sequence[bool], learned: Learned | None) -> Tier:
    if any(broken):
        return "broken"
    return "good" if learned is not None and learned.honest and learned.beats_random else "demo"


class _Counting:
    """Counts what is conserved, where frames can be cut into patches."""

    def __init__(
        self, checkpoint: Checkpoint, episodes: Sequence[Episode], plan: Examination, unknown: list[str]
    ) -> None:
        self.checkpoint, self.episodes, self.plan, self.possible = checkpoint, episodes, plan, True
        try:
            build_counter(checkpoint.model.spec.observation_shape, episodes)
        except ValueError as error:
            self.possible = False
            unknown.append(f"what appears, what vanishes and what drifts, since {error}")

    def count(self, player: Player | None, steps: int, progress: Progress | None) -> Conservation | None:
        if not self.possible:
            return None
        plan = self.plan
        return conservation(
            self.checkpoint,
            self.episodes,
            rows=ROWS,
            steps=steps,
            horizon=plan.horizon,
            seed=plan.seed,
            player=player,
            progress=progress,
        )


def _open_real(checkpoint: Checkpoint) -> tuple[gym.Env[Any, Any] | None, str]:
    """The real environment, or why it is not at hand."""
    try:
        return make_real(checkpoint), ""
    except (ValueError, ImportError, gym.error.Error) as error:
        return None, f"the real environment is not at hand: {error}"


def _play_randomly(env: gym.Env[Any, Any] | None, plan: Examination) -> list[Episode]:
    if env is None:
        return []
    return list(collect(env, RandomPolicy(env.action_space, plan.seed), plan.real_steps, plan.seed))


def _rewards(episodes: Sequence[Episode]) -> Any:
    return np.concatenate([episode.rewards for episode in episodes])


def _smallest(episodes: Sequence[Episode]) -> float:
    """The size of the smallest real reward; 1 where there is none, so that whatever is paid is false."""
    smallest = smallest_reward(_rewards(episodes))
    return smallest if np.isfinite(smallest) else 1.0


def _rates(episodes: Sequence[Episode], seed: int) -> Rates:
    """What the episodes come to per 100 steps, with intervals over equal parts of all their steps."""
    rng, rewards = np.random.default_rng(seed), _rewards(episodes)
    ends = np.concatenate([episode.terminated for episode in episodes])
    parts = min(PARTS, len(rewards))
    means = [np.array([100 * part.mean() for part in np.array_split(column, parts)]) for column in (rewards, ends)]
    reward, end = (estimate_mean(column.astype(np.float64), rng) for column in means)
    return Rates(reward, end, len(rewards))


def _dream_randomly(checkpoint: Checkpoint, plan: Examination) -> Rates:
    """What random play comes to in the dream, where its frames are not looked at."""
    model, generator = checkpoint.model, torch.Generator().manual_seed(plan.seed)
    starts = observe_contexts(model, checkpoint.contexts)
    dream: Dream[Any] = Dream(model, starts, num_rows=ROWS, horizon=plan.horizon)
    dream.reset([plan.seed + row for row in range(ROWS)])
    rewards, ends = [], []
    for _ in range(-(-plan.dream_steps // ROWS)):
        moved = dream.step(sample_actions(model.spec.actions, ROWS, generator).to(dream.device))
        over = moved.terminated | moved.truncated
        if over.any():
            dream.reset_rows(over.nonzero()[:, 0])
        rewards.append(moved.rewards.double())
        ends.append(moved.terminated.double())
    rng = np.random.default_rng(plan.seed)
    reward, end = (estimate_mean(100 * torch.stack(part).mean(0).cpu().numpy(), rng) for part in (rewards, ends))
    return Rates(reward, end, len(rewards) * ROWS)


def _learn(checkpoint: Checkpoint, plan: Examination, unknown: list[str], progress: Progress | None) -> Player | None:
    """PQN, from imagined steps alone."""
    if not plan.learner_steps:
        unknown.append("what a policy finds in the dream, since none learned in it")
        return None
    if not isinstance(checkpoint.model.spec.actions, DiscreteActions):
        unknown.append("what a policy finds in the dream, since PQN takes discrete actions; give it an agent that does")
        return None
    return learn_in_dream(
        checkpoint,
        plan.learner_steps,
        plan.pqn,
        seed=plan.seed,
        horizon=plan.horizon,
        obs_type=VIEWS.get(checkpoint.family, "tokens"),
        progress=progress,
    )


def _measure(checkpoint: Checkpoint, player: Player, agent: str, plan: Examination, real: bool) -> Learned:
    """What a player earns in the dream and, if there is a real environment, there; as many steps in both."""
    rows = min(plan.episodes, 20)
    settings: dict[str, Any] = {"episodes": plan.episodes, "seed": plan.seed, "horizon": plan.horizon}
    if not real:
        envs = DreamVectorEnv(rows, checkpoint=checkpoint, obs_type=player.obs_type, horizon=plan.horizon)
        returns = play(envs, player, **settings).returns
        envs.close()
        earned = estimate_mean(returns, np.random.default_rng(plan.seed))
        return Learned(agent, plan.horizon, earned, None, None)
    settings |= {"num_envs": rows, "max_episode_steps": plan.horizon}
    learned = transfer(player, checkpoint, obs_type=player.obs_type, **settings)
    randomly = transfer("random", checkpoint, **settings)
    return Learned(agent, plan.horizon, learned.dream.episode_return, learned.real_early, randomly.real_early)


def _predict(checkpoint: Checkpoint, episodes: Sequence[Episode], progress: Progress | None) -> OneStepFigures:
    done, total = 0, sum(len(episode) for episode in episodes)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    device = checkpoint.contexts.observations.device
    ahead = predict_steps(checkpoint.model, episodes, context=1, warmup=16, rows=ROWS, device=device, progress=advance)
    smallest = _smallest(episodes)
    rewards = _detect(reward_signs(ahead.real_rewards, smallest), reward_signs(ahead.rewards, smallest))
    ends = _detect(ahead.real_terminated.astype(np.int8), ahead.terminated.astype(np.int8))
    return OneStepFigures(
        len(ahead.rewards),
        *rewards,
        *ends,
        token_accuracy=float(ahead.accuracy[ahead.framed].mean()),
        copy_accuracy=float(ahead.copy_accuracy[ahead.framed].mean()),
    )


def _detect(real: Any, claimed: Any) -> tuple[int, float, float, float]:
    """Real events, recall, precision, and false claims per 1,000 steps."""
    right = int(((real != 0) & (claimed == real)).sum())
    events, claims = int((real != 0).sum()), int((claimed != 0).sum())
    recall, precision = (right / count if count else float("nan") for count in (events, claims))
    return events, recall, precision, 1000 * (claims - right) / len(real)
