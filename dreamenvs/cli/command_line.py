"""The command that is being run: its options, and its words as cards and results name them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeVar

import tyro

ArgsT = TypeVar("ArgsT")


def command_line(name: str) -> str:
    """Such as `dreamenvs fit stepvq --seed 1`, however it was started."""
    return shlex.join(["dreamenvs", name, *sys.argv[1:]])


def parse(kind: type[ArgsT], words: Sequence[str] | None = None, prog: str | None = None) -> ArgsT:
    """The options of a command; of a class `Args(ExpertOptions, Options)` the help shows its bases as two groups."""
    bases = [base for base in kind.__bases__ if is_dataclass(base)]
    if len(bases) != 2:
        return tyro.cli(kind, args=words, prog=prog)

    def build(common: Any, expert: Any) -> Any:
        return kind(**vars(common), **vars(expert))

    expert_type, common_type = bases
    build.__annotations__ = {
        "common": Annotated[common_type, tyro.conf.arg(name="")],
        "expert": Annotated[expert_type, tyro.conf.OmitArgPrefixes],
    }
    parsed: ArgsT = tyro.cli(build, args=words, prog=prog, description=kind.__doc__)
    return parsed
