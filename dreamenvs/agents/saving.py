"""An agent on disk: a verified directory of JSON and safetensors, complete or absent, safe to load from a stranger."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch

from dreamenvs.agents.latent_actor_critic import LatentConfig, build_latent
from dreamenvs.agents.protocol import ActingAgent, AgentSpec
from dreamenvs.agents.q_agent import QAgentConfig, build_q_agent
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig, build_recurrent
from dreamenvs.checkpoints.stored_tensors import pack_tensors, unpack_tensors
from dreamenvs.checkpoints.world_model import (
    CheckpointError,
    build_with_weights,
    check_integers,
)
from dreamenvs.config import ConfigError, from_json, to_json
from dreamenvs.files.atomic_directory import (
    MAX_JSON,
    ArtifactError,
    check_format,
    dump_json,
    parse_json,
    read_artifact,
    write_artifact,
)

FORMAT = 1
LIMITS = {"config.json": MAX_JSON, "spec.json": MAX_JSON, "weights.safetensors": 2**32}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a name in an agent's directory stands for."""

    config: type[Any]
    build: Callable[[Any, AgentSpec], Any]
    """An `ActingAgent` that is also an `nn.Module`, from a config and a spec."""


KINDS: dict[str, Kind] = {
    "latent": Kind(config=LatentConfig, build=build_latent),
    "recurrent": Kind(config=RecurrentConfig, build=build_recurrent),
    "q": Kind(config=QAgentConfig, build=build_q_agent),
}


def build_agent(config: Any, spec: AgentSpec, kinds: Mapping[str, Kind] = KINDS) -> Any:
    """The agent of a config, with random weights from torch's own generator; an `Agent` but for Q agents."""
    return kinds[_kind_of(config, kinds)].build(config, spec)


def save_agent(
    path: str | os.PathLike[str],
    agent: ActingAgent[Any],
    *,
    dream: str | None = None,
    kinds: Mapping[str, Kind] = KINDS,
) -> Path:
    """Write or replace an agent's directory; killed at any moment, the old or the new one stands.

    >>> import dreamenvs, tempfile
    >>> player = dreamenvs.train("dreamenvs/STEPVQ-MinAtarBreakout-v0", steps=2048, progress=False)
    >>> dreamenvs.save_agent(tempfile.mkdtemp() + "/agent", player.agent).name
    'agent'

    Args:
        path: The directory.
        agent: An agent that was built from a config.
        dream: The name of the dream that it learned in, for people: features mean nothing to another world model.
        kinds: What agents there are, for those of your own.
    """
    config = getattr(agent, "config", None)
    if config is None:
        raise ValueError("an agent with networks of its own has no config: give it one, and name it in `kinds`")
    header = {"format": FORMAT, "agent": _kind_of(config, kinds), "dream": dream, "config": to_json(config)}
    files = {
        "config.json": dump_json(header),
        "spec.json": dump_json(to_json(agent.spec)),
        "weights.safetensors": safetensors.torch.save(pack_tensors(agent.state_dict(), torch.float32)),
    }
    return write_artifact(path, files)


def load_agent(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", kinds: Mapping[str, Kind] = KINDS
) -> ActingAgent[Any]:
    """Read, verify and rebuild an agent; whatever is wrong with the directory is a `CheckpointError`.

    >>> import dreamenvs, tempfile
    >>> player = dreamenvs.train("dreamenvs/STEPVQ-MinAtarBreakout-v0", steps=2048, progress=False)
    >>> dreamenvs.load_agent(player.save(tempfile.mkdtemp() + "/agent")).spec.obs_type
    'latent'
    """
    try:
        return _parse(Path(path), read_artifact(path, LIMITS), device, kinds)
    except (ArtifactError, ConfigError) as error:
        raise CheckpointError(str(error)) from error


def _parse(
    path: Path, files: dict[str, bytes], device: torch.device | str, kinds: Mapping[str, Kind]
) -> ActingAgent[Any]:
    name = str(path / "config.json")
    header = parse_json(files["config.json"], name)
    check_format(header, name, FORMAT)
    if set(header) != {"format", "agent", "dream", "config"}:
        raise CheckpointError(f"{name} must hold a format, an agent, a dream and a config, nothing else")
    kind = kinds.get(header["agent"]) if isinstance(header["agent"], str) else None
    if kind is None:
        raise CheckpointError(f"{name} names the agent {header['agent']!r:.80}; known are {', '.join(kinds)}")
    config = from_json(kind.config, header["config"], f"{name}: config")
    check_integers(header["config"], f"{name}: config")
    spec_name = str(path / "spec.json")
    described = parse_json(files["spec.json"], spec_name)
    spec = from_json(AgentSpec, described, f"{spec_name}: spec")
    check_integers(described, f"{spec_name}: spec")
    weights = unpack_tensors(path / "weights.safetensors", files["weights.safetensors"])
    agent = build_with_weights(lambda: kind.build(config, spec), weights, path)
    return cast(ActingAgent[Any], agent.to(device=device).eval())


def _kind_of(config: object, kinds: Mapping[str, Kind]) -> str:
    for name, kind in kinds.items():
        if type(config) is kind.config:
            return name
    raise TypeError(f"{type(config).__name__} is the config of no agent; there are {', '.join(kinds)}")
