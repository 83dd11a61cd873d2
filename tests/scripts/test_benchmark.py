"""The benchmark prints what it promises; how fast the machine is, is no business of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str) -> Any:
    command = [sys.executable, str(ROOT / "training" / "benchmark.py"), *arguments, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_parameters_prints_the_papers_counts() -> None:
    counts = {(row["family"], row["frame"]): row["bottleneck_and_head"] for row in run("parameters")}
    assert counts["STEPVQ", "64x64"] == 2_175_616
    assert counts["CB", "64x64"] == 8_919_552
    assert counts["STEPVQ", "96x96"] < counts["CB", "96x96"]


def test_imagination_measures_against_the_peak_of_the_same_run() -> None:
    (row,) = run("imagination", "--rows", "8", "--families", "STEPVQ", "--seconds", "0.1")
    assert row["mflop_per_step"] > row["core_mflop"] > 10
    share = row["mflop_per_step"] * row["env_steps_per_second"] / 1e3 / row["gemm_peak_gflops"]
    assert abs(share - row["share_of_peak"]) < 0.05 * share + 0.002
