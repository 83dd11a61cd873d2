"""Learner: one update after another of an agent, each on trajectories that its world model imagines for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.agents.actor_critic import Agent
from dreamenvs.agents.returns import ReturnScale, lambda_returns, reinforce_loss
from dreamenvs.agents.rollout import Moment, Trajectory, imagine, start_imagination
from dreamenvs.nn.distributions import masked_mean
from dreamenvs.nn.optimization import NonFiniteLossError, export_moments, restore_moments
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise, wrap_seed
from dreamenvs.types import Segment


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """How an agent learns in imagination; the defaults are STORM's and GIT-STORM's (table 8)."""

    rows: int = 1024
    """Trajectories of an update."""
    context: int = 8
    """Real frames before the first imagined step."""
    warm_up: int = 0
    """How many of them, the last ones, the world model sees; 0 for all. The others are for a recurrent agent alone."""
    horizon: int = 16
    discount: float = 0.985
    trace: float = 0.95
    """λ of the λ-returns."""
    entropy: float = 3e-4
    """The weight of the policy's entropy."""
    rate: float = 3e-5
    decay_updates: int = 0
    """Over so many updates the learning rate falls evenly to a tenth; 0 keeps it. Not the papers'."""
    eps: float = 1e-5
    weight_decay: float = 0.0
    clip: float = 100.0
    """The largest norm of the gradient of actor and critic together."""
    bootstrap: Literal["online", "slow"] = "online"
    """Whose values returns and advantages are made with: the critic's, or its moving average's (Δ-IRIS)."""
    slow_decay: float = 0.98
    slow_weight: float = 1.0
    """How much the critic is drawn to its own moving average (equation 11); 0 does not."""
    scaled: bool = True
    """Whether advantages are divided by the scale of returns."""
    scale_decay: float = 0.99
    centred: bool = False
    """Whether the mean of a batch's advantages is taken from each. Not the papers': while a critic is yet too low,
    every action that is tried looks good, and in few large updates a policy grows certain of what it did first."""
    temperature: float = 1.0
    """Of the imagined frames."""

    def __post_init__(self) -> None:
        if min(self.rows, self.context, self.horizon) < 1:
            raise ValueError(
                f"rows, context and horizon are at least 1, not {self.rows}, {self.context}, {self.horizon}"
            )
        for name in ("discount", "trace", "slow_decay", "scale_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a number from 0 to 1, not {getattr(self, name)}")

    @property
    def needs_slow(self) -> bool:
        """Whether a moving average of the critic is kept."""
        return self.bootstrap == "slow" or self.slow_weight > 0


class Losses(NamedTuple):
    """The loss of an update, and what people want to know of it (detached)."""

    total: Tensor  # ()
    measured: dict[str, Tensor]  # each ()


class Learner:
    """An agent with all that its learning needs: optimiser, slow critic and the scale of returns.

    Every update draws from (seed, update) alone: the caller's generators are left alone, and a learner that was
    restored goes on bit for bit.
    """

    def __init__(self, agent: Agent[Any], config: LearningConfig, seed: int = 0) -> None:
        self.agent = agent
        self.config = config
        self.seed = seed
        self.slow: Agent[Any] | None = _frozen_copy(agent) if config.needs_slow else None
        self.scale = ReturnScale(config.scale_decay)
        self._parameters = list(agent.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.rate, eps=config.eps, weight_decay=config.weight_decay
        )

    def update(self, model: WorldModel[Any], context: Segment, update: int) -> dict[str, float]:
        """Update number `update`, from real start contexts (B, C): imagine from there, and learn from it."""
        start = start_imagination(model, self.agent, context, self.config.warm_up)
        _, _, metrics = self.learn(model, start, update)
        return metrics

    def learn(
        self, model: WorldModel[Any], start: Moment[Any, Any], update: int
    ) -> tuple[Trajectory, Moment[Any, Any], dict[str, float]]:
        """Update number `update` from a moment of imagination on; the trajectory, the moment after it, and metrics."""
        config, rows = self.config, _rows(start)
        key = torch.tensor([wrap_seed(self.seed)]), torch.tensor([update])
        seeds = Noise(*key).bits(rows)[0].to(self._device)
        trajectory, end = imagine(model, self.agent, start, config.horizon, seeds, temperature=config.temperature)
        losses = self.losses(trajectory, start.memory)
        norm = self._step(losses.total, update)
        metrics = {name: float(value) for name, value in losses.measured.items()} | {"gradient_norm": norm}
        steps = int(trajectory.valid.sum())
        metrics |= {"dream_return": float(trajectory.rewards.sum(1).mean()), "steps": float(steps)}
        return trajectory, end, metrics

    def losses(self, trajectory: Trajectory, memory: Any) -> Losses:
        """The loss on imagined trajectories, from the agent's memory before their first view."""
        config, valid, values = self.config, trajectory.valid, self.agent.values
        judged = self.agent.judge(trajectory.views, trajectory.actions, memory)
        with torch.no_grad():
            own = values.mean(judged.values.detach())
            slow = own
            if self.slow is not None:
                slow = values.mean(self.slow.judge(trajectory.views, trajectory.actions, memory).values)
            known = slow if config.bootstrap == "slow" else own
            returns = lambda_returns(
                trajectory.rewards,
                trajectory.terminated,
                known,
                valid,
                discount=config.discount,
                trace=config.trace,
            )
            divisor = self.scale.update(returns, valid) if config.scaled else torch.ones_like(returns[0, 0])
            advantages = (returns - known[:, :-1]) / divisor
            if config.centred:
                advantages = advantages - masked_mean(advantages, valid)
        entropy = self.agent.choice.entropy(judged.outputs)
        log_probs = self.agent.choice.log_prob(judged.outputs, trajectory.actions)
        actor = reinforce_loss(log_probs, advantages, entropy, valid, config.entropy)
        critic = masked_mean(values.loss(judged.values[:, :-1], returns), valid)
        if config.slow_weight > 0:
            # Towards the slow critic's values, as equation 11 says; the published STORM takes its λ-returns instead.
            critic = critic + config.slow_weight * masked_mean(values.loss(judged.values[:, :-1], slow[:, :-1]), valid)
        measured = {
            "actor_loss": actor.detach(),
            "critic_loss": critic.detach(),
            "entropy": masked_mean(entropy.detach(), valid),
            "value": masked_mean(own[:, :-1], valid),
            "return": masked_mean(returns, valid),
            "return_scale": divisor,
        }
        return Losses(actor + critic, measured)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is needed to go on bit for bit."""
        parts = {"agent": self.agent.state_dict(), "moments": export_moments(self._optimizer)}
        if self.slow is not None:
            parts["slow"] = self.slow.state_dict()
        named = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {name: tensor.detach().clone() for name, tensor in (named | {"scale": self.scale.range}).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave, of a learner with the same agent, config and seed."""
        parts: dict[str, dict[str, Tensor]] = {"agent": {}, "moments": {}, "slow": {}, "scale": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise ValueError(f"{name!r:.60} is not part of a learner's state")
            parts[part][rest] = tensor.clone()
        if set(parts["scale"]) != {""} or bool(parts["slow"]) != (self.slow is not None):
            raise ValueError("the state is that of a learner with another config: its scale or slow critic differs")
        _load(self.agent, parts["agent"], "agent")
        if self.slow is not None:
            _load(self.slow, parts["slow"], "slow critic")
        restore_moments(self._optimizer, self._parameters, parts["moments"], "this agent")
        self.scale.range = parts["scale"][""].to("cpu", torch.float32)

    @property
    def _device(self) -> torch.device:
        return self._parameters[0].device

    def _step(self, loss: Tensor, update: int) -> float:
        """Follow the gradient, and let the slow critic follow; the norm of the gradient before it was clipped."""
        config = self.config
        share = 1 - 0.9 * min(update / config.decay_updates, 1.0) if config.decay_updates else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = config.rate * share
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self._parameters, config.clip))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLossError(
                f"the agent's loss is {float(loss.detach())} and its gradient {norm} at update {update}"
            )
        self._optimizer.step()
        if self.slow is not None:
            with torch.no_grad():
                for slow, own in zip(self.slow.parameters(), self._parameters, strict=True):
                    slow.lerp_(own, 1 - config.slow_decay)
        return norm


def _frozen_copy(agent: Agent[Any]) -> Agent[Any]:
    twin = copy.deepcopy(agent)
    for parameter in twin.parameters():
        parameter.requires_grad_(False)
    return twin


def _rows(start: Moment[Any, Any]) -> int:
    return len(next(tree.leaves(start.state)))


def _load(agent: Agent[Any], weights: dict[str, Tensor], owner: str) -> None:
    try:
        agent.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"these are the weights of another {owner}: {error}") from error
