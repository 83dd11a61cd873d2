"""The losses of an actor-critic on imagined trajectories: REINFORCE or PPO for the actor, λ-returns for the critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from dreamenvs.agents.imagination import Trajectory
from dreamenvs.agents.protocol import Agent, Judgement
from dreamenvs.agents.returns import ReturnScale, clipped_loss, lambda_returns, reinforce_loss, standardise
from dreamenvs.nn.distributions import masked_mean

if TYPE_CHECKING:
    from dreamenvs.agents.learner import LearningConfig


class Aims(NamedTuple):
    """What actor and critic are drawn to, computed once for an update."""

    returns: Tensor  # (B, T)
    advantages: Tensor  # (B, T), scaled
    slow: Tensor  # (B, T), values of the slow critic
    log_probs: Tensor  # (B, T), of the actions when they were taken


class Losses(NamedTuple):
    """The loss of an update, and what people want to know of it (detached)."""

    total: Tensor  # ()
    measured: dict[str, Tensor]  # each ()


def actor_critic_losses(
    agent: Agent[Any], config: LearningConfig, trajectory: Trajectory, judged: Judgement, aims: Aims, first: bool
) -> Losses:
    """The losses towards the aims; the policy's loss is REINFORCE's on the first pass over a trajectory, then PPO's."""
    valid, values = trajectory.valid, agent.values
    entropy = agent.choice.entropy(judged.outputs)
    log_probs = agent.choice.log_prob(judged.outputs, trajectory.actions)
    if first:
        actor = reinforce_loss(log_probs, aims.advantages, entropy, valid, config.entropy)
    else:
        ratios = (log_probs - aims.log_probs).exp()
        actor = clipped_loss(ratios, aims.advantages, entropy, valid, config.entropy, config.ratio_clip)
    critic = masked_mean(values.loss(judged.values[:, :-1], aims.returns), valid)
    if config.slow_weight > 0:
        # Towards the slow critic's values, as equation 11 says; the published STORM takes its λ-returns instead.
        critic = critic + config.slow_weight * masked_mean(values.loss(judged.values[:, :-1], aims.slow), valid)
    measured = {
        "actor_loss": actor.detach(),
        "critic_loss": critic.detach(),
        "entropy": masked_mean(entropy.detach(), valid),
        "value": masked_mean(values.mean(judged.values[:, :-1].detach()), valid),
        "return": masked_mean(aims.returns, valid),
    }
    return Losses(actor + critic, measured)


@torch.no_grad()
def find_aims(
    agent: Agent[Any],
    slow_agent: Agent[Any] | None,
    scale: ReturnScale,
    config: LearningConfig,
    trajectory: Trajectory,
    memory: Any,
    judged: Judgement,
) -> Aims:
    """Returns and advantages as the critic sees them now; the scale of returns is updated."""
    valid, values = trajectory.valid, agent.values
    own = values.mean(judged.values)
    slow = own
    if slow_agent is not None:
        slow = values.mean(slow_agent.judge(trajectory.views, trajectory.actions, memory).values)
    known = slow if config.bootstrap == "slow" else own
    rewards, terminated = trajectory.rewards, trajectory.terminated
    returns = lambda_returns(rewards, terminated, known, valid, discount=config.discount, trace=config.trace)
    advantages = returns - known[:, :-1]
    if config.scaled:
        advantages = advantages / scale.update(returns, valid)
    if config.standardised:
        advantages = standardise(advantages, valid)
    log_probs = agent.choice.log_prob(judged.outputs, trajectory.actions)
    return Aims(returns, advantages, slow[:, :-1], log_probs)
