"""PQN: parallel Q-learning (Gallici et al., 2024, arXiv 2407.04811), in dreams and in real environments.

There is neither a replay buffer nor a target network: LayerNorm and many rows keep the values stable, and every update
learns from the steps that were just taken. Its λ-returns are Peng's: random actions are in them, uncorrected, so that
with λ above 0 they are somewhat below the values of the best actions while ε is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from dreamenvs.agents.player import Player
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.q_agent import QAgent, QAgentConfig, build_q_agent
from dreamenvs.agents.q_network import QNetworkConfig
from dreamenvs.agents.returns import q_lambda_returns
from dreamenvs.agents.row_collector import RowCollector, Steps
from dreamenvs.agents.row_source import DreamRows, RowSource, VectorRows
from dreamenvs.checkpoints.shared_models import CheckpointLike, open_world
from dreamenvs.dream import Dream, ObservationType
from dreamenvs.nn.optimization import NonFiniteLossError
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise, wrap_seed
from dreamenvs.worlds.real import make_real_vec

Progress = Callable[[int, int], None]

_UPDATE_STREAM = -3  # the step of the seed's own noise that makes the seed of minibatches


@dataclass(frozen=True, kw_only=True)
class PQNConfig:
    """How PQN learns; the defaults are for MinAtar on two cores."""

    rows: int = 128
    """Episodes side by side."""
    length: int = 32
    """Steps of every row between two updates."""
    discount: float = 0.99
    trace: float = 0.65
    """λ of the λ-returns."""
    epochs: int = 2
    """How often an update goes through its steps."""
    minibatches: int = 32
    """Parts into which an epoch shuffles the steps, each with a step of the optimiser."""
    rate: float = 5e-4
    """The learning rate of RAdam, which falls evenly, to almost nothing in the last update."""
    clip: float = 10.0
    """The largest norm of the gradient."""
    epsilon_start: float = 1.0
    """The share of random actions in the first update; less where an agent continues."""
    epsilon_end: float = 0.05
    epsilon_share: float = 0.1
    """The share of the updates over which it falls evenly from start to end."""

    def __post_init__(self) -> None:
        if min(self.rows, self.length, self.epochs, self.minibatches) < 1:
            raise ValueError(f"rows, length, epochs and minibatches are at least 1, not {self}")
        if self.minibatches > self.rows * self.length:
            raise ValueError(f"{self.rows * self.length} steps do not make {self.minibatches} minibatches")
        for name in ("discount", "trace", "epsilon_start", "epsilon_end", "epsilon_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a number from 0 to 1, not {getattr(self, name)}")
        for name in ("rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is a positive number, not {getattr(self, name)}")


class PQNUpdate(NamedTuple):
    """What an update has to report."""

    steps: int
    """All that were taken so far."""
    episodes: int
    """All that ended so far."""
    episode_return: float
    """The mean of the last 300 that ended, with the random actions of learning; NaN before the first one."""
    loss: float
    value: float
    """The mean of the λ-returns."""
    gradient_norm: float
    """The mean before clipping."""
    epsilon: float
    rate: float


def q_loss(values: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared distance () of the Q values (N, A) of the actions (N,) from their returns (N,)."""
    taken = values.gather(1, actions[:, None])[:, 0]
    return 0.5 * (taken - returns.detach()).square().mean()


class PQN:
    """A learner of a Q agent.

    Everything random is drawn from the seed: the same seed and the same source give the same weights.

    Args:
        agent: What learns; it is changed.
        source: The rows that it learns from.
        config: How it learns; as many rows as the source has.
        seed: Of random actions and of minibatches.
    """

    def __init__(self, agent: QAgent, source: RowSource, config: PQNConfig | None = None, seed: int = 0) -> None:
        self.agent, self.config = agent, config or PQNConfig()
        if source.num_rows != self.config.rows:
            raise ValueError(f"the config is for {self.config.rows} rows, the source has {source.num_rows}")
        self._parameters = list(agent.parameters())
        self._optimizer = torch.optim.RAdam(self._parameters, lr=self.config.rate)
        self._update_seed = Noise(torch.tensor([wrap_seed(seed)]), torch.tensor([_UPDATE_STREAM])).bits(1)[0]
        self._collector = RowCollector(agent, source, seed)

    def learn(self, steps: int) -> Iterator[PQNUpdate]:
        """Take about `steps` steps over all rows, and learn from them; what every update has to report.

        The learning rate and ε follow their schedules over these steps.
        """
        if steps < 1:
            raise ValueError(f"learning takes at least 1 step, not {steps}")
        config = self.config
        updates = max(1, round(steps / (config.rows * config.length)))
        falling = max(1.0, config.epsilon_share * updates)
        for update in range(updates):
            share = min(1.0, update / falling)
            epsilon = config.epsilon_start + share * (config.epsilon_end - config.epsilon_start)
            rate = config.rate * (1 - update / updates)
            yield self.update(epsilon, rate)

    def update(self, epsilon: float, rate: float) -> PQNUpdate:
        """Act with a share ε of random actions, and learn from what came of it."""
        collector = self._collector
        taken = collector.collect(self.config.length, epsilon)
        returns = q_lambda_returns(
            taken.rewards,
            taken.terminated,
            taken.truncated,
            taken.following,
            discount=self.config.discount,
            trace=self.config.trace,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss, norm = self._fit(taken, returns)
        value = float(returns.mean())
        return PQNUpdate(collector.steps, collector.episodes, collector.mean_return(), loss, value, norm, epsilon, rate)

    def _fit(self, taken: Steps, returns: Tensor) -> tuple[float, float]:
        """All steps of the optimiser; the means of the loss and of the gradient's norm."""
        config = self.config
        rows, length = taken.actions.shape
        seen, fresh = taken.views.flatten(0, 1), taken.fresh.flatten()
        actions, targets = taken.actions.flatten(), returns.flatten()
        losses, norms = [], []
        for epoch in range(config.epochs):
            noise = Noise(self._update_seed, torch.tensor([self._collector.steps]))
            order = noise.bits(rows * length, draw=epoch)[0].argsort().to(actions.device)
            for chosen in order.tensor_split(config.minibatches):
                # Every row has one view more than steps: the view before the first one.
                current = chosen // length * (length + 1) + chosen % length + 1
                previous = torch.where(fresh[chosen], current, current - 1)
                loss = q_loss(self.agent.network(seen[previous], seen[current]), actions[chosen], targets[chosen])
                norms.append(self._step(loss))
                losses.append(float(loss.detach()))
        return sum(losses) / len(losses), sum(norms) / len(norms)

    def _step(self, loss: Tensor) -> float:
        """Follow the gradient; its norm before clipping."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self.config.clip))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLossError(f"the loss is {float(loss.detach())} and its gradient {norm}")
        self._optimizer.step()
        return norm


def learn_in_dream(
    checkpoint: CheckpointLike,
    steps: int,
    config: PQNConfig | None = None,
    *,
    seed: int = 0,
    horizon: int = 100,
    obs_type: ObservationType = "tokens",
    agent: QAgent | QAgentConfig | None = None,
    temperature: float = 1.0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Player:
    """Learn in a dream, in which every episode begins with one of its start contexts.

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        steps: Imagined steps, over all rows.
        config: How PQN learns.
        seed: Of the agent's weights, of its random actions and of the dream.
        horizon: Imagined steps after which an episode is truncated.
        obs_type: What the agent sees.
        agent: An agent to continue with, which is changed, or the config of a new one; without one `default_q_agent`.
        temperature: Of the dreamed tokens.
        device: Where the model and the agent run.
        progress: Called after every update with the steps that are done and their total.
    """
    config = config or PQNConfig()
    world = open_world(checkpoint, device)
    learner = _prepare(agent, world.model, obs_type, seed, device)
    dream = Dream(world.model, world.starts, num_rows=config.rows, horizon=horizon, temperature=temperature)
    return _finish(PQN(learner, DreamRows(dream, obs_type, seed), config, seed), steps, progress)


def learn_for_real(
    checkpoint: CheckpointLike,
    steps: int,
    config: PQNConfig | None = None,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    obs_type: ObservationType = "rgb",
    agent: QAgent | QAgentConfig | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Player:
    """Learn in the real environment that a dream is of.

    Args:
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        steps: Real steps, over all rows.
        config: How PQN learns.
        seed: Of the agent's weights, of its random actions and of the environment.
        max_episode_steps: Steps after which an episode is truncated, besides the environment's own limit.
        obs_type: What the agent sees; for `"latent"` and `"tokens"` the world model watches the real frames.
        agent: An agent to continue with, which is changed, or the config of a new one; without one `default_q_agent`.
        device: Where the model and the agent run.
        progress: Called after every update with the steps that are done and their total.
    """
    config = config or PQNConfig()
    learner = _prepare(agent, open_world(checkpoint, device).model, obs_type, seed, device)
    mode = AutoresetMode.SAME_STEP
    env = make_real_vec(
        checkpoint,
        config.rows,
        obs_type=obs_type,
        device=device,
        autoreset_mode=mode,
        max_episode_steps=max_episode_steps,
    )
    try:
        return _finish(PQN(learner, VectorRows(env, obs_type, seed, device), config, seed), steps, progress)
    finally:
        env.close()


def default_q_agent(model: WorldModel[Any], obs_type: ObservationType) -> QAgentConfig:
    """The config of an agent for a world model, with the grid of its tokens where its tokenizer has one."""
    grid = getattr(getattr(model, "tokenizer", None), "grid", None) if obs_type == "tokens" else None
    if grid is not None and grid[0] * grid[1] != model.num_tokens:
        grid = None
    return QAgentConfig(network=QNetworkConfig(grid=grid))


def _prepare(
    agent: QAgent | QAgentConfig | None,
    model: WorldModel[Any],
    obs_type: ObservationType,
    seed: int,
    device: torch.device | str,
) -> QAgent:
    """The agent that learns; a new one has the weights of the seed, and torch's own generator is left as it was."""
    if isinstance(agent, QAgent):
        if agent.spec != agent_spec(model, obs_type):
            raise ValueError(f"the agent is of another world or sees {agent.spec.obs_type!r}, not {obs_type!r}")
        return agent.to(device)
    config = agent or default_q_agent(model, obs_type)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(wrap_seed(seed))
        return build_q_agent(config, agent_spec(model, obs_type)).to(device)


def _finish(learner: PQN, steps: int, progress: Progress | None) -> Player:
    for update in learner.learn(steps):
        if progress is not None:
            progress(min(update.steps, steps), steps)
    if progress is not None and update.steps < steps:
        progress(steps, steps)
    return Player(learner.agent.eval())
