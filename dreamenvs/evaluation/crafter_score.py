"""The Crafter score (Hafner, 2021): the geometric mean of how often each of 22 achievements is reached.

An achievement counts once in an episode, however often it was reached there. The paper takes the episodes in which an
agent learns, up to a million steps; here a policy that has learned plays, so that the two figures are not the same.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from dreamenvs.checkpoints.shared_models import CheckpointLike, load
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import ObservationType
from dreamenvs.evaluation.episodes import Played, PolicyLike, play
from dreamenvs.evaluation.results import Progress, text_table, to_json
from dreamenvs.evaluation.statistics import LEVEL, RESAMPLES, Estimate, estimate, estimate_mean, resampled_means
from dreamenvs.worlds.real import make_real_vec
from dreamenvs.worlds.source import default_source, make_source

CRAFTER = "Crafter"
# fmt: off
ACHIEVEMENTS = (
    "collect_coal", "collect_diamond", "collect_drink", "collect_iron", "collect_sapling", "collect_stone",
    "collect_wood", "defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "make_iron_pickaxe",
    "make_iron_sword", "make_stone_pickaxe", "make_stone_sword", "make_wood_pickaxe", "make_wood_sword",
    "place_furnace", "place_plant", "place_stone", "place_table", "wake_up",
)
# fmt: on

Unlocked = NDArray[np.bool_]  # (N, 22), by episode and achievement


class CrafterSetting(NamedTuple):
    """How it was measured."""

    obs_type: str
    episodes: int
    num_envs: int
    seed: int
    """Of row 0; row i has seed + i."""
    deterministic: bool
    interval: str


class CrafterScore(NamedTuple):
    """What a policy reaches in the real game, with intervals over episodes; rates and score are in percent."""

    score: Estimate
    success: dict[str, Estimate]
    """How many of the episodes reach each achievement."""
    achievements: Estimate
    """Different ones in an episode."""
    episode_return: Estimate
    length: Estimate
    setting: CrafterSetting

    def to_json(self) -> dict[str, Any]:
        """For a card or a file: rows of a table, and how it was measured."""
        whole = {name: getattr(self, name) for name in ("score", "achievements", "episode_return", "length")}
        return {"crafter": to_json(whole), "success": to_json(self.success), "setting": to_json(self.setting)}

    def table(self) -> str:
        """The figures for people."""
        rates = [[f"{name.replace('_', ' ')} %", *rate] for name, rate in self.success.items()]
        whole = [
            ["Crafter score %", *self.score],
            ["achievements in an episode", *self.achievements],
            ["return", *self.episode_return],
            ["length", *self.length],
        ]
        setting = self.setting
        actions = "most likely" if setting.deterministic else "drawn"
        note = f"{setting.episodes} real episodes, seed {setting.seed}, {actions} actions; {setting.interval}"
        return f"{text_table(['', 'mean', 'low', 'high'], rates + whole)}\n{note}"


def crafter_score(
    policy: PolicyLike,
    checkpoint: CheckpointLike | Literal["real"] = "real",
    episodes: int = 100,
    seed: int = 0,
    *,
    obs_type: ObservationType = "rgb",
    num_envs: int = 16,
    deterministic: bool = False,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> CrafterScore:
    """Play the real Crafter, and count what the policy reaches.

    Args:
        policy: Anything with Stable-Baselines3's `predict`, a function from observations to actions, or `"random"`.
        checkpoint: A dream of Crafter (an id, a path, or what `dreamenvs.load` returned), whose preprocessing is used
            and whose model watches the frames for a policy that learned in it; or `"real"`, the game as it is.
        episodes: How many are played.
        seed: Of the environments, of random actions, and of torch, from which Stable-Baselines3 draws.
        obs_type: What the policy sees; `"latent"` and `"tokens"` need a dream.
        num_envs: How many are played side by side.
        deterministic: Whether the policy takes its most likely action.
        device: Where the world model runs.
        progress: Called with the number of episodes that are done, and of all there are.
    """
    if min(episodes, num_envs) < 1:
        raise ValueError(f"episodes and num_envs are at least 1, not {episodes} and {num_envs}")
    num_envs = min(num_envs, episodes)
    # Random actions follow from no observation, so no model need watch.
    envs = _make_game(checkpoint, num_envs, "rgb" if isinstance(policy, str) else obs_type, device)
    try:
        played = play(envs, policy, episodes, seed=seed, deterministic=deterministic, progress=progress)
    finally:
        envs.close()
    setting = CrafterSetting(
        obs_type=obs_type,
        episodes=episodes,
        num_envs=num_envs,
        seed=seed,
        deterministic=deterministic,
        interval=f"{LEVEL:.0%} percentile bootstrap over episodes, {RESAMPLES:,} resamples",
    )
    return summarise(played, setting)


def score_of(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores (…) of success rates (…, 22), all in percent: exp(mean(ln(1 + rate))) - 1."""
    scores: NDArray[np.float64] = np.expm1(np.log1p(rates).mean(-1))
    return scores


def summarise(played: Played, setting: CrafterSetting) -> CrafterScore:
    """The figures of episodes whose last infos tell the achievements."""
    rng = np.random.default_rng(setting.seed)
    unlocked = unlocked_in(played)
    percent = 100 * unlocked.astype(np.float64)
    rates, resampled = percent.mean(0), resampled_means(percent, rng)
    count = len(unlocked)
    return CrafterScore(
        score=estimate(float(score_of(rates)), score_of(resampled), count),
        success={
            name: estimate(float(rates[place]), resampled[:, place], count) for place, name in enumerate(ACHIEVEMENTS)
        },
        achievements=estimate_mean(unlocked.sum(1).astype(np.float64), rng),
        episode_return=estimate_mean(played.returns, rng),
        length=estimate_mean(played.lengths.astype(np.float64), rng),
        setting=setting,
    )


def unlocked_in(played: Played) -> Unlocked:
    """Which achievements each episode reached."""
    if any("achievements" not in info for info in played.infos):
        raise ValueError("an episode ended without info['achievements']: this environment is not Crafter")
    return np.array([[info["achievements"][name] > 0 for name in ACHIEVEMENTS] for info in played.infos])


def _make_game(
    checkpoint: CheckpointLike | Literal["real"], num_envs: int, obs_type: ObservationType, device: str | torch.device
) -> VectorEnv[Any, Any, Any]:
    if isinstance(checkpoint, str) and checkpoint == "real":
        if obs_type != "rgb":
            raise ValueError(f"obs_type={obs_type!r} is a dream's view of the game: give the dream")
        source = default_source(CRAFTER)
        return SyncVectorEnv([lambda: make_source(source)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    loaded = checkpoint if isinstance(checkpoint, Checkpoint) else load(checkpoint, device=device)
    spec = loaded.model.spec
    if spec.source is None or spec.source.id != CRAFTER:
        raise ValueError(f"the Crafter score is of Crafter, and this dream is of {spec.world}")
    return make_real_vec(loaded, num_envs, obs_type=obs_type, device=device)
