"""An agent on real frames sees what it would see of them in a dream, and remembers what was really done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs import tree
from dreamenvs.agents.acting import Acting, ActingPolicy
from dreamenvs.agents.imagination import start_imagination
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.agents.protocol import agent_spec, view_of
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig
from dreamenvs.agents.saving import build_agent
from dreamenvs.types import Segment
from dreamenvs.worlds.real import WatchedEnv
from tests.dots import SPEC, Dots
from tests.small import build_small, random_segment


def acting(family: str = "STEPVQ", *, recurrent: bool = False) -> Acting:
    model = build_small(family, SPEC)
    torch.manual_seed(1)
    config: Any = RecurrentConfig(units=16, action_inputs=True) if recurrent else LatentConfig(actor_units=16)
    agent = build_agent(config, agent_spec(model, "rgb" if recurrent else "latent"))
    for parameter in agent.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Acting(agent, model)


@pytest.mark.parametrize("recurrent", [False, True])
def test_frame_by_frame_is_as_all_at_once(recurrent: bool) -> None:
    """`begin` with a context gives the actions that `begin` with its first frame, `act` and `see` come to."""
    player = acting("DeltaIRIS" if recurrent else "STEPVQ", recurrent=recurrent)
    segment = random_segment(SPEC, rows=4, steps=5)
    mind = player.begin(tree.map(lambda leaf: leaf[:, :1], segment))
    seeds = torch.arange(4)
    for step in range(1, 5):
        _, mind = player.act(mind, seeds, 1.0)
        mind = player.see(mind, segment.actions[:, step - 1], segment.observations[:, step])
    whole = player.begin(segment)
    for one, other in zip(tree.leaves(mind.memory), tree.leaves(whole.memory), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    views = [view_of(player.model, each.state, player.agent.spec.obs_type).float() for each in (mind, whole)]
    assert torch.allclose(*views, atol=1e-4)


def test_the_policy_sees_real_frames_as_a_watched_environment_shows_them() -> None:
    """Through episodes that end in one row and not in the other."""
    player = acting()
    policy, state = ActingPolicy(player, temperature=0.0), None
    envs = [Dots(wind=0.5), Dots(wind=0.5)]
    watched = [WatchedEnv(Dots(wind=0.5), player.model, "latent") for _ in envs]
    frames = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(envs)])
    views = [env.reset(seed=seed)[0] for seed, env in enumerate(watched)]
    begins, ended = np.array([True, True]), 0
    for _ in range(60):
        actions, state = policy.predict(frames, state, begins)
        expected = player.agent.act(torch.from_numpy(np.stack(views)), player.agent.begin(2))[0].argmax(-1)
        assert actions.tolist() == expected.tolist()
        taken = np.array([2, actions[1]])  # row 0 is made to go right, until its episode ends
        state = policy.took(state, taken)
        for row, env in enumerate(envs):
            frames[row], _, over, _, _ = env.step(taken[row])
            views[row] = watched[row].step(taken[row])[0]
            begins[row] = over
            if over:
                ended += 1
                frames[row], views[row] = env.reset()[0], watched[row].reset()[0]
    assert ended > 2


def test_seeds_and_temperature_decide_the_actions() -> None:
    player = acting()
    mind = player.begin(tree.map(lambda leaf: leaf[:, :1], random_segment(SPEC, rows=4, steps=1)))
    rows = torch.arange(4)
    drawn = torch.stack([player.act(mind, rows + 10 * number, 3.0)[0] for number in range(40)])
    assert torch.equal(drawn[7], player.act(mind, rows + 70, 3.0)[0])
    assert all(len(set(column.tolist())) > 1 for column in drawn.t())
    likeliest = player.act(mind, rows, 0.0)[0]
    assert all(torch.equal(player.act(mind, rows + number, 0.0)[0], likeliest) for number in range(5))


def test_beginning_is_what_imagination_starts_from() -> None:
    player = acting(recurrent=False)
    segment: Segment = random_segment(SPEC, rows=2, steps=3)
    one, other = player.begin(segment), start_imagination(player.model, player.agent, segment)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(one.state), tree.leaves(other.state), strict=True))
