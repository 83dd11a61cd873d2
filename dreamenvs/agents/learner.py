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
from dreamenvs.agents.imagination import Moment, Trajectory, imagine, start_imagination
from dreamenvs.agents.losses import Aims, Losses, actor_critic_losses, find_aims
from dreamenvs.agents.protocol import Agent, Judgement
from dreamenvs.agents.returns import ReturnScale
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
    standardised: bool = False
    """Whether a batch's advantages are given a mean of 0 and a deviation of 1, as PPO does. Not the papers': it makes
    the weight of the entropy mean the same in worlds whose rewards differ in size and number."""
    epochs: int = 1
    """How often an update goes through its trajectories. With more than one, or with `minibatches`, the policy follows
    PPO's clipped objective, as an option of DRAMA's does: worth it where imagining takes longer than learning."""
    minibatches: int = 1
    """Parts that the rows of an update are shuffled into, each with a step of the optimiser of its own."""
    ratio_clip: float = 0.2
    """How far the probability of an action may move in an update before its gradient ends."""
    temperature: float = 1.0
    """Of the imagined frames."""

    def __post_init__(self) -> None:
        if min(self.epochs, self.minibatches) < 1 or self.minibatches > self.rows:
            raise ValueError(f"epochs {self.epochs} and minibatches {self.minibatches} are from 1 up to the rows")
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


class Batch(NamedTuple):
    """What a step of the optimiser takes, rows first."""

    trajectory: Trajectory
    memory: Any
    aims: Aims


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
        config, rows = self.config, len(next(tree.leaves(start.state)))
        seeds = self._noise(update).bits(rows)[0].to(self._device)
        trajectory, end = imagine(model, self.agent, start, config.horizon, seeds, temperature=config.temperature)
        metrics = self._follow(trajectory, start.memory, update)
        self._see(trajectory.views[:, 0])
        metrics |= {"dream_return": float(trajectory.rewards.sum(1).mean()), "steps": float(trajectory.valid.sum())}
        return trajectory, end, metrics

    def losses(self, trajectory: Trajectory, memory: Any, aims: Aims | None = None) -> Losses:
        """The loss on imagined trajectories, from the agent's memory before their first view.

        Without aims they are those of the agent as it is, and the policy's loss is REINFORCE's; with older ones, PPO's.
        """
        judged = self.agent.judge(trajectory.views, trajectory.actions, memory)
        chosen = self.aims(trajectory, memory, judged) if aims is None else aims
        return actor_critic_losses(self.agent, self.config, trajectory, judged, chosen, first=aims is None)

    def aims(self, trajectory: Trajectory, memory: Any, judged: Judgement) -> Aims:
        """Returns and advantages as the critic sees them now; the scale of returns is updated."""
        return find_aims(self.agent, self.slow, self.scale, self.config, trajectory, memory, judged)

    def _follow(self, trajectory: Trajectory, memory: Any, update: int) -> dict[str, float]:
        """All steps of the optimiser that an update takes; the means of what they measured."""
        config, lines = self.config, []
        if config.epochs == config.minibatches == 1:
            lines = [self._step(self.losses(trajectory, memory), update)]
        else:
            with torch.no_grad():
                aims = self.aims(trajectory, memory, self.agent.judge(trajectory.views, trajectory.actions, memory))
            for epoch in range(config.epochs):
                keys = self._noise(update).bits(len(trajectory.rewards), draw=1 + epoch)[0]
                for rows in keys.argsort().to(self._device).chunk(config.minibatches):
                    part = tree.take_rows(Batch(trajectory, memory, aims), rows)
                    lines.append(self._step(self.losses(*part), update))
        means = {name: sum(line[name] for line in lines) / len(lines) for name in lines[0]}
        return means | {"return_scale": max(1.0, float(self.scale.range)) if config.scaled else 1.0}

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

    @torch.no_grad()
    def _see(self, views: Tensor) -> None:
        """After an update, so that the policy that acts in one is the policy that is judged."""
        self.agent.see(views)
        if self.slow is not None:
            for slow, own in zip(self.slow.buffers(), self.agent.buffers(), strict=True):
                slow.copy_(own)

    def _noise(self, update: int) -> Noise:
        return Noise(torch.tensor([wrap_seed(self.seed)]), torch.tensor([update]))

    def _step(self, losses: Losses, update: int) -> dict[str, float]:
        """Follow the gradient, and let the slow critic follow; what was measured, and the norm before clipping."""
        config, loss = self.config, losses.total
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
        return {name: float(value) for name, value in losses.measured.items()} | {"gradient_norm": norm}


def _frozen_copy(agent: Agent[Any]) -> Agent[Any]:
    twin = copy.deepcopy(agent)
    for parameter in twin.parameters():
        parameter.requires_grad_(False)
    return twin


def _load(agent: Agent[Any], weights: dict[str, Tensor], owner: str) -> None:
    try:
        agent.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"these are the weights of another {owner}: {error}") from error
