"""The frame-level engine: one position of the sequence model per frame, all tokens of the next frame in one pass.

Serves STEP-VQ (eqs. 3 to 5), its CB baselines and every family that composes like them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.outcomes import Outcomes
from dreamenvs.models.reconstruction import autoencoder_loss
from dreamenvs.models.two_stage import DynamicsOptimization, TwoStageOptimization, build_stage, plain_group
from dreamenvs.protocols import FramePrior, Mixer, ParameterGroup, Posterior, SequenceModel, Stage, Tokenizer
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms, Outcome, Segment, WorldSpec

CacheT = TypeVar("CacheT")

TERMINATION_DRAW = 1_000  # priors draw from 0 upwards


class FrameState(NamedTuple, Generic[CacheT]):
    """The current frame, what the sequence model said before it, and the sequence model's memory of all before."""

    tokens: Tensor  # (B, K) int64
    before: Tensor  # (B, K) int64, of the frame before; the same as tokens in the first one
    hidden: Tensor  # (B, D), zeros before the first action
    cache: CacheT


@dataclass(frozen=True, kw_only=True)
class JointOptimization:
    """Tokenizer and dynamics at once, as in eq. 5; the learning rates of tables 8 and 13, the clipping of DRAMA."""

    tokenizer_rate: float = 1e-4
    dynamics_rate: float = 4e-5
    clip: float = 1000.0
    rows: int = 16
    length: int = 64
    updates: int = 10_000
    warmup: int = 1000
    decay: float = 1.0
    """The share of the learning rates that is left at the end of a cosine; 1, as published, keeps them."""


class FrameLevelModel(nn.Module, Generic[CacheT]):
    """Any tokenizer, mixer, sequence model and frame prior that fit together, as a `WorldModel`."""

    def __init__(
        self,
        spec: WorldSpec,
        *,
        tokenizer: Tokenizer,
        mixer: Mixer,
        sequence: SequenceModel[CacheT],
        prior: FramePrior,
        outcomes: Outcomes,
        optimization: JointOptimization | TwoStageOptimization | DynamicsOptimization,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.optimization = optimization
        self.encode_actions = ActionEncoder(spec.actions)
        self.tokenizer = tokenizer
        self.mixer = mixer
        self.sequence = sequence
        self.prior = prior
        self.outcomes = outcomes

    @property
    def num_tokens(self) -> int:
        return self.tokenizer.num_tokens

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.vocabulary

    @property
    def num_features(self) -> int:
        return self.tokenizer.latent_width + self.sequence.width

    def observe(self, context: Segment) -> FrameState[CacheT]:
        """Warm up on real frames; only the tokens of the last frame, not its action, are in the state."""
        rows, steps = context.actions.shape[:2]
        if not bool(context.valid.all()):
            raise ValueError("a context has no padding: observe takes segments whose every step is valid")
        tokens = rearrange(self.tokenizer.encode(context.observations.flatten(0, 1)), "(b t) k -> b t k", b=rows)
        cache = self.sequence.initial_cache(rows)
        if steps == 1:
            hidden = next(self.parameters()).new_zeros(rows, self.sequence.width)
            return FrameState(tokens[:, -1], tokens[:, -1], hidden, cache)
        inputs = self._mix(tokens[:, :-1].flatten(0, 1), context.actions[:, :-1].flatten(0, 1))
        hidden, cache = self.sequence.extend(rearrange(inputs, "(b t) d -> b t d", b=rows), cache)
        return FrameState(tokens[:, -1], tokens[:, -2], hidden[:, -1], cache)

    def update(self, state: FrameState[CacheT], actions: Tensor, observations: Tensor) -> FrameState[CacheT]:
        """One more real frame: the dynamics run as in a dream, but the frame is seen and not sampled."""
        hidden, cache = self.sequence.step(self._mix(state.tokens, actions), state.cache)
        return FrameState(self.tokenizer.encode(observations), state.tokens, hidden, cache)

    def step(self, state: FrameState[CacheT], actions: Tensor, noise: Noise) -> tuple[FrameState[CacheT], Outcome]:
        """One imagined step: the next frame follows from the hidden after the action, its outcome from both."""
        hidden, cache = self.sequence.step(self._mix(state.tokens, actions), state.cache)
        past = torch.stack([state.before, state.tokens], 1)
        tokens, finite = self.prior.sample(hidden, noise, past)
        outcome = self.outcomes.sample(hidden, state.tokens, tokens, noise, TERMINATION_DRAW)
        return FrameState(tokens, state.tokens, hidden, cache), outcome._replace(finite=finite & outcome.finite)

    def log_likelihood(self, state: FrameState[CacheT], actions: Tensor, tokens: Tensor) -> Tensor | None:
        """(B, K) of the next frame's tokens (B, K), if the prior is a `ScoringPrior`; else see `TeacherForcing`."""
        score = getattr(self.prior, "log_likelihood", None)
        if score is None:
            return None
        hidden, _ = self.sequence.step(self._mix(state.tokens, actions), state.cache)
        likelihood: Tensor = score(hidden, tokens, torch.stack([state.before, state.tokens], 1))
        return likelihood

    def tokens(self, state: FrameState[CacheT]) -> Tensor:
        return state.tokens

    def decode(self, state: FrameState[CacheT]) -> Tensor:
        return self.tokenizer.frames(state.tokens)

    def features(self, state: FrameState[CacheT]) -> Tensor:
        """The policy of section 2 sees z_t and h_t."""
        return torch.cat([self.tokenizer.embed(state.tokens), state.hidden], dim=-1)

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once, the tokenizer before the dynamics, or the dynamics alone, as the config says."""
        chosen = self.optimization
        if isinstance(chosen, DynamicsOptimization):
            group = plain_group(self.parameters(), chosen.dynamics)
            stage = build_stage("dynamics", chosen.dynamics, self.token_loss, group, self.tokenizer.encode)
            return (self._with_outcomes(stage),)
        tokenizer = tuple(self.tokenizer.parameters())
        known = {id(parameter) for parameter in tokenizer}
        dynamics = tuple(parameter for parameter in self.parameters() if id(parameter) not in known)
        if isinstance(chosen, TwoStageOptimization):
            group = plain_group(dynamics, chosen.dynamics)
            stage = build_stage("dynamics", chosen.dynamics, self.token_loss, group, self.tokenizer.encode)
            return (
                build_stage(
                    "tokenizer", chosen.tokenizer, self.tokenizer_loss, plain_group(tokenizer, chosen.tokenizer)
                ),
                self._with_outcomes(stage),
            )
        groups = (
            ParameterGroup(parameters=tokenizer, learning_rate=chosen.tokenizer_rate),
            ParameterGroup(parameters=dynamics, learning_rate=chosen.dynamics_rate),
        )
        stage = Stage(
            name="world_model",
            loss=self.loss,
            groups=groups,
            clip=chosen.clip,
            rows=chosen.rows,
            length=chosen.length,
            updates=chosen.updates,
            warmup=chosen.warmup,
            decay=chosen.decay,
        )
        return (self._with_outcomes(stage),)

    def begin(self, segments: Iterable[Segment]) -> None:
        """What is found in the data rather than optimised: patches, and the values of rewards."""
        grow = getattr(self.tokenizer, "grow", None)
        rewards = []
        for segment in segments:
            if grow is not None:
                grow(segment.observations[shown_frames(segment.valid)])
            rewards.append(torch.unique(segment.rewards[segment.valid]))
        self.outcomes.grow(torch.unique(torch.cat(rewards)))

    def _with_outcomes(self, stage: Stage) -> Stage:
        """The stage in which outcomes are learned."""
        return replace(stage, final=self.outcomes.sees_next, begin=self.begin)

    def loss(self, segment: Segment) -> LossTerms:
        """Eq. 5 over a batch of segments: reconstruction, commitment, dynamics, reward and termination."""
        valid = self._shown(segment).flatten()
        # Padding never reaches the tokenizer, whose codes would follow it.
        frames = segment.observations.flatten(0, 1)[valid]
        posterior = self.tokenizer.posterior(frames)
        autoencoder = autoencoder_loss(self.tokenizer, posterior, frames)
        dynamics = self.dynamics_loss(Posterior(*(_spread(part, valid) for part in posterior)), segment)
        return LossTerms(autoencoder.total + dynamics.total, autoencoder.parts | dynamics.parts)

    def tokenizer_loss(self, segment: Segment) -> LossTerms:
        """The autoencoder's part of eq. 5, on the valid frames of segments."""
        frames = segment.observations.flatten(0, 1)[segment.valid.flatten()]
        return autoencoder_loss(self.tokenizer, self.tokenizer.posterior(frames), frames)

    def token_loss(self, segment: Segment) -> LossTerms:
        """The dynamics' part, on segments whose observations are tokens (B, T, K)."""
        tokens = segment.observations.flatten(0, 1)
        chosen = self.optimization
        share = chosen.stale if self.training and not isinstance(chosen, JointOptimization) else 0.0
        seen = make_stale(segment.observations, share).flatten(0, 1) if share else tokens
        latent = self.tokenizer.embed(seen)
        # Equation 6 asks for the tokens alone: there are no logits to be aligned with.
        posterior = Posterior(tokens, latent.new_zeros(len(tokens), 0), latent, latent.new_zeros(len(tokens)))
        return self.dynamics_loss(posterior, segment, seen)

    def dynamics_loss(self, posterior: Posterior, segment: Segment, seen: Tensor | None = None) -> LossTerms:
        """Next frame, reward and termination, from the frames (B·T) of a posterior and the segment's actions.

        `seen` are the tokens (B·T, K) behind the posterior's latent, where they are not its own.
        """
        rows = len(segment.actions)
        inputs = self.mixer(posterior.latent, self.encode_actions(segment.actions.flatten(0, 1)))
        hidden = self.sequence(rearrange(inputs, "(b t) d -> b t d", b=rows))
        following: Any = [rearrange(part, "(b t) ... -> b t ...", b=rows)[:, 1:].flatten(0, 1) for part in posterior]
        tokens = rearrange(posterior.tokens if seen is None else seen, "(b t) k -> b t k", b=rows)[:, :-1]
        before = torch.cat([tokens[:, :1], tokens[:, :-1]], 1)
        past = torch.stack([before, tokens], 2).flatten(0, 1)
        pairs = (segment.valid[:, :-1] & self._shown(segment)[:, 1:]).flatten()
        prior = self.prior.loss(hidden[:, :-1].flatten(0, 1), Posterior(*following), pairs, past)
        own = rearrange(posterior.tokens, "(b t) k -> b t k", b=rows)
        outcomes = self.outcomes.loss(hidden, own, segment.rewards, segment.terminated, segment.valid)
        return LossTerms(prior.total + outcomes.total, prior.parts | outcomes.parts)

    def _shown(self, segment: Segment) -> Tensor:
        """Which frames (B, T) of a segment are real: with outcomes of transitions the final one, too."""
        return shown_frames(segment.valid) if self.outcomes.sees_next else segment.valid

    def _mix(self, tokens: Tensor, actions: Tensor) -> Tensor:
        return self.mixer(self.tokenizer.embed(tokens), self.encode_actions(actions))


def shown_frames(valid: Tensor) -> Tensor:
    """The valid (B, T) frames and the one after the last of them, which ends an episode and has no action."""
    return valid | torch.cat([valid[:, :1], valid[:, :-1]], 1)


def make_stale(tokens: Tensor, share: float) -> Tensor:
    """Tokens (B, T, K) of which, in a `share` of the frames, each is with even odds that of the frame before."""
    frames = torch.rand(*tokens.shape[:2], 1, device=tokens.device) < share
    old = frames & (torch.rand(tokens.shape, device=tokens.device) < 0.5)
    old[:, 0] = False
    return torch.where(old, tokens.roll(1, 1), tokens)


def _spread(values: Tensor, valid: Tensor) -> Tensor:
    """Values of the valid frames at their places among all frames (N, …), zeros on padding."""
    return values.new_zeros(len(valid), *values.shape[1:]).index_put((valid,), values)
