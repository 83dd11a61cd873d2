"""Transfer: what a policy earns in the dream, what it earns in the real environment, and the gap between the two.

Two things would make the gap unfair. A dream is cut at its horizon, so it is compared with what the policy earns in the
first steps of a real episode, as many. And a dream may start anywhere in an episode, so here it starts where real
episodes do: from their first frames.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from dreamenvs.checkpoints.shared_models import CheckpointLike, load
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import ObservationType
from dreamenvs.envs.vector import DEFAULT_HORIZON, DreamVectorEnv
from dreamenvs.evaluation.episodes import Played, PolicyLike, play
from dreamenvs.evaluation.results import Progress, text_table, to_json
from dreamenvs.evaluation.statistics import LEVEL, RESAMPLES, Estimate, estimate_gap, estimate_mean
from dreamenvs.models.actions import zero_actions
from dreamenvs.types import Scalar, Segment
from dreamenvs.worlds.real import make_real, make_real_vec

MAX_EPISODE_STEPS = 27_000
"""The longest Atari game at four frames a step."""


class TransferSetting(NamedTuple):
    """How it was measured."""

    env: str
    source: dict[str, Scalar]
    """The settings of the real environment and of its preprocessing."""
    obs_type: str
    episodes: int
    """In the dream and in the real environment, a fixed number in each row."""
    num_envs: int
    seed: int
    """Of row 0; row i has seed + i."""
    deterministic: bool
    horizon: int
    """Steps of a dream, which starts with the first frame of a real episode."""
    temperature: float
    """Of the dreamed tokens."""
    max_episode_steps: int
    """Steps after which a real episode is cut."""
    interval: str


class Side(NamedTuple):
    """Episodes of one kind."""

    episode_return: Estimate
    length: Estimate
    truncated: int
    """How many were cut by a limit."""


class Transfer(NamedTuple):
    """A policy's return, with intervals over episodes."""

    dream: Side
    """Up to the horizon."""
    real: Side
    """Whole episodes: the figure that others report."""
    real_early: Estimate
    """The return of real episodes up to the dream's horizon."""
    gap: Estimate
    """The dream's return minus the real one up to the horizon."""
    failed: int
    """Dreams in which the model gave NaN or infinity."""
    setting: TransferSetting

    def to_json(self) -> dict[str, Any]:
        """For a card or a file: rows of a table, and how it was measured."""
        rows = {
            "dream": _row(self.dream),
            "real_early": self.real_early._asdict(),
            "gap": self.gap._asdict(),
            "real": _row(self.real),
        }
        return {"failed_dreams": self.failed, "returns": to_json(rows), "setting": to_json(self.setting)}

    def table(self) -> str:
        """The figures for people."""
        columns = ["", "mean return", "low", "high", "mean length"]
        setting = self.setting
        rows: list[list[Any]] = [
            [f"dream, up to {setting.horizon} steps", *self.dream.episode_return, self.dream.length.mean],
            [f"real, up to {setting.horizon} steps", *self.real_early, None],
            ["gap", *self.gap, None],
            ["real, whole episodes", *self.real.episode_return, self.real.length.mean],
        ]
        actions = "most likely" if setting.deterministic else "drawn"
        note = f"{setting.episodes} episodes each, seed {setting.seed}, {actions} actions; {setting.interval}"
        return f"{text_table(columns, rows)}\n{note}"


def transfer(
    policy: PolicyLike,
    checkpoint: CheckpointLike,
    *,
    obs_type: ObservationType = "rgb",
    episodes: int = 100,
    num_envs: int = 16,
    seed: int = 0,
    deterministic: bool = False,
    horizon: int = DEFAULT_HORIZON,
    temperature: float = 1.0,
    max_episode_steps: int = MAX_EPISODE_STEPS,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Transfer:
    """Play the same policy in a dream and in the real environment that the dream is of.

    Args:
        policy: Anything with Stable-Baselines3's `predict`, a function from observations to actions, or `"random"`.
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        obs_type: What the policy sees; for `"latent"` and `"tokens"` the world model watches the real frames.
        episodes: How many are played in the dream, and as many in the real environment.
        num_envs: How many are played side by side.
        seed: Of both environments, of random actions, and of torch, from which Stable-Baselines3 draws.
        deterministic: Whether the policy takes its most likely action.
        horizon: Steps of a dream.
        temperature: Of the dreamed tokens; that of the dream in which the policy learned.
        max_episode_steps: Steps after which a real episode is cut.
        device: Where the world model runs.
        progress: Called with the number of episodes that are done, dreamed and real, and of all there are.
    """
    if min(episodes, num_envs, horizon) < 1:
        raise ValueError(f"episodes, num_envs and horizon are at least 1, not {episodes}, {num_envs} and {horizon}")
    loaded = checkpoint if isinstance(checkpoint, Checkpoint) else load(checkpoint, device=device)
    num_envs = min(num_envs, episodes)
    begin = loaded._replace(contexts=first_frames(loaded, episodes, seed))
    rows: dict[str, Any] = {"device": device, "autoreset_mode": AutoresetMode.NEXT_STEP}
    # Random actions follow from no observation, so the cheapest ones do.
    blind = isinstance(policy, str)
    dreams = DreamVectorEnv(
        num_envs,
        checkpoint=begin,
        obs_type="tokens" if blind else obs_type,
        horizon=horizon,
        temperature=temperature,
        **rows,
    )
    reality = make_real_vec(
        loaded, num_envs, obs_type="rgb" if blind else obs_type, max_episode_steps=max_episode_steps, **rows
    )
    settings: dict[str, Any] = {"seed": seed, "deterministic": deterministic, "horizon": horizon}
    try:
        dreamed = play(dreams, policy, episodes, progress=_shifted(progress, 0, 2 * episodes), **settings)
        real = play(reality, policy, episodes, progress=_shifted(progress, episodes, 2 * episodes), **settings)
    finally:
        dreams.close()
        reality.close()
    setting = _setting(
        loaded,
        obs_type=obs_type,
        episodes=episodes,
        num_envs=num_envs,
        temperature=temperature,
        max_episode_steps=max_episode_steps,
        **settings,
    )
    return _compare(dreamed, real, setting)


def first_frames(checkpoint: Checkpoint, count: int, seed: int) -> Segment:
    """Contexts of one frame, the first ones of real episodes with the seeds from `seed` on."""
    env = make_real(checkpoint)
    frames = np.stack([env.reset(seed=seed + number)[0] for number in range(count)])
    env.close()
    flags = torch.zeros(count, 1, dtype=torch.bool)
    return Segment(
        observations=torch.from_numpy(frames).permute(0, 3, 1, 2)[:, None].contiguous(),
        actions=zero_actions(checkpoint.model.spec.actions, count)[:, None],
        rewards=torch.zeros(count, 1),
        terminated=flags,
        valid=~flags,
    )


def _compare(dreamed: Played, real: Played, setting: TransferSetting) -> Transfer:
    rng = np.random.default_rng(setting.seed)
    return Transfer(
        dream=_side(dreamed, rng),
        real=_side(real, rng),
        real_early=estimate_mean(real.early_returns, rng),
        gap=estimate_gap(dreamed.returns, real.early_returns, rng),
        failed=int(dreamed.failed.sum()),
        setting=setting,
    )


def _side(played: Played, rng: np.random.Generator) -> Side:
    return Side(
        episode_return=estimate_mean(played.returns, rng),
        length=estimate_mean(played.lengths.astype(np.float64), rng),
        truncated=int(played.truncated.sum()),
    )


def _setting(checkpoint: Checkpoint, **settings: Any) -> TransferSetting:
    source = checkpoint.model.spec.source
    assert source is not None  # make_real has refused a dream without one
    return TransferSetting(
        env=source.id,
        source={**source.kwargs, "preprocessing": source.preprocessing, **source.options},
        interval=f"{LEVEL:.0%} percentile bootstrap over episodes, {RESAMPLES:,} resamples",
        **settings,
    )


def _row(side: Side) -> dict[str, float]:
    return {**side.episode_return._asdict(), "mean_length": side.length.mean, "truncated": side.truncated}


def _shifted(progress: Progress | None, begun: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(begun + done, total)
