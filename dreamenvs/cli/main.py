"""The command `dreamenvs`: subcommands are modules of `dreamenvs.cli`, each imported when it is asked for.

    dreamenvs list
    dreamenvs fit stepvq --env MinAtar/Breakout-v1
    dreamenvs fit --import my.module --env my/Game-v0

`--import` brings environments of one's own, `--threads` the CPU threads of PyTorch, and `--debug` the traceback of an
error. What a user can cause ends with one sentence and the exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

PROG = "dreamenvs"
USAGE_ERROR = 2
_STOPPED = 130


class Command(NamedTuple):
    """Where a subcommand is, and what it is for."""

    module: str
    summary: str


COMMANDS = {
    "list": Command("dreamenvs.cli.dreams", "the dreams at hand, and where they are kept"),
    "info": Command("dreamenvs.cli.info", "what the card of a dream says"),
    "collect": Command("dreamenvs.cli.collect", "play a real environment and keep the episodes"),
    "fit": Command("dreamenvs.cli.fit", "fit a world model and save it as a dream"),
    "train": Command("dreamenvs.cli.train", "train an agent in a dream, and play the real environment"),
    "online": Command("dreamenvs.cli.online", "train an agent and its world model together"),
    "rounds": Command("dreamenvs.cli.rounds", "collect, fit, learn in the dream, and collect again"),
    "evaluate": Command("dreamenvs.cli.evaluate", "measure a dream, and policies from it"),
    "doctor": Command("dreamenvs.cli.doctor", "say whether a dream is worth training in, and if not, why"),
    "study": Command("dreamenvs.cli.study", "families × worlds × seeds, here or on Ray"),
    "rm": Command("dreamenvs.cli.rm", "remove a dream of your own"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from dreamenvs import __version__

        print(f"{PROG} {__version__}")
        return 0
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        name, *words = words
        if name not in COMMANDS:
            raise SystemExit(f"there is no command {name!r}: choose from {', '.join(COMMANDS)}")
        import_modules(words)
        return run(name, words)
    except KeyboardInterrupt:
        return _STOPPED
    except SystemExit as end:
        if not isinstance(end.code, str) or debug:
            raise
        print(end.code, file=sys.stderr)
        return _STOPPED if end.code.startswith("stopped at ") else USAGE_ERROR
    except Exception as error:
        if debug or not caused_by_user(error):
            raise
        print(f"{PROG} {name}: {error}", file=sys.stderr)
        return USAGE_ERROR


def usage() -> str:
    """The commands, one a line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    notes = [
        f"{PROG} <command> --help shows the options of a command. All take --import <module>, for environments of",
        "your own, and --debug, for the traceback of an error.",
    ]
    head = [f"usage: {PROG} <command> [options]", "", "Learned world models as Gymnasium environments.", ""]
    return "\n".join([*head, *lines, "", *notes])


def run(name: str, words: list[str]) -> int:
    """The exit code of a subcommand."""
    try:
        from dreamenvs.cli.command_line import parse
    except ImportError as error:
        raise SystemExit(f'the commands need an extra: pip install "dreamenvs[train]" ({error})') from error
    module: Any = import_module(COMMANDS[name].module)
    # Cards and result files name the command; the words that follow it are what `sys.argv` holds.
    sys.argv = [f"{PROG} {name}", *words]
    code = module.main(parse(module.Args, words, f"{PROG} {name}"))
    return code if isinstance(code, int) else 0


def import_modules(words: list[str]) -> None:
    """Take `--import <module>` out of the words, and import what it names; `my.module:Game-v0` imports as well."""
    for place in range(len(words) - 1, -1, -1):
        if words[place] == "--import":
            if place + 1 == len(words):
                raise SystemExit("--import needs the name of a module, such as my.module")
            _import(words[place + 1])
            del words[place : place + 2]
    for place, word in enumerate(words):
        module, colon, env_id = word.partition(":")
        if colon and words[place - 1] == "--env":
            _import(module)
            words[place] = env_id


def _import(module: str) -> None:
    sys.path[:0] = [os.getcwd()] if os.getcwd() not in sys.path else []
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise SystemExit(f"--import {module}: {error}") from error


def caused_by_user(error: Exception) -> bool:
    """Whether one sentence says enough: a wrong id, path, data set, setting, or an extra that is missing."""
    from gymnasium.error import Error

    expected: tuple[type[Exception], ...] = (OSError, ValueError, ImportError, Error)
    if "torch" in sys.modules:
        from dreamenvs.checkpoints.world_model import CheckpointError

        expected = (*expected, CheckpointError)
    return isinstance(error, expected)


if __name__ == "__main__":
    sys.exit(main())
