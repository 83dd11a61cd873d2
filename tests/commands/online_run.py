"""A tiny online run in a process of its own, which kills itself, as a power cut would, where it is told to.

python tests/commands/online_run.py [events|fsyncs NUMBER]: after so many events, or in the middle of writing files.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from dreamenvs.agents.latent_actor_critic import LatentConfig  # noqa: E402
from dreamenvs.cli import online as train_online  # noqa: E402
from dreamenvs.evaluation import online_results  # noqa: E402
from dreamenvs.fitting.schedule import Pace, Schedule  # noqa: E402
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization  # noqa: E402
from dreamenvs.presets.online import Evaluation, Preset, find_preset  # noqa: E402
from dreamenvs.priors.factorized import CrossEntropyObjective, FactorizedConfig  # noqa: E402
from tests.small import CONFIGS  # noqa: E402

SCHEDULE = Schedule(
    steps=80,
    chunk=8,
    after=8,
    warmup=24,
    stages={"tokenizer": Pace(rate=0.2, start=16), "dynamics": Pace(rate=0.1, start=24, first=2)},
    agent=Pace(rate=0.2, start=32),
    epsilon=0.1,
    context=4,
    evaluate_every=30,
)


def tiny_preset(family: str, name: str, env: str) -> Preset:
    """In the place of the presets: seconds instead of hours."""
    turns = TwoStageOptimization(
        tokenizer=StageConfig(rows=4, length=1, updates=1), dynamics=StageConfig(rows=2, length=6, updates=1)
    )
    prior = FactorizedConfig(objective=CrossEntropyObjective())
    preset = find_preset(family, "small", env)
    learning = replace(preset.agent.learning, rows=4, context=3, horizon=3)
    return replace(
        preset,
        config=replace(CONFIGS[family], prior=prior, optimization=turns),
        agent=replace(preset.agent, agent=LatentConfig(actor_units=16, critic_units=16), learning=learning),
        schedule=SCHEDULE,
        evaluation=Evaluation(episodes=2, final=3, num_envs=2, max_episode_steps=20),
        sampler="count",
    )


def make_tiny(script: Any, results: Any) -> None:
    """Patch the script."""
    script.find_preset = tiny_preset
    script.measure = partial(script.measure, starts=8, horizon=3)
    results.HELD_OUT_STEPS = 60


def kill_at(what: str, number: int) -> None:
    """End this process without a word, at the event or at the write of a number."""
    left = [number]

    def count(function: Any) -> Any:
        def counted(*args: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return counted

    if what == "events":
        train_online.OnlineMonitor.record = count(train_online.OnlineMonitor.record)  # type: ignore[method-assign]
    else:
        os.fsync = count(os.fsync)


if __name__ == "__main__":
    make_tiny(train_online, online_results)
    if len(sys.argv) > 1:
        kill_at(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["training/train_online.py"]
    # A state after every event: kills fall between saves, after them and into them.
    train_online.main(train_online.Args(name="tiny", out=Path("dream"), threads=1, save_minutes=0.0))
