"""MaskGIT's prior in a world model, and its likelihoods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamenvs.evaluation.teacher_forcing import TeacherForcing
from dreamenvs.models.actions import ActionEncoder, sample_actions
from dreamenvs.models.frame_level import FrameLevelModel, JointOptimization
from dreamenvs.models.mixers import ConcatMixer, ConcatMixerConfig
from dreamenvs.models.outcomes import build_hidden_outcomes
from dreamenvs.priors.factorized import KLObjective
from dreamenvs.priors.maskgit import MaskGITConfig, MaskGITPrior
from dreamenvs.protocols import ScoringPrior
from dreamenvs.random import Noise
from dreamenvs.sequence.transformer import Transformer
from dreamenvs.tokenizers.categorical import CategoricalTokenizer
from dreamenvs.tokenizers.vq import VQTokenizer
from tests.priors.test_maskgit import NOTHING, WIDTH, build, change, hidden, noise, target
from tests.small import CATEGORICAL, DISCRETE, HEAD, TRANSFORMER, VQ, random_segment


def frame_level(kind: str, config: MaskGITConfig) -> FrameLevelModel[Any]:
    torch.manual_seed(0)
    tokenizer: Any = (CategoricalTokenizer if kind == "categorical" else VQTokenizer)(
        CATEGORICAL if kind == "categorical" else VQ,  # type: ignore[arg-type]
        DISCRETE.observation_shape,
    )
    width, grid = TRANSFORMER.width, None if kind == "categorical" else tokenizer.grid
    return FrameLevelModel(
        DISCRETE,
        tokenizer=tokenizer,
        mixer=ConcatMixer(ConcatMixerConfig(), tokenizer.latent_width, ActionEncoder(DISCRETE.actions).width, width),
        sequence=Transformer(TRANSFORMER),
        prior=MaskGITPrior(config, width, tokenizer.num_tokens, tokenizer.vocabulary, grid),
        outcomes=build_hidden_outcomes(HEAD, width),
        optimization=JointOptimization(),
    )


@pytest.mark.parametrize("kind", ["categorical", "grid"])
def test_a_world_model_with_it(kind: str) -> None:
    """Rows dream alone what they dream together, and training reaches every weight of the prior."""
    model = frame_level(kind, change(draft=3, revise=2, repetitions=1, objective=KLObjective(free_bits=0.0)))
    segment = random_segment(rows=6)
    terms = model.train().loss(segment)
    terms.total.backward()
    assert {"dynamics", "representation"} <= set(terms.parts)
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.prior.parameters())  # type: ignore[attr-defined]
    torch.nn.init.normal_(model.prior.project.weight, std=0.4)  # type: ignore[attr-defined]
    futures = []
    with torch.no_grad():
        for rows in (6, 2):
            state = model.eval().observe(type(segment)(*(part[:rows] for part in segment)))
            seen = []
            for step in range(4):
                actions = sample_actions(DISCRETE.actions, 6, torch.Generator().manual_seed(step))[:rows]
                state, outcome = model.step(state, actions, Noise(torch.arange(rows), torch.full((rows,), step)))
                seen += [model.tokens(state), outcome.rewards[:, None], outcome.terminated[:, None]]
                assert outcome.finite.all()
            futures.append(torch.cat(seen, 1))
    assert torch.equal(futures[0][:2], futures[1])
    assert len({tuple(row) for row in futures[0].tolist()}) == 6


@torch.no_grad()
def test_a_listener_hears_the_chain_rule() -> None:
    """The perplexity of a draft is that of `chain_logits`, in the order of the frame; a revision does not count."""
    tokens = target(5).tokens
    for repetitions in (0, 1):
        prior = build(change(draft=3, revise=2, repetitions=repetitions))
        teacher = TeacherForcing.build(noise(5), tokens, forcing=True)
        answered, _ = prior.sample(hidden(5), teacher, NOTHING)
        logits = prior.chain_logits(hidden(5), tokens, noise(5))
        assert teacher.complete
        assert torch.equal(answered, tokens)
        expected = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        torch.testing.assert_close(teacher.log_likelihood, expected)
        assert torch.equal(teacher.guesses, logits.argmax(-1))
        teacher = TeacherForcing.build(noise(5), tokens, forcing=False)
        drawn, _ = prior.sample(hidden(5), teacher, NOTHING)
        assert torch.equal(drawn, prior.sample(hidden(5), noise(5), NOTHING)[0])
        assert teacher.complete


@torch.no_grad()
@pytest.mark.parametrize("draft", [1, 2, 3])
def test_its_likelihood_is_a_probability_of_whole_frames(draft: int) -> None:
    """Over all 27 frames of three tokens it sums to one; for other hidden vectors the tokens come in other orders."""
    torch.manual_seed(0)
    prior = MaskGITPrior(change(draft=draft, revise=3, repetitions=1), WIDTH, 3, 3).double().eval()
    for parameter in prior.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    scorer: ScoringPrior = prior
    frames = torch.cartesian_prod(*[torch.arange(3)] * 3)
    totals = []
    for given in hidden(4).double():
        likelihood = scorer.log_likelihood(given.expand(27, -1), frames, NOTHING)
        assert likelihood.shape == (27, 3)
        totals.append(likelihood.sum(1).exp().sum().item())
    assert totals == pytest.approx([1.0] * 4)
    nothing = likelihood.std(0) < 1e-12  # tokens of which the others say nothing, in this order
    assert not nothing.any()
    with pytest.raises(ValueError, match="rounds is 1 to 3"):
        prior.chain_logits(hidden(1).double(), frames[:1], noise(1), rounds=4)
