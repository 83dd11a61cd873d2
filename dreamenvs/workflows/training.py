"""From a dream to an agent: the family's recipe with one's own changes, and the learner in its dream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from dreamenvs.agents.defaults import AgentRecipe
from dreamenvs.agents.dream_trainer import DreamTrainer
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.agents.learner import Learner
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.saving import build_agent
from dreamenvs.checkpoints.world_model import Checkpoint


def adapt_recipe(
    recipe: AgentRecipe,
    steps: int,
    *,
    decay: bool = True,
    units: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> AgentRecipe:
    """A recipe with changes of its learning; with `decay` the learning rate falls over `steps` imagined steps."""
    recipe = replace(recipe, learning=replace(recipe.learning, **(changes or {})))
    if units is not None:
        names = ("actor_units", "critic_units") if isinstance(recipe.agent, LatentConfig) else ("units",)
        recipe = replace(recipe, agent=replace(recipe.agent, **dict.fromkeys(names, units)))
    updates = updates_for(steps, recipe) if decay else 0
    return replace(recipe, learning=replace(recipe.learning, decay_updates=updates))


def updates_for(steps: int, recipe: AgentRecipe) -> int:
    """As many as the imagined steps are good for, at least one."""
    return max(1, steps // (recipe.learning.rows * recipe.learning.horizon))


def new_trainer(dream: Checkpoint, recipe: AgentRecipe, *, seed: int, limit: int) -> DreamTrainer:
    """An agent before its first update; the caller's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent: Any = build_agent(recipe.agent, agent_spec(dream.model, recipe.obs_type))
    learner = Learner(agent, recipe.learning, seed)
    return DreamTrainer(learner, dream.model, dream.contexts, limit=limit)
