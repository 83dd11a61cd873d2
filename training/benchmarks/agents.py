"""What an agent adds to the world model's own steps: its policy while they are imagined, and learning from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.models import build_preset

import dreamenvs
from dreamenvs import tree
from dreamenvs.agents.defaults import Size, default_recipe
from dreamenvs.agents.imagination import Moment, imagine
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.saving import build_agent
from dreamenvs.evaluation.measuring import Row, interleave, tell, timed
from dreamenvs.evaluation.rollouts import Rollout, imagination_of, observed, with_rows


def measure_agents(
    families: Sequence[str], preset: Size, dreams: Sequence[str], count: int, seconds: float
) -> list[Row]:
    """Untrained models of the families with the preset's agent, and dreams with the small one."""
    lines = []
    for family in families:
        model = build_preset(family, preset)
        lines.append({"model": f"{family}, {preset}"} | measure_agent(model, family, preset, count, seconds))
        tell(family, "with its agent")
    for name in dreams:
        dream = dreamenvs.load(name)
        lines.append({"model": name} | measure_agent(dream.model, dream.family, "small", count, seconds))
        tell(name, "with its agent")
    return lines


def measure_agent(model: Any, family: str, size: Size, count: int, seconds: float) -> Row:
    """Milliseconds of a step: the model's alone, with the policy, and with learning; turn and turn about."""
    recipe = default_recipe(family, size)
    horizon = imagination_of(family).horizon
    agent = build_agent(recipe.agent, agent_spec(model, recipe.obs_type))
    learner = Learner(agent, recipe.learning)
    with torch.no_grad():
        start = with_rows(observed(model, imagination_of(family).context), count)
    bare, seeds = Rollout(model, start, horizon), torch.arange(count)

    def fresh() -> Moment[Any, Any]:
        return Moment(tree.clone(start), agent.begin(count))

    def alone() -> list[float]:
        with torch.no_grad():
            return bare.mean_step()

    def imagining() -> list[float]:
        with torch.no_grad():
            bare.step()  # so that the first step finds the weights in the caches, as the model's alone does
        moment = fresh()
        return [timed(lambda: imagine(model, agent, moment, horizon, seeds)) / horizon]

    def learning() -> list[float]:
        moment = fresh()
        trajectory, _ = imagine(model, agent, moment, horizon, seeds)
        return [timed(lambda: learner._follow(trajectory, moment.memory, 0)) / horizon]

    times = interleave({"model": alone, "imagine": imagining, "learn": learning}, 2 * seconds)
    return {
        "agent": type(recipe.agent).__name__,
        "rows": count,
        "horizon": horizon,
        "model_ms": round(times["model"] * 1e3, 2),
        "imagine_ms": round(times["imagine"] * 1e3, 2),
        "ratio": round(times["imagine"] / times["model"], 3),
        "learn_ms": round(times["learn"] * 1e3, 2),
        "learn_share": round(times["learn"] / times["model"], 3),
    }
