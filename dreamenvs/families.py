"""The one table of families: names, command-line spellings, and where their parts are, as strings.

A new family is entered here; ids, commands, presets, agents and benchmarks read this table. It imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class FamilyEntry(NamedTuple):
    """Where the parts of a family are: `module:name`, which `resolve` imports when it is first needed.

    Of a family that is added by code, they are the parts themselves.
    """

    name: str
    """In ids and checkpoints."""
    spelling: str
    """On command lines."""
    model: Any
    """A `Family`: its config, the paper's values and how a model is built."""
    small: Any
    """A function of the paper's config, the preset's name and the frame (C, H, W): the config of a small preset."""
    paper_agent: Any
    """An `AgentRecipe` with the paper's hyperparameters."""
    small_agent: Any
    """The same for two cores."""
    paper_loop: Any
    """A function of the paper's config, the agent and the environment's id: the online preset of the paper."""
    presets: tuple[str, ...] = ("small", "paper")
    """Of the world model."""
    small_loop: str = "small"
    """The preset that the small online loop fits."""
    context: int = 4
    """Real frames before the paper's imagined steps."""
    horizon: int = 16
    """Imagined steps from there on, as the paper has them."""


_MODELS = "dreamenvs.models"
_SMALL = "dreamenvs.presets.world_models"
_AGENTS = "dreamenvs.agents.defaults"
_LOOPS = "dreamenvs.presets.online"
_STEP_VQ = FamilyEntry(
    name="STEPVQ",
    spelling="stepvq",
    model=f"{_MODELS}.step_vq:STEP_VQ",
    small=f"{_SMALL}:small_step_vq",
    paper_agent=f"{_AGENTS}:STEP_VQ",
    small_agent=f"{_AGENTS}:SMALL_LATENT",
    paper_loop=f"{_LOOPS}:step_vq_preset",
    presets=("small", "cells", "paper"),
    small_loop="cells",
)
_STORM = FamilyEntry(
    name="STORM",
    spelling="storm",
    model=f"{_MODELS}.storm:STORM",
    small=f"{_SMALL}:small_storm",
    paper_agent=f"{_AGENTS}:STORM",
    small_agent=f"{_AGENTS}:SMALL_LATENT",
    paper_loop=f"{_LOOPS}:storm_preset",
    context=8,
    horizon=16,
)
_ENTRIES = (
    _STEP_VQ,
    _STEP_VQ._replace(name="STEPVQT", spelling="stepvqt", model=f"{_MODELS}.step_vq:STEP_VQ_T"),
    _STEP_VQ._replace(name="CB", spelling="cb", model=f"{_MODELS}.step_vq:CB", small_loop="small"),
    _STEP_VQ._replace(name="CBT", spelling="cbt", model=f"{_MODELS}.step_vq:CB_T", small_loop="small"),
    _STORM,
    _STORM._replace(name="GITSTORM", spelling="gitstorm", model=f"{_MODELS}.storm:GIT_STORM"),
    FamilyEntry(
        name="IRIS",
        spelling="iris",
        model=f"{_MODELS}.iris:IRIS",
        small=f"{_SMALL}:small_token_level",
        paper_agent=f"{_AGENTS}:IRIS",
        small_agent=f"{_AGENTS}:SMALL_PIXELS",
        paper_loop=f"{_LOOPS}:iris_preset",
        context=1,
        horizon=20,
    ),
    FamilyEntry(
        name="DeltaIRIS",
        spelling="deltairis",
        model=f"{_MODELS}.delta_iris:DELTA_IRIS",
        small=f"{_SMALL}:small_delta_iris",
        paper_agent=f"{_AGENTS}:DELTA_IRIS",
        small_agent=f"{_AGENTS}:SMALL_PIXELS",
        paper_loop=f"{_LOOPS}:delta_iris_preset",
        context=6,  # five past frames and the present one
        horizon=15,
    ),
    FamilyEntry(
        name="REM",
        spelling="rem",
        model=f"{_MODELS}.rem:REM",
        small=f"{_SMALL}:small_token_level",
        paper_agent=f"{_AGENTS}:REM",
        small_agent=f"{_AGENTS}:SMALL_TOKENS",
        paper_loop=f"{_LOOPS}:rem_preset",
        context=2,  # ten blocks in total
        horizon=8,
    ),
    FamilyEntry(
        name="GRID",
        spelling="grid",
        model=f"{_MODELS}.grid:GRID",
        small=f"{_SMALL}:small_grid",
        paper_agent=f"{_AGENTS}:STEP_VQ",
        small_agent=f"{_AGENTS}:SMALL_LATENT",
        paper_loop=f"{_LOOPS}:grid_preset",
        presets=("small", "patches", "vq"),
        context=8,
        horizon=100,
    ),
)
_BY_NAME = {entry.name: entry for entry in _ENTRIES}
_BY_SPELLING = {entry.spelling: entry.name for entry in _ENTRIES}
FAMILIES: Mapping[str, FamilyEntry] = _BY_NAME
"""By name."""
BY_SPELLING: Mapping[str, str] = _BY_SPELLING
"""Names by their spelling on command lines."""


def add(entry: FamilyEntry) -> None:
    """Enter a family that is not in the package; `dreamenvs.register_family` calls it."""
    _BY_NAME[entry.name] = entry
    _BY_SPELLING[entry.spelling] = entry.name


def resolve(part: Any) -> Any:
    """What `module:name` means; only paths of the table above come here, never text from a file."""
    if not isinstance(part, str):
        return part
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)
