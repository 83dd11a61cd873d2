"""λ-returns, return scaling and the losses of an agent against loops in plain Python floats."""

from __future__ import annotations

import math

import pytest
import torch

from dreamenvs.agents.imagination import Trajectory
from dreamenvs.agents.latent_actor_critic import LatentConfig, build_latent
from dreamenvs.agents.learner import Learner, LearningConfig
from dreamenvs.agents.protocol import AgentSpec, NoMemory
from dreamenvs.agents.returns import (
    ReturnScale,
    clipped_loss,
    lambda_returns,
    reinforce_loss,
    return_range,
    standardise,
)
from dreamenvs.types import DiscreteActions

pytestmark = pytest.mark.portable
ROWS, STEPS, GAMMA, LAMBDA = 5, 7, 0.9, 0.8


def naive_return(rewards: list[float], ended: list[bool], values: list[float], step: int) -> float:
    """Equation 9, recursively, from `step` on."""
    if step == len(rewards):
        return values[step]
    ahead = (1 - LAMBDA) * values[step + 1] + LAMBDA * naive_return(rewards, ended, values, step + 1)
    return rewards[step] + GAMMA * (0.0 if ended[step] else 1.0) * ahead


def n_step_mixture(rewards: list[float], values: list[float]) -> float:
    """The definition behind the recursion: n-step returns, weighted by (1 - λ)·λ^(n-1), the last one by the rest."""
    total, count = 0.0, len(rewards)
    for n in range(1, count + 1):
        part = sum(GAMMA**k * rewards[k] for k in range(n)) + GAMMA**n * values[n]
        total += part * (LAMBDA ** (n - 1) if n == count else (1 - LAMBDA) * LAMBDA ** (n - 1))
    return total


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, terminations in the middle, values, and what is valid: nothing after a termination."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(ROWS, STEPS, dtype=dtype, generator=generator)
    values = torch.randn(ROWS, STEPS + 1, dtype=dtype, generator=generator)
    terminated = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    terminated[1, 3] = terminated[2, 0] = terminated[3, STEPS - 1] = True
    valid = torch.ones_like(terminated)
    valid[1, 4:] = valid[2, 1:] = False
    return rewards, terminated, values, valid


def test_lambda_returns_follow_the_recursion() -> None:
    rewards, terminated, values, valid = example()
    found = lambda_returns(rewards, terminated, values, valid, discount=GAMMA, trace=LAMBDA)
    for row in range(ROWS):
        for step in range(STEPS):
            if valid[row, step]:
                lists = rewards[row].tolist(), terminated[row].tolist(), values[row].tolist()
                assert found[row, step].item() == pytest.approx(naive_return(*lists, step), rel=1e-12)
    assert found[0, 0].item() == pytest.approx(n_step_mixture(rewards[0].tolist(), values[0].tolist()), rel=1e-12)


def test_the_value_in_a_return_is_that_of_the_next_state() -> None:
    # With λ = 0 the return is r + γ·V(s_{t+1}); with V(s_t) there, as published, it would be 1 + 0.5·10.
    rewards, values = torch.tensor([[1.0]]), torch.tensor([[10.0, 4.0]])
    no, yes = torch.tensor([[False]]), torch.tensor([[True]])
    assert lambda_returns(rewards, no, values, yes, discount=0.5, trace=0.0).item() == 3.0
    assert lambda_returns(rewards, yes, values, yes, discount=0.5, trace=0.0).item() == 1.0


def test_a_step_that_failed_is_bootstrapped_over() -> None:
    rewards, values = torch.tensor([[1.0, float("nan"), 5.0]]), torch.tensor([[9.0, 2.0, 9.0, 9.0]])
    valid, never = torch.tensor([[True, False, False]]), torch.zeros(1, 3, dtype=torch.bool)
    found = lambda_returns(rewards, never, values, valid, discount=0.5, trace=0.9)
    assert found[0, 0].item() == pytest.approx(1.0 + 0.5 * 2.0)
    assert found.isfinite().all()


def naive_quantile(values: list[float], level: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def test_the_scale_is_a_moving_average_of_the_range_between_percentiles() -> None:
    scale, expected = ReturnScale(decay=0.9), None
    for update, spread in enumerate((3.0, 50.0, 0.1)):
        returns = spread * torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(update))
        valid = torch.rand(6, 9, generator=torch.Generator().manual_seed(9 + update)) < 0.7
        chosen = returns[valid].tolist()
        measured = naive_quantile(chosen, 0.95) - naive_quantile(chosen, 0.05)
        assert return_range(returns, valid).item() == pytest.approx(measured, rel=1e-9)
        expected = measured if expected is None else 0.9 * expected + 0.1 * measured
        assert scale.update(returns, valid).item() == pytest.approx(max(1.0, expected), rel=1e-5)
    assert ReturnScale().update(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)).item() == 1.0


def test_reinforce_is_a_mean_over_valid_steps() -> None:
    generator = torch.Generator().manual_seed(3)
    log_probs, advantages, entropy = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    valid = torch.rand(4, 5, generator=generator) < 0.6
    log_probs[~valid] = float("nan")  # what comes after an end must not matter
    log_probs.requires_grad_()
    advantages.requires_grad_()
    terms = [
        -(advantages[i, j].item() * log_probs[i, j].item() + 0.01 * entropy[i, j].item())
        for i in range(4)
        for j in range(5)
        if valid[i, j]
    ]
    loss = reinforce_loss(log_probs, advantages, entropy, valid, 0.01)
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)
    loss.backward()
    assert advantages.grad is None
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad != 0, valid)


def test_the_clipped_objective() -> None:
    generator = torch.Generator().manual_seed(4)
    ratios, entropy = torch.rand(2, 4, 5, dtype=torch.float64, generator=generator) * 2
    advantages = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    valid = torch.rand(4, 5, generator=generator) < 0.6
    terms = []
    for i in range(4):
        for j in range(5):
            ratio, gain = ratios[i, j].item(), advantages[i, j].item()
            gained = min(ratio * gain, min(max(ratio, 0.8), 1.2) * gain)
            terms += [-gained - 0.01 * entropy[i, j].item()] if valid[i, j] else []
    found = clipped_loss(ratios, advantages, entropy, valid, 0.01, 0.2)
    assert found.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_at_a_ratio_of_one_the_clipped_objective_has_the_gradient_of_reinforce() -> None:
    generator = torch.Generator().manual_seed(5)
    log_probs, advantages, entropy = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    valid, gradients = torch.rand(4, 5, generator=generator) < 0.6, []
    log_probs.requires_grad_()
    for loss in (
        reinforce_loss(log_probs, advantages, entropy, valid, 0.01),
        clipped_loss((log_probs - log_probs.detach()).exp(), advantages, entropy, valid, 0.01, 0.2),
    ):
        gradients += torch.autograd.grad(loss, log_probs)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_standardised_advantages() -> None:
    advantages = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(6)) * 3 + 7
    valid = torch.rand(4, 5, generator=torch.Generator().manual_seed(7)) < 0.6
    chosen = advantages[valid].tolist()
    mean = sum(chosen) / len(chosen)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in chosen) / len(chosen))
    expected = torch.tensor([(value - mean) / deviation for value in chosen], dtype=torch.float64)
    torch.testing.assert_close(standardise(advantages, valid)[valid], expected)


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits)
    return [logit - total for logit in logits]


def two_hot(value: float) -> list[float]:
    target = math.copysign(math.log1p(abs(value)), value)
    weights = [0.0] * 255
    place = (target + 20) * 254 / 40
    low = min(math.floor(place), 253)
    weights[low], weights[low + 1] = 1 - (place - low), place - low
    return weights


def cross_entropy(logits: list[float], value: float) -> float:
    return -sum(weight * log for weight, log in zip(two_hot(value), log_softmax(logits), strict=True))


def value_of(logits: list[float]) -> float:
    mean = sum(math.exp(log) * (-20 + 40 * index / 254) for index, log in enumerate(log_softmax(logits)))
    return math.copysign(math.expm1(abs(mean)), mean)


def spec(count: int = 3) -> AgentSpec:
    return AgentSpec(
        world="W",
        obs_type="latent",
        observation_shape=(1, 4, 4),
        num_features=4,
        num_tokens=1,
        vocabulary=2,
        actions=DiscreteActions(count=count),
    )


@pytest.mark.parametrize("bootstrap", ["online", "slow"])
def test_the_loss_of_a_learner(bootstrap: str) -> None:
    torch.manual_seed(0)
    agent = build_latent(LatentConfig(actor_units=8, critic_units=8), spec()).double()
    for head in (agent.actor[-1], agent.critic[-1]):
        torch.nn.init.normal_(head.weight, std=0.5)
    config = LearningConfig(discount=GAMMA, trace=LAMBDA, entropy=0.02, slow_weight=0.7, bootstrap=bootstrap)  # type: ignore[arg-type]
    learner = Learner(agent, config)
    assert learner.slow is not None
    for parameter in learner.slow.parameters():
        parameter.mul_(1.1)
    rewards, terminated, _, valid = example()
    views = torch.randn(ROWS, STEPS + 1, 4, dtype=torch.float64)
    actions = torch.randint(3, (ROWS, STEPS))
    found = learner.losses(Trajectory(views, actions, 3 * rewards, terminated, valid), NoMemory())

    own, slow = (part.critic(views).tolist() for part in (agent, learner.slow))  # type: ignore[attr-defined]
    outputs, known = agent.actor(views).tolist(), own if bootstrap == "online" else slow
    returns, terms = {}, []
    for row in range(ROWS):
        values = [value_of(logits) for logits in known[row]]
        for step in range(STEPS):
            if valid[row, step]:
                lists = (3 * rewards[row]).tolist(), terminated[row].tolist(), values
                returns[row, step] = naive_return(*lists, step)
    distance = naive_quantile(list(returns.values()), 0.95) - naive_quantile(list(returns.values()), 0.05)
    assert distance > 1
    for (row, step), target in returns.items():
        logs = log_softmax(outputs[row][step])
        advantage = (target - value_of(known[row][step])) / distance
        entropy = -sum(math.exp(log) * log for log in logs)
        actor = -advantage * logs[int(actions[row, step])] - 0.02 * entropy
        critic = cross_entropy(own[row][step], target)
        critic += 0.7 * cross_entropy(own[row][step], value_of(slow[row][step]))
        terms.append(actor + critic)
    assert found.total.item() == pytest.approx(sum(terms) / len(terms), rel=1e-6)
    assert learner.scale.range.item() == pytest.approx(distance, rel=1e-5)
