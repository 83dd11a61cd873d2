"""Python in a process of its own that need not wait for torch: it is forked from one in which torch is imported.

The package itself and its scripts are imported by the new process, under its own environment and from its own path.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

WARM = ("torch", "numpy", "gymnasium", "safetensors.torch", "tyro", "stable_baselines3")
"""What most scripts import; those that are not installed are left out."""


def run_python(
    arguments: Sequence[str], *, cwd: Path | str = ".", env: Mapping[str, str] | None = None, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([sys.executable, *arguments], capture_output=True, text=True)` of a file or of `-c` and code."""
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
        )
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as directory:
        files = [str(Path(directory) / name) for name in ("stdout", "stderr")]
        env = dict(os.environ if env is None else env) | {"OMP_NUM_THREADS": "1"}
        request = {"arguments": list(arguments), "cwd": str(Path(cwd).absolute()), "env": env, "files": files}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _stop(server)
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        code = int(server.stdout.readline())
        stdout, stderr = (Path(name).read_text(encoding="utf-8") for name in files)
    return subprocess.CompletedProcess([sys.executable, *arguments], code, stdout, stderr)


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    """End it, with what it is waiting for."""
    _server.cache_clear()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _serve() -> None:
    """Fork once for each line of the input, and answer with the exit code."""
    for name in WARM:
        with contextlib.suppress(ImportError):
            __import__(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(request: Any) -> None:
    """What the interpreter does from its start to its end."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in enumerate(request["files"], 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    first, *rest = request["arguments"]
    code, place = (rest.pop(0), "") if first == "-c" else (Path(first).read_text(encoding="utf-8"), str(first))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [str(Path(place).resolve().parent) if place else "", *paths]
    sys.argv = [place or "-c", *rest]
    main = type(sys)("__main__")
    main.__dict__.update({"__builtins__": __builtins__} | ({"__file__": place} if place else {}))
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, place or "<string>", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if status and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
