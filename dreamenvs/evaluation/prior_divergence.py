"""How far a prior is from the posterior on held-out frames: what figure 16 of GIT-STORM compares.

A frame's latent is a sample of the posterior, and the sequence model reads such samples. All figures are nats per
frame, and lower is better; but a posterior that says little is easy to foresee, so the reconstruction error stands
beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import sample_segments
from dreamenvs.nn.distributions import kl, masked_mean, one_hot
from dreamenvs.random import Noise
from dreamenvs.types import Segment


class Divergence(NamedTuple):
    """KL[posterior ‖ prior] on held-out frames, in nats per frame."""

    one_pass: float
    """Of all tokens at once, each by itself."""
    chain: dict[int, float]
    """Of the joint distribution, by so many rounds in which tokens see those of the rounds before; empty for priors
    whose tokens never see each other, since it would be `one_pass`."""
    entropy: float
    """Of the posterior: what there is to foresee."""
    reconstruction: float
    """Mean squared error of a pixel in [0, 1]."""
    frames: int


@torch.no_grad()
def measure_divergence(
    model: Any,
    episodes: Sequence[Episode],
    *,
    rows: int = 64,
    length: int = 32,
    rounds: Sequence[int] = (),
    seed: int = 0,
) -> Divergence:
    """Measure a frame-level model with a posterior, as STORM and GIT-STORM are, on `rows` excerpts of episodes."""
    segment = sample_segments(episodes, rows, length, np.random.default_rng(seed))
    valid = segment.valid.flatten()
    frames = segment.observations.flatten(0, 1)
    logits = model.tokenizer.posterior(frames).logits
    if not logits.shape[-1]:
        raise ValueError("this model has no posterior to compare with")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).view(logits.shape[:2])
    latent = one_hot(tokens, model.vocabulary, logits.dtype).flatten(1)
    if latent.shape[1] != model.tokenizer.latent_width:
        latent = model.tokenizer.embed(tokens)
    error = (model.tokenizer.decode(latent) - frames.float() / 255).square().mean((1, 2, 3))
    entropy = -(logits.log_softmax(-1) * logits.softmax(-1)).sum((1, 2))

    hidden = _hidden(model, latent, segment)
    following = _following(logits, segment)
    pairs = (segment.valid[:, :-1] & segment.valid[:, 1:]).flatten()
    prior = model.prior
    one_pass = prior.one_pass_logits(hidden) if hasattr(prior, "one_pass_logits") else prior.logits(hidden)
    chain = {}
    if hasattr(prior, "chain_logits"):
        count = len(hidden)
        noise = Noise(torch.full((count,), seed), torch.arange(count))
        truth = _following(tokens, segment)
        for number in rounds:
            chain[number] = _nats(following, prior.chain_logits(hidden, truth, noise, number), pairs)
    return Divergence(
        one_pass=_nats(following, one_pass, pairs),
        chain=chain,
        entropy=float(masked_mean(entropy, valid)),
        reconstruction=float(masked_mean(error, valid)),
        frames=int(pairs.sum()),
    )


def _hidden(model: Any, latent: Tensor, segment: Segment) -> Tensor:
    """(B · (T - 1), D) after every frame of the segment but the last, and its action."""
    actions = model.encode_actions(segment.actions.flatten(0, 1))
    hidden: Tensor = model.sequence(model.mixer(latent, actions).view(len(segment.actions), -1, model.sequence.width))
    return hidden[:, :-1].flatten(0, 1)


def _following(values: Tensor, segment: Segment) -> Tensor:
    """Of values (B · T, …), those of every frame but a segment's first."""
    return values.view(*segment.actions.shape[:2], *values.shape[1:])[:, 1:].flatten(0, 1)


def _nats(posterior: Tensor, prior: Tensor, pairs: Tensor) -> float:
    return float(masked_mean(kl(posterior, prior).sum(-1), pairs))
