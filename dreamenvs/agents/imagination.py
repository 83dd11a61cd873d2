"""Imagined trajectories: a policy and a world model step by step, on tensors, with no gradient through either.

Everything random is keyed by row: the row's seed and the step decide what the world draws and what the policy does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dreamenvs import tree
from dreamenvs.agents.protocol import ActingAgent, view_of
from dreamenvs.dream import without_padding
from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise
from dreamenvs.types import Segment

StateT = TypeVar("StateT")
MemoryT = TypeVar("MemoryT")

ACTION_DRAW = 2_000_003  # far from the draws that models and resets use


class Moment(NamedTuple, Generic[StateT, MemoryT]):
    """Where imagination starts from and where it got to: the world's state, and the agent's memory before seeing it."""

    state: StateT
    memory: MemoryT


class Trajectory(NamedTuple):
    """H imagined steps of B rows."""

    views: Tensor  # (B, H + 1, …), what the agent saw before each step, and after the last
    actions: Tensor  # (B, H) int64 | (B, H, A) float32; actions[t] follows views[t]
    rewards: Tensor  # (B, H) float32, of the very actions: rewards[t] and terminated[t] follow actions[t]
    terminated: Tensor  # (B, H) bool
    valid: Tensor  # (B, H) bool, False after the episode has terminated, and from a step on in which the model failed


@contextmanager
def evaluating(model: WorldModel[Any]) -> Iterator[None]:
    """The model without dropout, whatever mode it is in otherwise."""
    if not isinstance(model, nn.Module) or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


@torch.no_grad()
def start_imagination(
    model: WorldModel[Any], agent: ActingAgent[Any], context: Segment, warm_up: int = 0
) -> Moment[Any, Any]:
    """The moment after real contexts (B, T): the agent has seen all frames but the last, with the actions after them.

    Recurrent agents are burnt in so. The published REM leaves the actions out there, and meets its first imagined steps
    with a memory such as it never has later. The model is warmed up on the last `warm_up` frames, or on all with 0.
    """
    with evaluating(model):
        return without_padding(context, lambda part: _start(model, agent, part, warm_up))


def _start(model: WorldModel[Any], agent: ActingAgent[Any], context: Segment, warm_up: int) -> Moment[Any, Any]:
    recent = tree.map(lambda leaf: leaf[:, -warm_up:], context)
    rows, steps = context.actions.shape[:2]
    memory = agent.begin(rows)
    if steps == 1 or not tuple(tree.leaves(memory)):
        return Moment(model.observe(recent), memory)
    if agent.spec.obs_type == "rgb":
        for step in range(steps - 1):
            _, memory = agent.act(context.observations[:, step], memory)
            memory = agent.remember(memory, context.actions[:, step])
        return Moment(model.observe(recent), memory)
    # Only the model knows what tokens and features of the earlier frames are, and it tells one by one.
    state = model.observe(tree.map(lambda leaf: leaf[:, :1], context))
    for step in range(1, steps):
        _, memory = agent.act(view_of(model, state, agent.spec.obs_type), memory)
        memory = agent.remember(memory, context.actions[:, step - 1])
        state = model.update(state, context.actions[:, step - 1], context.observations[:, step])
    return Moment(model.observe(recent) if warm_up else state, memory)


@torch.no_grad()
def imagine(
    model: WorldModel[Any],
    agent: ActingAgent[Any],
    start: Moment[Any, Any],
    horizon: int,
    seeds: Tensor,
    *,
    temperature: float = 1.0,
) -> tuple[Trajectory, Moment[Any, Any]]:
    """`horizon` steps of every row under its seed (B,), and the moment after them.

    `temperature` is of the dreamed tokens; actions are drawn as the policy has them. A row in which the model gives NaN
    or infinity keeps its last finite state.
    """
    if horizon < 1:
        raise ValueError(f"the horizon is a number of imagined steps, at least 1, not {horizon}")
    kind = agent.spec.obs_type
    state, memory = start
    alive = torch.ones(len(seeds), dtype=torch.bool, device=seeds.device)
    views, steps = [view_of(model, state, kind)], []
    with evaluating(model):
        for step in range(horizon):
            noise = Noise(seeds, torch.full_like(seeds, step), temperature)
            outputs, memory = agent.act(views[-1], memory)
            actions = agent.choice.sample(outputs, noise._replace(temperature=1.0), ACTION_DRAW)
            memory = agent.remember(memory, actions)
            # The outcome of this very step belongs to these actions. The published DRAMA reads rewards off the state
            # before the action, and so has each one step late.
            following, outcome = model.step(state, actions, noise)
            failed = ~(outcome.finite & outcome.rewards.isfinite())
            if bool(failed.any()):
                lost = failed.nonzero()[:, 0]
                following = tree.put_rows(following, lost, tree.take_rows(state, lost))
            valid = alive & ~failed
            terminated = outcome.terminated & valid
            steps.append((actions, outcome.rewards.masked_fill(~valid, 0.0), terminated, valid))
            alive = valid & ~terminated
            state = following
            views.append(view_of(model, state, kind))
    parts = (torch.stack(part, 1) for part in zip(*steps, strict=True))
    return Trajectory(torch.stack(views, 1), *parts), Moment(state, memory)
