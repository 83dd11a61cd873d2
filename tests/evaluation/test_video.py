"""Video prediction on worlds that are known exactly, and against plain loops over videos."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.evaluation.frechet import compare_features
from dreamenvs.evaluation.video import draw_videos, measure_videos
from dreamenvs.evaluation.video_features import RandomFeatures
from dreamenvs.random import Noise
from tests.evaluation.test_fidelity import StillWorld, counting_episode, noisy_episode, segment
from tests.small import build_small, stage_segment
from tests.toy_worlds import CountingWorld


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class MeanFrames:
    """A feature network that remembers what it was shown."""

    name = "Fréchet distance on mean pixels"

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def features(self, videos: Tensor) -> NDArray[np.float64]:
        self.seen.append(videos.clone())
        means: NDArray[np.float64] = videos.double().mean((2, 3, 4)).numpy()
        return means


def test_a_perfect_dream_is_at_no_distance_and_a_still_one_is_a_copy() -> None:
    episodes = [counting_episode(60, seed) for seed in range(4)]
    perfect = measure_videos(CountingWorld(limit=1000), episodes, rng(), videos=40, context=3, horizon=6)
    assert perfect.dream.distance == pytest.approx(0, abs=1e-6)
    assert perfect.decoded.distance == pytest.approx(0, abs=1e-6)
    assert perfect.copy.distance > 1
    still = measure_videos(StillWorld(), episodes, rng(), videos=40, context=3, horizon=6)
    assert still.dream.distance == still.copy.distance == perfect.copy.distance
    assert math.isnan(still.perplexity.mean)  # it draws no tokens


def test_the_dreamed_frames_alone_are_compared_under_the_recorded_actions() -> None:
    network, episodes = MeanFrames(), [counting_episode(30)]
    figures = measure_videos(
        CountingWorld(limit=1000), episodes, rng(), network=network, videos=5, context=4, horizon=7, rows=3
    )
    places = draw_videos(episodes, 5, 4, 7, rng())
    real = np.stack([episodes[0].observations[place.begin + 4 : place.begin + 11, 0, 0, 0] for place in places])
    shown = torch.cat(network.seen[::4])  # real, dreamed, copied, decoded, for each batch
    assert np.array_equal(shown[:, :, 0, 0, 0].numpy(), real)
    assert np.array_equal(torch.cat(network.seen[1::4]), shown)
    copied = torch.cat(network.seen[2::4])[:, :, 0, 0, 0].numpy()
    assert np.array_equal(copied, np.repeat([[episodes[0].observations[p.begin + 3, 0, 0, 0]] for p in places], 7, 1))
    assert figures.distance == "Fréchet distance on mean pixels"


@torch.no_grad()
def naive_videos(model: Any, episodes: list[Episode], places: list[Any], context: int, seed: int) -> list[Any]:
    """One video and one step at a time."""
    found = []
    for number, place in enumerate(places):
        episode, frames, nats = episodes[place.episode], [], []
        state = model.observe(segment(episode, place.begin, place.begin + context))
        for step in range(place.counted, place.end):
            noise = Noise(torch.tensor([seed + number]), torch.tensor([step - place.counted]))
            state, _ = model.step(state, torch.from_numpy(episode.actions[step : step + 1]), noise)
            frames.append(model.decode(state)[0])
            following = model.observe(segment(episode, place.begin, step + 2))
            chances = model.prior.logits(following.hidden).double().log_softmax(-1)[0]
            nats += [-float(chances[k, token]) for k, token in enumerate(following.tokens[0])]
        found.append((torch.stack(frames), nats))
    return found


def test_figures_against_a_loop() -> None:
    model = build_small("STEPVQ", dtype=torch.float64)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((12, 3, 15))]
    figures = measure_videos(model, episodes, rng(), videos=6, context=3, horizon=4, rows=4)
    drawn = rng()
    places = draw_videos(episodes, 6, 3, 4, drawn)
    found = naive_videos(model, episodes, places, 3, int(drawn.integers(2**31)))
    nats = [value for _, video in found for value in video]
    assert figures.perplexity.mean == pytest.approx(math.exp(np.mean(nats)), rel=1e-6)
    assert figures.perplexity.low < figures.perplexity.mean < figures.perplexity.high
    real = torch.stack(
        [torch.from_numpy(episodes[p.episode].observations[p.counted + 1 : p.end + 1]).movedim(-1, 1) for p in places]
    )
    network = RandomFeatures()
    expected = compare_features(network.features(real), network.features(torch.stack([f for f, _ in found])), rng())
    assert figures.dream.distance == pytest.approx(expected.distance, rel=1e-4)


def test_the_number_of_rows_changes_nothing() -> None:
    model = build_small("STEPVQT", dtype=torch.float64)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((12, 9, 15))]
    few, many = (measure_videos(model, episodes, rng(), videos=9, context=2, horizon=4, rows=n) for n in (2, 64))
    assert few.setting == many.setting
    assert few.dream.distance == pytest.approx(many.dream.distance, rel=1e-4)
    assert few.perplexity == pytest.approx(many.perplexity)


class Redrawing:
    """A frame prior that draws every token twice, and whose second draw counts, as draft-and-revise has it."""

    def __init__(self, prior: Any) -> None:
        self.prior = prior

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.prior.logits(hidden)
        noise.categorical(logits, draw=0)
        return noise.categorical(logits, draw=1), logits.sum((1, 2)).isfinite()


class ScoredRedrawing(Redrawing):
    """The same, and it says what is likely."""

    def log_likelihood(self, hidden: Tensor, tokens: Tensor, past: Tensor) -> Tensor:
        assert past.shape == (len(hidden), 2, tokens.shape[1])
        likelihood: Tensor = self.prior.logits(hidden).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        return likelihood


@pytest.mark.parametrize("kind", [Redrawing, ScoredRedrawing])
def test_a_prior_that_cannot_be_overheard_may_score_itself(kind: type[Redrawing]) -> None:
    model, other = build_small("STEPVQ"), build_small("STEPVQ")
    del other.prior
    other.prior = kind(model.prior)
    episodes = [noisy_episode(steps, seed) for seed, steps in enumerate((12, 15))]
    own, redrawn = (measure_videos(m, episodes, rng(), videos=6, context=3, horizon=4) for m in (model, other))
    one, two = (measure(m, episodes, rng(), context=3, starts=5, horizon=2) for m in (model, other))
    if kind is Redrawing:
        assert math.isnan(redrawn.perplexity.mean)
        assert math.isnan(two.one_step_tokens.perplexity)
        return
    assert redrawn.perplexity == pytest.approx(own.perplexity, rel=1e-5)
    assert two.one_step_tokens.perplexity == pytest.approx(one.one_step_tokens.perplexity, rel=1e-5)
    assert two.one_step_tokens.accuracy == pytest.approx(one.one_step_tokens.accuracy)
    assert two.tokens[0].perplexity == pytest.approx(one.tokens[0].perplexity, rel=1e-5)


@pytest.mark.parametrize("family", ["IRIS", "REM", "DeltaIRIS"])
def test_the_perplexity_of_token_level_priors_is_that_of_their_training_loss(family: str) -> None:
    model = build_small(family, dtype=torch.float64)
    context, horizon = getattr(model, "context", 1), 3
    steps = context - 1 + horizon
    episode, stage = noisy_episode(steps, seed=1), model.stages()[-1]  # of one video, which does not terminate
    figures = measure_videos(model, [episode], rng(), videos=1, context=context, horizon=horizon)
    whole = stage_segment(stage, segment(episode, 0, steps + 1))
    with torch.no_grad():
        nats = float(stage.loss(whole).parts["dynamics"]) / model.num_tokens
    assert figures.perplexity.mean == pytest.approx(math.exp(nats), rel=1e-5)
    assert math.isnan(figures.dream.std)  # of a single video


def test_a_prior_that_knows_nothing_has_the_vocabulary_for_its_perplexity() -> None:
    model = build_small("STEPVQ", dtype=torch.float64)
    torch.nn.init.zeros_(model.prior.project.weight)
    torch.nn.init.zeros_(model.prior.project.bias)
    figures = measure_videos(model, [noisy_episode(15, 0)], rng(), videos=3, context=2, horizon=3)
    assert figures.perplexity == pytest.approx((model.vocabulary,) * 3)


def test_videos_are_different_and_end_before_a_termination() -> None:
    episodes = [counting_episode(12), counting_episode(12, terminated=True), counting_episode(5)]
    places = draw_videos(episodes, 12, 3, 5, rng(), fewer=True)
    found = {(place.episode, place.begin) for place in places}
    assert found == {(0, n) for n in range(6)} | {(1, n) for n in range(5)}
    assert all(place.end - place.begin == 7 and place.counted == place.begin + 2 for place in places)
    some = draw_videos(episodes, 4, 3, 5, rng())
    assert len({(place.episode, place.begin) for place in some}) == 4


def test_too_few_videos_are_an_error_unless_fewer_will_do() -> None:
    episodes = [counting_episode(60)]
    with pytest.raises(ValueError, match=r"256 videos of 8 \+ 48 frames .* 60 steps, hold 6: .*fewer=True"):
        measure_videos(CountingWorld(limit=1000), episodes, rng())
    figures = measure_videos(CountingWorld(limit=1000), episodes, rng(), fewer=True)
    assert figures.setting[:4] == (6, 256, 8, 48)
    with pytest.raises(ValueError, match=r"60 steps, hold 0: take more or longer episodes, or ask for fewer frames"):
        measure_videos(CountingWorld(limit=1000), episodes, rng(), horizon=60, fewer=True)
    with pytest.raises(ValueError, match="horizon must be at least 2, not 1"):
        measure_videos(CountingWorld(limit=1000), episodes, rng(), horizon=1)
    with pytest.raises(ValueError, match="rows must be at least 1, not 0"):
        measure_videos(CountingWorld(limit=1000), episodes, rng(), rows=0)


def test_results_are_plain_and_progress_reaches_the_end() -> None:
    told: list[tuple[int, int]] = []
    figures = measure_videos(
        CountingWorld(limit=1000),
        [counting_episode(40)],
        rng(),
        videos=10,
        context=2,
        horizon=4,
        rows=4,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(16, 40), (32, 40), (40, 40)]
    plain = figures.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["distances"]["dream"]["distance"] == 0.0
    assert plain["perplexity"]["one_step"]["mean"] is None
    assert "FRVD" in plain["distance"]
    assert "last frame copied" in figures.table()
