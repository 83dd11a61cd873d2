"""Conservation: how often things appear or vanish in a dream that never do for real, and what random play earns there.

Token accuracy does not show a second player, a policy finds it. What a game conserves is found in its frames: a patch
whose number hardly varies, such as the one player's. Frames are compared as they are seen, by the nearest patches of
real ones, so that every family is counted alike; what is like no real patch is counted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.agents.player import Player
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.episode import Episode
from dreamenvs.dream import Dream, observe_contexts
from dreamenvs.evaluation.results import Progress, text_table, to_json
from dreamenvs.evaluation.statistics import Estimate, estimate_mean
from dreamenvs.models.actions import sample_actions
from dreamenvs.tokenizers.patches import PatchesConfig, PatchTokenizer

USUAL = 0.95
"""The share of real frames that must show as many of a patch, for it to be called conserved."""
SIZES = (4, 8, 5, 2)
"""Sides of patches that are tried, in this order: the first whose patches are few."""
CODES = 256
FEW = 0.02
"""The most of a frame's places that may look like none of `CODES` patches."""
FRAMES = 16
"""The fewest frames that say anything of an imagined step."""


class Changes(NamedTuple):
    """What becomes of a patch in frames that show the usual number of it, over steps that do not end an episode."""

    more: float
    """The share of these steps that lead to more."""
    fewer: float
    frames_with_more: float
    """The share of all frames with more than usual."""


class Conserved(NamedTuple):
    """A patch whose number hardly varies for real."""

    patch: int
    usual: int
    share: float
    """Of the real frames, those with the usual number."""
    real: Changes
    dream: Changes


class Rates(NamedTuple):
    """What random play comes to, per 100 steps, with intervals over rows or episodes."""

    reward: Estimate
    ends: Estimate
    steps: int


class AtStep(NamedTuple):
    """What the frames look like that many imagined steps after a start context."""

    step: int
    frames: int
    strange: float
    """The share of places that look like no real patch."""
    more: float
    """The share of frames that show more than the usual number of something conserved."""
    changed: float
    """The share of places that look like another patch than one step before."""
    reward: float
    """The mean reward of the step that leads there."""


class Conservation(NamedTuple):
    """A dream under uniformly random actions, or those of a player, next to real frames."""

    conserved: list[Conserved]
    strange: float
    """The share of places of imagined frames that look like no real patch."""
    strange_real: float
    """The same of held-out real frames: what the instrument itself does not know."""
    changed_real: float
    """The share of places that look like another patch in the next real frame."""
    by_step: list[AtStep]
    """From the start context, which is step 0, to the last step that at least `FRAMES` frames reached."""
    dream: Rates
    steps: int
    horizon: int
    patch_size: int

    def to_json(self) -> dict[str, Any]:
        """For a card or a file."""
        rows = [
            {"patch": each.patch, "usual": each.usual, "share": each.share}
            | {f"real_{name}": value for name, value in each.real._asdict().items()}
            | {f"dream_{name}": value for name, value in each.dream._asdict().items()}
            for each in self.conserved
        ]
        return {
            "conserved": to_json(rows),
            "strange": {"dream": to_json(self.strange), "real": to_json(self.strange_real)},
            "by_step": to_json([each for each in self.by_step if each.step % 10 == 0]),
            "random_play": {"reward": to_json(self.dream.reward), "ends": to_json(self.dream.ends)},
            "setting": {"steps": self.steps, "horizon": self.horizon, "patch_size": self.patch_size},
        }

    def table(self) -> str:
        """The figures for people."""
        columns = ["patch", "usual", "real +", "dream +", "real -", "dream -", "real frames +", "dream frames +"]
        rows: list[list[Any]] = [[str(each.patch), each.usual, *_percents(each)] for each in self.conserved]
        reward, ends = self.dream.reward, self.dream.ends
        note = (
            f"random play in the dream, per 100 steps: reward {reward.mean:.3g} [{reward.low:.3g}, {reward.high:.3g}], "
            f"ends {ends.mean:.3g} [{ends.low:.3g}, {ends.high:.3g}]; {self.strange:.2%} of the places look like "
            f"nothing real ({self.strange_real:.2%} of real ones)"
        )
        return f"{text_table(columns, rows)}\n{note}" if rows else f"nothing is conserved in the data\n{note}"


def _percents(each: Conserved) -> list[str]:
    pairs = zip(each.real, each.dream, strict=True)
    return [f"{value:.2%}" for pair in pairs for value in pair]


@torch.inference_mode()
def conservation(
    checkpoint: Checkpoint,
    episodes: Sequence[Episode],
    *,
    rows: int = 64,
    steps: int = 50_000,
    horizon: int = 120,
    seed: int = 0,
    player: Player | None = None,
    progress: Progress | None = None,
) -> Conservation:
    """Count patches in real episodes and in a dream of at least `steps` steps under uniformly random actions.

    Args:
        checkpoint: The dream, which begins at its start contexts.
        episodes: Real episodes, of any policy; rates of change are compared best with random play.
        rows: Dreams side by side.
        steps: Over all rows.
        horizon: Steps of a dream.
        seed: Of the dreams and of their actions.
        player: Acts in place of random actions.
        progress: Called with the number of steps that are done, and of all there are.
    """
    counter = build_counter(checkpoint.model.spec.observation_shape, episodes)
    seen = [_look(counter, _frames(episode.observations)) for episode in episodes]
    real = [look.counts for look in seen]
    usual = find_conserved(real)
    dream: Dream[Any] = Dream(
        checkpoint.model, observe_contexts(checkpoint.model, checkpoint.contexts), num_rows=rows, horizon=horizon
    )
    recorded = _record(dream, counter, -(-steps // rows), seed, player, progress)
    conserved = []
    for patch, (number, share) in usual.items():
        found = [counts[:, patch] for counts in real]
        last = [bool(episode.terminated[-1]) for episode in episodes]
        conserved.append(
            Conserved(patch, number, share, _real_changes(found, last, number), recorded.changes(patch, number))
        )
    return Conservation(
        conserved,
        float(recorded.strange.mean()),
        float(seen[-1].strange.mean()),
        float(np.concatenate([(look.tokens[1:] != look.tokens[:-1]).mean(1) for look in seen]).mean()),
        recorded.by_step(usual),
        recorded.rates(seed),
        rows * -(-steps // rows),
        horizon,
        counter.config.size,
    )


def build_counter(shape: tuple[int, int, int], episodes: Sequence[Episode]) -> PatchTokenizer:
    """An instrument that knows the patches of real frames: as fine a grid as `CODES` patches describe."""
    best: tuple[float, PatchTokenizer] | None = None
    for size in SIZES:
        if shape[1] % size or shape[2] % size:
            continue
        counter = PatchTokenizer(PatchesConfig(size=size, codes=CODES, threshold=8.0, code_width=1), shape)
        for episode in episodes[:-1] or episodes:
            counter.grow(_frames(episode.observations))
            if int(counter.kept) == CODES:
                break
        strange = counter.share_of_strange(_frames(episodes[-1].observations))
        if strange <= FEW:
            return counter
        if best is None or strange < best[0]:
            best = (strange, counter)
    if best is None:
        raise ValueError(f"frames of {shape[1]} x {shape[2]} pixels are not made of patches of {SIZES} pixels")
    return best[1]


def count_patches(counter: PatchTokenizer, frames: Tensor) -> NDArray[np.int64]:
    """(N, V): how many of each patch are in frames (N, C, H, W)."""
    return _look(counter, frames).counts


class _Look(NamedTuple):
    """Frames as the instrument sees them."""

    tokens: NDArray[np.int64]  # (N, K)
    counts: NDArray[np.int64]  # (N, V)
    strange: NDArray[np.float64]  # (N,), the share of places that look like no kept patch


def _look(counter: PatchTokenizer, frames: Tensor) -> _Look:
    size = counter.config.size
    cut = rearrange(frames, "n c (h i) (w j) -> (n h w) (c i j)", i=size, j=size)
    found = counter.nearest(cut)
    tokens = found.tokens.view(len(frames), -1)
    counts = torch.zeros(len(tokens), counter.vocabulary, dtype=torch.int64)
    counts.scatter_add_(1, tokens, torch.ones_like(tokens))
    strange = (found.distances > counter.config.threshold).view_as(tokens).double().mean(1)
    return _Look(tokens.numpy(), counts.numpy(), strange.numpy())


def find_conserved(counts: Sequence[NDArray[np.int64]]) -> dict[int, tuple[int, float]]:
    """The patches whose number, of at least one and at most three, hardly varies: the number and how usual it is.

    What fills a part of the frame that never changes is left out: it is no thing that could be lost.
    """
    together = np.concatenate(list(counts))
    found: dict[int, tuple[int, float]] = {}
    for patch in np.flatnonzero(together.max(0)):
        numbers, frequency = np.unique(together[:, patch], return_counts=True)
        best = int(frequency.argmax())
        number, share = int(numbers[best]), float(frequency[best] / len(together))
        if 1 <= number <= 3 and share >= USUAL:
            found[int(patch)] = (number, share)
    return found


class _Recorded(NamedTuple):
    """What a dream showed, steps first."""

    tokens: NDArray[np.int64]  # (T + 1, B, K)
    counts: NDArray[np.int64]  # (T + 1, B, V)
    strange: NDArray[np.float64]  # (T + 1, B)
    ages: NDArray[np.int64]  # (T + 1, B)
    rewards: NDArray[np.float32]  # (T, B)
    ended: NDArray[np.bool_]  # (T, B), whether the step terminated the episode
    fresh: NDArray[np.bool_]  # (T, B), where the frame after the step begins a new dream

    def rates(self, seed: int) -> Rates:
        """What the dream pays, and how often it ends."""
        rng = np.random.default_rng(seed)
        by_row = [100 * part.astype(np.float64).mean(0) for part in (self.rewards, self.ended)]
        reward, ends = (estimate_mean(part, rng) for part in by_row)
        return Rates(reward, ends, self.rewards.size)

    def by_step(self, usual: dict[int, tuple[int, float]]) -> list[AtStep]:
        """The frames of each age, as far as there are enough of them."""
        more = np.zeros(self.ages.shape, bool)
        for patch, (number, _) in usual.items():
            more |= self.counts[..., patch] > number
        going = ~self.fresh
        changed = (self.tokens[1:] != self.tokens[:-1]).mean(-1)
        after = self.ages[1:][going]
        frames = np.bincount(self.ages.ravel())
        moved = np.maximum(np.bincount(after, minlength=len(frames)), 1)
        columns = (
            np.bincount(self.ages.ravel(), self.strange.ravel()) / frames.clip(1),
            np.bincount(self.ages.ravel(), more.ravel()) / frames.clip(1),
            np.bincount(after, changed[going], len(frames)) / moved,
            np.bincount(after, self.rewards[going], len(frames)) / moved,
        )
        few = np.flatnonzero(frames < FRAMES)
        count = int(few[0]) if len(few) else len(frames)
        return [AtStep(age, int(frames[age]), *(float(column[age]) for column in columns)) for age in range(count)]

    def changes(self, patch: int, usual: int) -> Changes:
        before, after = self.counts[:-1, :, patch], self.counts[1:, :, patch]
        going = ~self.ended & ~self.fresh
        from_usual = going & (before == usual)
        return _changes(from_usual, after, usual, going)


def _real_changes(counts: Sequence[NDArray[np.int64]], terminated: Sequence[bool], usual: int) -> Changes:
    before = np.concatenate([each[:-1] for each in counts])
    after = np.concatenate([each[1:] for each in counts])
    going = np.ones(len(before), bool)
    ends = np.cumsum([len(each) - 1 for each in counts]) - 1
    going[ends[np.array(terminated, bool)]] = False
    return _changes(going & (before == usual), after, usual, going)


def _changes(from_usual: NDArray[np.bool_], after: NDArray[np.int64], usual: int, going: NDArray[np.bool_]) -> Changes:
    steps, frames = max(1, int(from_usual.sum())), max(1, int(going.sum()))
    return Changes(
        more=float((from_usual & (after > usual)).sum() / steps),
        fewer=float((from_usual & (after < usual)).sum() / steps),
        frames_with_more=float((going & (after > usual)).sum() / frames),
    )


def _record(
    dream: Dream[Any],
    counter: PatchTokenizer,
    length: int,
    seed: int,
    player: Player | None,
    progress: Progress | None,
) -> _Recorded:
    rows = dream.num_rows
    dream.reset([seed + row for row in range(rows)])
    choose = _uniform(dream, seed) if player is None else _played(dream, player)
    starts = torch.ones(rows, dtype=torch.bool, device=dream.device)
    looks, ages, moves = [], [], []

    def look() -> None:
        looks.append(_look(counter, dream.observation("rgb").permute(0, 3, 1, 2).cpu()))
        ages.append(dream.rows.ages[:rows].cpu().numpy().copy())

    look()
    for step in range(length):
        moved = dream.step(choose(starts))
        starts = moved.terminated | moved.truncated
        if starts.any():
            dream.reset_rows(starts.nonzero()[:, 0])
        look()
        moves.append((moved.rewards.cpu().numpy(), moved.terminated.cpu().numpy(), starts.cpu().numpy()))
        if progress is not None:
            progress((step + 1) * rows, length * rows)
    tokens, counts, strange = (np.stack(part) for part in zip(*looks, strict=True))
    rewards, ended, fresh = (np.stack(part) for part in zip(*moves, strict=True))
    return _Recorded(tokens, counts, strange, np.stack(ages), rewards, ended, fresh)


def _uniform(dream: Dream[Any], seed: int) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator(dream.device).manual_seed(seed)
    return lambda starts: sample_actions(dream.model.spec.actions, dream.num_rows, generator)


def _played(dream: Dream[Any], player: Player) -> Callable[[Tensor], Tensor]:
    """The actions of a player, who begins anew in rows (B,) that start."""
    memory: Any = None

    def choose(starts: Tensor) -> Tensor:
        nonlocal memory
        views = dream.observation(player.obs_type).cpu().numpy()
        actions, memory = player.predict(views, memory, starts.cpu().numpy())
        return torch.as_tensor(actions, device=dream.device)

    return choose


def _frames(observations: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.moveaxis(observations, -1, 1).copy())
