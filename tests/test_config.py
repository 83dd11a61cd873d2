"""Configs survive JSON, and what does not fit is refused with a sentence that says where and why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamenvs.config import MAX_DEPTH, MAX_VALUES, ConfigError, from_json, to_json
from dreamenvs.types import ContinuousActions, DiscreteActions, Scalar, SourceEnv, WorldSpec


@dataclass(frozen=True, kw_only=True)
class Attention:
    layers: int = 2
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    width: int
    bias: bool = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ArithmeticError(f"width is {self.width}")


@dataclass(frozen=True, kw_only=True)
class Model:
    sequence: Attention | Recurrent
    name: str = "m"
    sizes: tuple[int, ...] = (1, 2)
    corner: tuple[float, str] = (0.5, "a")
    window: int | None = None
    extra: Recurrent | None = None
    mode: Literal["fast", "exact"] = "fast"
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Endless:
    inner: Endless | None = None


int64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(max_size=5)
recurrent = st.builds(Recurrent, width=st.integers(1, 9), bias=st.booleans())
models = st.builds(
    Model,
    sequence=st.builds(Attention, layers=int64, dropout=finite) | recurrent,
    name=text,
    sizes=st.lists(int64, max_size=3).map(tuple),
    corner=st.tuples(finite, text),
    window=st.none() | int64,
    extra=st.none() | recurrent,
    mode=st.sampled_from(["fast", "exact"]),
    options=st.dictionaries(text, st.none() | st.booleans() | int64 | finite | text, max_size=3),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "sequence", "x"]), inner),
    max_leaves=8,
)


@given(models)
@settings(max_examples=100, deadline=None)
def test_round_trip(model: Model) -> None:
    value = to_json(model)
    again = from_json(Model, value)
    assert again == model
    assert repr(again) == repr(model)  # 1, 1.0 and True are equal but not the same


@given(json_values)
@settings(max_examples=200, deadline=None)
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        assert isinstance(from_json(Model, value), Model)
    except ConfigError as error:
        assert str(error).startswith("config")  # noqa: PT017 (reading is allowed to succeed)


@pytest.mark.parametrize("actions", [DiscreteActions(count=3), ContinuousActions(low=(-1.0,), high=(1.0,))])
@pytest.mark.parametrize("source", [None, SourceEnv(id="ALE/Pong-v5", kwargs={"frameskip": 4, "mode": None})])
def test_spec_round_trip(actions: Any, source: SourceEnv | None) -> None:
    spec = WorldSpec(world="Pong", observation_shape=(3, 64, 64), actions=actions, source=source)
    value = to_json(spec)
    assert value["type"] == "WorldSpec"
    assert value["actions"]["type"] == type(actions).__name__
    assert from_json(WorldSpec, value) == spec


def test_an_integer_becomes_the_float_that_is_asked_for() -> None:
    config = from_json(Attention, {"dropout": 1})
    assert type(config.dropout) is float


def test_defaults_fill_missing_keys() -> None:
    assert from_json(Model, {"sequence": {"type": "Attention"}}) == Model(sequence=Attention())


GOOD: dict[str, Any] = {"type": "Model", "sequence": {"type": "Recurrent", "width": 4}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"widht": 3}, "config has the unknown key 'widht'; the keys of Model are sequence, name"),
        ({"type": "Recurrent"}, "config.type is 'Recurrent'; it must be 'Model'"),
        ({"type": ["Model"]}, "config.type is ['Model']"),
        ({"sequence": {"width": 4}}, "config.sequence.type is missing; it must be 'Attention' or 'Recurrent'"),
        ({"sequence": {"type": "os.system"}}, "config.sequence.type is 'os.system'; it must be 'Attention'"),
        ({"sequence": {"type": "Recurrent"}}, "config.sequence.width is missing; it must be an integer"),
        ({"sequence": {"type": "Recurrent", "width": True}}, "config.sequence.width is True; it must be an integer"),
        ({"sequence": {"type": "Recurrent", "width": 4.0}}, "config.sequence.width is 4.0; it must be an integer"),
        ({"sequence": {"type": "Recurrent", "width": -1}}, "config.sequence is no valid Recurrent: width is -1"),
        ({"sequence": {"type": "Attention", "dropout": "0"}}, "config.sequence.dropout is '0'; it must be a number"),
        ({"sequence": {"type": "Attention", "dropout": float("nan")}}, "config.sequence.dropout is nan"),
        ({"sequence": {"type": "Attention", "dropout": float("inf")}}, "config.sequence.dropout is inf"),
        ({"sequence": {"type": "Attention", "layers": 10**5000}}, "config.sequence.layers is an integer of 16610 bits"),
        (
            {"sequence": None},
            "config.sequence is None; it must be an object of type Attention or an object of type Rec",
        ),
        ({"sizes": 3}, "config.sizes is 3; it must be a list, each value an integer"),
        ({"sizes": [1, None]}, "config.sizes[1] is None; it must be an integer"),
        ({"corner": [1.0]}, "config.corner is [1.0]; it must be a list of 2: a number, a string"),
        ({"window": "all"}, "config.window is 'all'; it must be an integer or null"),
        ({"mode": "slow"}, "config.mode is 'slow'; it must be 'fast' or 'exact'"),
        ({"options": {"a": [1]}}, "config.options.a is [1]; it must be true or false or an integer"),
        ({"name": "\ud800"}, "config.name is '\\ud800'; strings must be valid Unicode"),
        ({"name": (1,)}, "config.name is a tuple, which JSON does not have"),
        ({3: 4}, "config has a key of type int; keys must be strings"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(change: dict[Any, Any], sentence: str) -> None:
    from_json(Model, GOOD)
    with pytest.raises(ConfigError) as caught:
        from_json(Model, GOOD | change)
    assert sentence in str(caught.value)


def test_depth_and_size_are_bounded() -> None:
    deep: Any = None
    for _ in range(MAX_DEPTH + 1):
        deep = {"inner": deep}
    with pytest.raises(ConfigError, match="levels"):
        from_json(Endless, deep)
    assert from_json(Endless, deep["inner"]) is not None
    with pytest.raises(ConfigError, match="values"):
        from_json(Model, GOOD | {"sizes": [0] * MAX_VALUES})


def test_messages_stay_short() -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(Model, GOOD | {"window": "x" * 10**6})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "wrong",
    [
        Model(sequence=Attention(), sizes=[1, 2]),  # type: ignore[arg-type]
        Model(sequence=Attention(), window="all"),  # type: ignore[arg-type]
        Model(sequence=Attention(), corner=(float("nan"), "a")),
        Model(sequence=object()),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_is_not_written(wrong: Model) -> None:
    with pytest.raises(ConfigError):
        to_json(wrong)


def test_needs_no_torch() -> None:
    code = "import sys, dreamenvs.config, dreamenvs.files.atomic_directory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
