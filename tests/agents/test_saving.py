"""Agents on disk, and the table of default ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dreamenvs
from dreamenvs.agents.defaults import DELTA_IRIS, IRIS, REM, STORM, default_recipe
from dreamenvs.agents.imagination import imagine, start_imagination
from dreamenvs.agents.latent_actor_critic import LatentAgent, LatentConfig
from dreamenvs.agents.protocol import AgentSpec, agent_spec
from dreamenvs.agents.saving import build_agent
from dreamenvs.files.atomic_directory import dump_json, read_artifact, write_artifact
from dreamenvs.models import FAMILIES
from dreamenvs.types import DiscreteActions, WorldSpec
from tests.agents.test_imagination import KINDS, LATENT, lively
from tests.small import CONTINUOUS, DISCRETE, build_small, random_segment
from tests.toy_worlds import CountingWorld


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize(("config", "obs_type"), KINDS)
def test_a_loaded_agent_acts_identically(config: Any, obs_type: Any, spec: WorldSpec, tmp_path: Path) -> None:
    model = build_small("STEPVQ", spec)
    agent = lively(config, model, obs_type)
    path = dreamenvs.save_agent(tmp_path / "agent", agent, dream="Small")
    loaded = dreamenvs.load_agent(path)
    assert sorted(entry.name for entry in path.iterdir()) == [
        "config.json",
        "manifest.json",
        "spec.json",
        "weights.safetensors",
    ]
    assert loaded.spec == agent.spec
    context, seeds = random_segment(spec, rows=8, steps=3), torch.arange(8)
    ways = [imagine(model, each, start_imagination(model, each, context), 4, seeds)[0] for each in (agent, loaded)]
    assert all(torch.equal(one, two) for one, two in zip(*ways, strict=True))


def change(path: Path, name: str, **changes: Any) -> None:
    limits = {file: 2**30 for file in ("config.json", "spec.json", "weights.safetensors")}
    files = read_artifact(path, limits)
    value = json.loads(files[name]) | changes
    write_artifact(path, files | {name: dump_json(value)})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"agent": "other"}, "names the agent 'other'; known are latent, recurrent, q"),
        ("config.json", {"format": 2}, "upgrade dreamenvs"),
        ("config.json", {"more": 1}, "nothing else"),
        ("config.json", {"config": {"unitz": 3}}, "unknown key"),
        ("config.json", {"config": {"actor_units": 2**20}}, "the config asks for"),
        ("config.json", {"config": {"actor_units": 2**40}}, "integers are"),
        ("config.json", {"config": {"layers": 2**19}}, "more layers than there are weights"),
        ("spec.json", {"num_features": 3}, "the config asks for"),
    ],
)
def test_a_directory_that_is_not_right_is_refused(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = dreamenvs.save_agent(tmp_path / "agent", lively(LATENT, CountingWorld(), "latent"))
    dreamenvs.load_agent(path)
    change(path, name, **changes)
    with pytest.raises(dreamenvs.CheckpointError, match=message):
        dreamenvs.load_agent(path)


def test_networks_of_ones_own_have_no_config(tmp_path: Path) -> None:
    spec = agent_spec(CountingWorld(), "latent")
    agent = LatentAgent(spec, torch.nn.Linear(2, 3), torch.nn.Linear(2, 255))
    with pytest.raises(ValueError, match="networks of its own"):
        dreamenvs.save_agent(tmp_path / "agent", agent)
    with pytest.raises(TypeError, match="WorldSpec is the config of no agent"):
        build_agent(DISCRETE, spec)


def test_every_family_has_an_agent() -> None:
    for family in FAMILIES:
        for size in ("paper", "small"):
            recipe = default_recipe(family, size)  # type: ignore[arg-type]
            model = build_small(family, replace(DISCRETE, observation_shape=(3, 16, 16)))
            agent = build_agent(recipe.agent, agent_spec(model, recipe.obs_type))
            assert agent.spec.obs_type == recipe.obs_type
        assert type(default_recipe(family, "paper").agent) is type(default_recipe(family, "small").agent)
    with pytest.raises(ValueError, match="'Other' has no default agent; there are STEPVQ"):
        default_recipe("Other")


def parameters(recipe: Any, actions: int, **sizes: int) -> dict[str, int]:
    spec = AgentSpec(
        world="W",
        obs_type=recipe.obs_type,
        observation_shape=(3, 64, 64),
        **{"num_features": 1536, "num_tokens": 64, "vocabulary": 512} | sizes,
        actions=DiscreteActions(count=actions),
    )
    agent: Any = build_agent(recipe.agent, spec)
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in agent.named_children()}
    return parts | {"all": sum(p.numel() for p in agent.parameters())}


def test_the_papers_agents_have_the_published_numbers_of_parameters() -> None:
    storm = parameters(STORM, 18)
    assert (storm["actor"], storm["critic"]) == (1_059_858, 1_181_439)
    assert parameters(IRIS, 18)["all"] == 3_225_139
    assert parameters(REM, 18)["all"] == 4_586_707 + 512 * 256  # here with token vectors of its own
    assert parameters(DELTA_IRIS, 17)["all"] == 3_745_216


def test_the_papers_hyperparameters() -> None:
    learning = default_recipe("GITSTORM", "paper").learning
    assert (learning.rows, learning.context, learning.horizon) == (1024, 8, 16)
    assert (learning.discount, learning.trace, learning.entropy, learning.rate) == (0.985, 0.95, 3e-4, 3e-5)
    assert (learning.eps, learning.clip, learning.slow_decay, learning.scaled) == (1e-5, 100.0, 0.98, True)
    stepvq = default_recipe("STEPVQ", "paper")
    assert stepvq.agent == LatentConfig(actor_units=256, critic_units=512, norm="rms", activation="silu")
    assert (stepvq.learning.rate, stepvq.learning.context) == (4e-5, 4)
    rem = REM.learning
    assert (rem.discount, rem.trace, rem.entropy, rem.scaled, rem.slow_weight) == (0.995, 0.95, 1e-3, False, 0.0)
    delta = DELTA_IRIS.learning
    assert (delta.bootstrap, delta.slow_decay, delta.discount, delta.horizon) == ("slow", 0.995, 0.997, 15)
