"""λ-returns of imagined trajectories, the scale of returns, and REINFORCE (GIT-STORM, eqs. 9 to 13)."""

from __future__ import annotations

import torch
from torch import Tensor

from dreamenvs.nn.distributions import masked_mean

LOW, HIGH = 0.05, 0.95
"""Percentiles whose distance is the scale of returns."""


def lambda_returns(
    rewards: Tensor, terminated: Tensor, values: Tensor, valid: Tensor, *, discount: float, trace: float
) -> Tensor:
    """λ-returns (B, T) of rewards and terminated (B, T) and the values (B, T + 1) before and after every step.

    Equation 9: the (1 - λ) term holds the value of the next state, V(s_{t+1}). The published STORM and DRAMA put V(s_t)
    there, by which a value is in part its own target, and with λ = 0 no return would depend on what follows the step.
    A step that is not `valid` (B, T) is none: its return is the value of its state, so that what comes before a failed
    step bootstraps there.
    """
    following = values[:, -1]
    returns = torch.empty_like(rewards)
    discounts = discount * (~terminated).to(rewards.dtype)
    for step in range(rewards.shape[1] - 1, -1, -1):
        ahead = (1 - trace) * values[:, step + 1] + trace * following
        taken = rewards[:, step] + discounts[:, step] * ahead
        following = torch.where(valid[:, step], taken, values[:, step])
        returns[:, step] = following
    return returns


def q_lambda_returns(
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    following: Tensor,
    *,
    discount: float,
    trace: float,
) -> Tensor:
    """λ-returns (B, T) of steps, of which `following` (B, T) holds the best Q values after each.

    A termination ends a return. A truncation and the last step do not: there it bootstraps from `following` alone,
    since what comes later is of another episode, or is not known.
    """
    returns = torch.empty_like(rewards)
    ahead = following[:, -1]
    for step in range(rewards.shape[1] - 1, -1, -1):
        value = following[:, step]
        mixed = torch.where(truncated[:, step], value, (1 - trace) * value + trace * ahead)
        ahead = rewards[:, step] + torch.where(terminated[:, step], 0.0, discount * mixed)
        returns[:, step] = ahead
    return returns


def return_range(returns: Tensor, valid: Tensor) -> Tensor:
    """The distance () from the 5th to the 95th percentile of the valid ones among returns (B, T)."""
    levels = torch.tensor([LOW, HIGH], dtype=returns.dtype, device=returns.device)
    low, high = torch.quantile(returns[valid], levels)
    distance: Tensor = high - low
    return distance


class ReturnScale:
    """S of equation 13: a moving average of `return_range`, by which advantages are divided where it is above 1.

    It starts with the first range. The published STORM starts with 0, and for some hundred updates divides returns of
    hundreds by far too little.
    """

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = decay
        self.range = torch.tensor(-1.0)  # below 0: nothing has been seen yet

    def update(self, returns: Tensor, valid: Tensor) -> Tensor:
        """The divisor (), at least 1, once these returns (B, T) have been seen."""
        measured = return_range(returns, valid).to("cpu", torch.float32)
        self.range = measured if self.range < 0 else self.decay * self.range + (1 - self.decay) * measured
        return self.range.clamp(min=1.0).to(returns.device)


def reinforce_loss(
    log_probs: Tensor, advantages: Tensor, entropy: Tensor, valid: Tensor, entropy_weight: float
) -> Tensor:
    """Equation 12, the mean () over valid steps (B, T); no gradient passes through the advantages (B, T)."""
    return masked_mean(-(advantages.detach() * log_probs + entropy_weight * entropy), valid)


def clipped_loss(
    ratios: Tensor, advantages: Tensor, entropy: Tensor, valid: Tensor, entropy_weight: float, clip: float
) -> Tensor:
    """PPO's objective (Schulman et al., 2017, eq. 7) for actions that were drawn with an older policy.

    `ratios` (B, T) are their probabilities now over those then. At 1 the gradient is that of `reinforce_loss`.
    """
    advantages = advantages.detach()
    gained = torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages)
    return masked_mean(-(gained + entropy_weight * entropy), valid)


def standardise(advantages: Tensor, valid: Tensor) -> Tensor:
    """Advantages (B, T) with a mean of 0 and a deviation of 1 over the valid ones."""
    centred = advantages - masked_mean(advantages, valid)
    return centred / (masked_mean(centred.square(), valid).sqrt() + 1e-8)
