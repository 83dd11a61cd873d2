"""Held-out divergence against loops over frames and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import sample_segments
from dreamenvs.evaluation.prior_divergence import measure_divergence
from tests.small import DISCRETE, build_small


def episodes(count: int = 5) -> list[Episode]:
    rng = np.random.default_rng(0)
    channels, height, width = DISCRETE.observation_shape
    made = []
    for steps in range(4, 4 + count):
        made.append(
            Episode(
                observations=rng.integers(0, 256, (steps + 1, height, width, channels), dtype=np.uint8),
                actions=rng.integers(0, 4, steps),
                rewards=np.zeros(steps, np.float32),
                terminated=np.zeros(steps, bool),
                truncated=np.arange(steps) == steps - 1,
            )
        )
    return made


def model_of(family: str) -> Any:
    model = build_small(family).double()
    torch.manual_seed(0)
    for parameter in model.prior.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("family", ["STORM", "GITSTORM"])
@torch.no_grad()
def test_divergences_are_sums_over_tokens_and_means_over_frames(family: str) -> None:
    model, data = model_of(family), episodes()
    found = measure_divergence(model, data, rows=6, length=6, rounds=(1, 3), seed=2)
    segment = sample_segments(data, 6, 6, np.random.default_rng(2))
    logits = model.tokenizer.posterior(segment.observations.flatten(0, 1)).logits
    generator = torch.Generator().manual_seed(2)
    tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).view(6, 6, -1)
    posterior = logits.view(6, 6, *logits.shape[1:]).softmax(-1)
    total, entropy, count, valid = 0.0, 0.0, 0, 0
    for row in range(6):
        latent = model.tokenizer.embed(tokens[row])
        inputs = model.mixer(latent, model.encode_actions(segment.actions[row]))
        hidden = model.sequence(inputs[None])[0]
        one_pass = model.prior.one_pass_logits if family == "GITSTORM" else model.prior.logits
        prior = one_pass(hidden).softmax(-1)
        for step in range(6):
            if segment.valid[row, step]:
                valid += 1
                entropy -= float((posterior[row, step] * posterior[row, step].log()).sum())
            if step < 5 and segment.valid[row, step] and segment.valid[row, step + 1]:
                count += 1
                for token in range(tokens.shape[-1]):
                    p, q = posterior[row, step + 1, token], prior[step, token]
                    total += sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True))
    assert found.frames == count
    assert found.one_pass == pytest.approx(total / count, rel=1e-9)
    assert found.entropy == pytest.approx(entropy / valid, rel=1e-9)
    if family == "STORM":
        assert found.chain == {}
    else:
        assert found.chain[1] == pytest.approx(found.one_pass, rel=1e-9)
        assert abs(found.chain[3] - found.one_pass) > 1e-3


@torch.no_grad()
def test_a_model_without_a_posterior_is_refused() -> None:
    model = build_small("STORM")
    posterior = model.tokenizer.posterior
    model.tokenizer.posterior = lambda frames: posterior(frames)._replace(logits=torch.zeros(len(frames), 0))
    with pytest.raises(ValueError, match="no posterior"):
        measure_divergence(model, episodes(), rows=2, length=4)


def test_rounds_draw_the_same_order_for_the_same_seed() -> None:
    model = model_of("GITSTORM")
    one, two = (measure_divergence(model, episodes(), rows=3, length=5, rounds=(2,), seed=1) for _ in range(2))
    assert one == two
