"""Frozen dataclasses to JSON and back: every object is tagged with the name of its class, unknown keys are errors.

The classes that a file may name are exactly those of the annotations: nothing is imported or looked up by name.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

ConfigT = TypeVar("ConfigT")

TAG = "type"
RENAMED = {
    "Progress": "FitProgress",
    "TurnConfig": "StageConfig",
    "TurnsOptimization": "TwoStageOptimization",
}
"""Tags that files of earlier versions hold, and what these classes are called now."""
MAX_DEPTH = 32
MAX_VALUES = 100_000
_SCALARS = {NoneType: "null", bool: "true or false", int: "an integer", float: "a number", str: "a string"}


class ConfigError(ValueError):
    """A value that does not fit its place; the message names the place, the value and what would be right."""


def to_json(config: object) -> Any:
    """A dataclass as JSON values that `from_json` reads back."""
    value = _encode(config, "config", 0)
    from_json(type(config), value)
    return value


def from_json(cls: type[ConfigT], value: object, where: str = "config") -> ConfigT:
    """The dataclass `cls` from JSON values; `where` is what messages call the value."""
    check_json(value, where)
    result: ConfigT = _decode(cls, value, where)
    return result


def with_new_names(value: Any) -> Any:
    """JSON values of an earlier version as this one would write them, for comparisons of files with configs."""
    if isinstance(value, Mapping):
        renamed = {key: with_new_names(part) for key, part in value.items()}
        tag = renamed.get(TAG)
        return renamed | {TAG: RENAMED[tag]} if isinstance(tag, str) and tag in RENAMED else renamed
    return [with_new_names(part) for part in value] if isinstance(value, list) else value


def check_json(value: object, where: str) -> None:
    """Refuse what is not plain, finite, bounded JSON: 64-bit integers, encodable strings, limited depth and size."""
    count = 0
    pending: list[tuple[object, str, int]] = [(value, where, 0)]
    while pending:
        item, place, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_VALUES:
            raise ConfigError(f"{where} may have {MAX_DEPTH} levels and {MAX_VALUES} values at most")
        if type(item) is dict:
            for key in item:
                if type(key) is not str:
                    raise ConfigError(f"{place} has a key of type {type(key).__name__}; keys must be strings")
                _check_scalar(key, f"a key of {place}")
            pending.extend((part, f"{place}.{reprlib.aRepr.repr(key)[1:-1]}", depth + 1) for key, part in item.items())
        elif type(item) is list:
            pending.extend((part, f"{place}[{index}]", depth + 1) for index, part in enumerate(item))
        else:
            _check_scalar(item, place)


def _check_scalar(value: object, where: str) -> None:
    if type(value) not in _SCALARS:
        raise ConfigError(f"{where} is a {type(value).__name__}, which JSON does not have")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where} is an integer of {value.bit_length()} bits; integers must fit in 64 bits")
    if type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}; numbers must be finite")
    if type(value) is str and any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigError(f"{where} is {_show(value)}; strings must be valid Unicode")


def _encode(value: object, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in _fields(type(value))]
        return {TAG: type(value).__name__} | {n: _encode(getattr(value, n), f"{where}.{n}", depth + 1) for n in names}
    if isinstance(value, tuple):
        return [_encode(part, f"{where}[{index}]", depth + 1) for index, part in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: _encode(part, f"{where}.{key}", depth + 1) for key, part in value.items()}
    if type(value) in _SCALARS:
        return value
    allowed = "dataclasses, tuples, mappings, numbers, strings, booleans and None"
    raise ConfigError(f"{where} is {_show(value)}; a config is made of {allowed}")


def _decode(annotation: Any, value: object, where: str) -> Any:
    options = tuple(_options(annotation))
    for option in options:
        if get_origin(option) is Literal and any(type(a) is type(value) and a == value for a in get_args(option)):
            return value
    if type(value) in options and type(value) in _SCALARS:
        return value
    if type(value) is int and float in options:
        return float(value)
    if isinstance(value, list):
        for option in options:
            if get_origin(option) is tuple:
                return _decode_tuple(option, value, where)
    if isinstance(value, dict):
        classes = {option.__name__: option for option in options if _is_config(option)}
        if classes:
            return _decode_dataclass(classes, value, where)
        for option in options:
            if _is_mapping(option):
                inner = get_args(option)[1]
                return {key: _decode(inner, part, f"{where}.{key}") for key, part in value.items()}
    raise ConfigError(f"{where} is {_show(value)}; it must be {_describe(annotation)}")


def _decode_tuple(annotation: Any, value: list[object], where: str) -> tuple[Any, ...]:
    inner = get_args(annotation)
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        raise ConfigError(f"{where} is {_show(value)}; it must be {_describe(annotation)}")
    return tuple(_decode(a, part, f"{where}[{i}]") for i, (a, part) in enumerate(zip(inner, value, strict=True)))


def _decode_dataclass(classes: dict[str, Any], value: dict[str, object], where: str) -> Any:
    # With one possible class the tag says nothing new, so that files written by hand may leave it out.
    tag = value.get(TAG, next(iter(classes)) if len(classes) == 1 else MISSING)
    if isinstance(tag, str) and tag not in classes:
        tag = RENAMED.get(tag, tag)
    if not isinstance(tag, str) or tag not in classes:
        shown = "missing" if tag is MISSING else _show(tag)
        raise ConfigError(f"{where}.{TAG} is {shown}; it must be {_alternatives(map(repr, classes))}")
    cls = classes[tag]
    known = {field.name: field for field in _fields(cls)}
    for key in value:
        if key != TAG and key not in known:
            raise ConfigError(f"{where} has the unknown key {_show(key)}; the keys of {tag} are {', '.join(known)}")
    hints = _hints(cls)
    arguments = {}
    for name, field in known.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}.{name} is missing; it must be {_describe(hints[name])}")
    try:
        return cls(**arguments)
    except Exception as error:  # whatever a __post_init__ raises is about these values
        raise ConfigError(f"{where} is no valid {tag}: {error}") from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fields(cls: Any) -> list[Field[Any]]:
    chosen = [field for field in fields(cls) if field.init]
    if any(field.name == TAG for field in chosen):
        raise TypeError(f"{cls.__name__} has a field named {TAG!r}, which JSON needs for the name of the class")
    return chosen


def _options(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from _options(option)
    else:
        yield NoneType if annotation is None else annotation


def _is_config(annotation: Any) -> bool:
    return is_dataclass(annotation)


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _describe(annotation: Any) -> str:
    return _alternatives(_describe_option(option) for option in _options(annotation))


def _describe_option(option: Any) -> str:
    if option in _SCALARS:
        return _SCALARS[option]
    if get_origin(option) is Literal:
        return _alternatives(map(repr, get_args(option)))
    if get_origin(option) is tuple:
        inner = get_args(option)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return f"a list, each value {_describe(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(map(_describe, inner))}"
    if _is_config(option):
        return f"an object of type {option.__name__}"
    if _is_mapping(option):
        return f"an object, each value {_describe(get_args(option)[1])}"
    raise TypeError(f"a config cannot hold {option!r}")


def _alternatives(words: Iterator[str]) -> str:
    return " or ".join(words)


def _show(value: object) -> str:
    return reprlib.repr(value)
