"""The script that trains an agent in a dream: stopped and gone on with, it ends with the same weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import dreamenvs
from dreamenvs.worlds.source import default_source, describe, make_source
from tests.small import CONFIGS, build_small, random_segment

ROOT = Path(__file__).resolve().parents[2]
SHORT: dict[str, Any] = {"steps": 6 * 8 * 4, "rows": 8, "horizon": 4, "limit": 12, "units": 8, "threads": 1}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, in a directory with the untrained dreams `STEPVQ` and `IRIS` of a real game."""
    pytest.importorskip("minatar")
    source = default_source("MinAtar/Breakout-v1")
    spec = describe(make_source(source), world="MinAtarBreakout", source=source)
    for family in ("STEPVQ", "IRIS"):
        contexts = random_segment(spec, rows=4, steps=2)
        contexts = contexts._replace(terminated=contexts.terminated & False)
        model = build_small(family, spec)
        dreamenvs.save(tmp_path / family, model, contexts, family=family, config=CONFIGS[family], card={})
    monkeypatch.chdir(tmp_path)
    return import_module("dreamenvs.cli.train")


def stop_after(monkeypatch: pytest.MonkeyPatch, script: Any, updates: int) -> None:
    """As if Ctrl-C came with an update."""

    @contextmanager
    def interruption() -> Iterator[threading.Event]:
        stop = threading.Event()
        record = script.AgentMonitor.record

        def counted(self: Any, metrics: Any) -> None:
            record(self, metrics)
            if self._trainer.update == updates:
                stop.set()

        with monkeypatch.context() as patch:
            patch.setattr(script.AgentMonitor, "record", counted)
            yield stop

    monkeypatch.setattr(script, "interruption", interruption)


@pytest.mark.parametrize("family", ["STEPVQ", "IRIS"])
def test_a_run_that_was_stopped_ends_with_the_same_agent(
    family: str, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def args(name: str, **more: Any) -> Any:
        return script.Args(family, name=name, episodes=0, **SHORT | more)

    with pytest.raises(SystemExit, match="no state to go on from"):
        script.main(args("whole", resume=True))
    script.main(args("whole"))
    with monkeypatch.context() as patch:
        stop_after(patch, script, 3)
        with pytest.raises(SystemExit, match="stopped at update 3 of 6"):
            script.main(args("stopped"))
    assert not Path("runs/stopped/agent").exists()
    script.main(args("stopped", resume=True))
    assert "going on with runs/stopped: update 3" in capsys.readouterr().out
    agents = [Path(f"runs/{name}/agent/weights.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert agents[0] == agents[1]
    last = [
        json.loads(Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()[-1]) for name in ("whole", "stopped")
    ]
    assert last[0]["update"] == last[1]["update"] == 6
    assert last[0]["imagined_steps"] == 192
    with pytest.raises(SystemExit, match="holds another run"):
        script.main(args("whole", entropy=0.5))


def test_the_real_score_stands_beside_the_random_policys(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script.main(script.Args("STEPVQ", episodes=2, num_envs=2, max_episode_steps=10, film_steps=5, greedy=True, **SHORT))
    run = Path("runs/agent-STEPVQ")
    results = json.loads((run / "results.json").read_text())
    protocol = results["protocol"]
    assert protocol["episodes"] == 2
    assert protocol["actions"] == "most likely"
    assert (protocol["sticky_actions"], protocol["max_episode_steps"]) == (0.1, 10)
    assert results["learning"]["real_steps"] == 0
    assert set(results["transfer"]) == {"random", "agent"}
    assert {"mean", "low", "high"} <= set(results["transfer"]["agent"]["returns"]["real"])
    assert (run / "episode.gif").read_bytes().startswith(b"GIF89a")
    assert "95 % intervals" in capsys.readouterr().out
    assert dreamenvs.load_agent(run / "agent").spec.world == "MinAtarBreakout"


def test_a_family_without_an_agent_is_named(script: Any) -> None:
    with pytest.raises(SystemExit, match="'Other' has no default agent"):
        script.choose_recipe(script.Args("STEPVQ"), "Other")
