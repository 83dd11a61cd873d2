"""Which agent learns in which family's dreams, with the paper's hyperparameters, and small ones for two cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dreamenvs.agents.encoders import PixelEncoderConfig, ResidualEncoderConfig, TokenEncoderConfig
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.agents.learner import LearningConfig
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig
from dreamenvs.dream import ObservationType
from dreamenvs.families import FAMILIES, resolve

Size = Literal["paper", "small"]


@dataclass(frozen=True, kw_only=True)
class AgentRecipe:
    """An agent and how it learns."""

    agent: Any
    """Its config."""
    obs_type: ObservationType
    learning: LearningConfig


STORM = AgentRecipe(agent=LatentConfig(), obs_type="latent", learning=LearningConfig())
"""GIT-STORM's tables 8 and 14, which are STORM's."""

STEP_VQ = AgentRecipe(
    agent=LatentConfig(actor_units=256, norm="rms", activation="silu"),
    obs_type="latent",
    learning=LearningConfig(rate=4e-5, context=4),
)
"""STEP-VQ's table 15; the horizon and what it does not name are DRAMA's, which are STORM's."""

_PLAIN: dict[str, Any] = {"trace": 0.95, "rate": 1e-4, "eps": 1e-8, "slow_weight": 0.0, "scaled": False}

IRIS = AgentRecipe(
    agent=RecurrentConfig(),
    obs_type="rgb",
    learning=LearningConfig(
        rows=64, context=21, warm_up=1, horizon=20, discount=0.995, entropy=1e-3, clip=10.0, **_PLAIN
    ),
)
"""IRIS: a burn-in of 20 frames for the LSTM, while the world model sees the last one alone."""

REM = AgentRecipe(
    agent=RecurrentConfig(encoder=TokenEncoderConfig(), action_inputs=True),
    obs_type="tokens",
    learning=LearningConfig(
        rows=128,
        context=21,
        warm_up=2,
        horizon=8,
        discount=0.995,
        entropy=1e-3,
        clip=3.0,
        weight_decay=0.01,
        **_PLAIN,
    ),
)
"""REM's tables 5 and 6; two blocks of context and eight steps make the ten that its world model is trained on."""

DELTA_IRIS = AgentRecipe(
    agent=RecurrentConfig(encoder=ResidualEncoderConfig(), values="two_hot"),
    obs_type="rgb",
    learning=LearningConfig(
        rows=86,
        context=6,
        horizon=15,
        discount=0.997,
        entropy=1e-3,
        clip=10.0,
        bootstrap="slow",
        slow_decay=0.995,
        **_PLAIN,
    ),
)
"""Δ-IRIS's section A.3, for Crafter: five frames of burn-in and the present one."""

SMALL_LEARNING = LearningConfig(
    rows=64,
    context=4,
    horizon=32,
    discount=0.98,
    rate=1e-3,
    entropy=0.01,
    slow_weight=0.0,
    scaled=False,
    standardised=True,
    epochs=4,
    minibatches=2,
)
"""For two cores: imagined steps are expensive there, so each of them is learned from four times."""

SMALL_LATENT = AgentRecipe(
    agent=LatentConfig(actor_units=128, critic_units=128, norm="rms", activation="silu", normalized=True),
    obs_type="latent",
    learning=SMALL_LEARNING,
)

SMALL_PIXELS = AgentRecipe(
    agent=RecurrentConfig(encoder=PixelEncoderConfig(channels=(16, 32, 32)), units=128),
    obs_type="rgb",
    learning=SMALL_LEARNING,
)

SMALL_TOKENS = AgentRecipe(
    agent=RecurrentConfig(
        encoder=TokenEncoderConfig(width=16, channels=(32, 32), units=128),
        units=128,
        action_inputs=True,
    ),
    obs_type="tokens",
    learning=SMALL_LEARNING,
)


def default_recipe(family: str, size: Size = "small") -> AgentRecipe:
    """The agent for the dreams of a family."""
    if family not in FAMILIES:
        raise ValueError(f"{family!r} has no default agent; there are {', '.join(FAMILIES)}")
    entry = FAMILIES[family]
    recipe: AgentRecipe = resolve(entry.paper_agent if size == "paper" else entry.small_agent)
    return recipe
