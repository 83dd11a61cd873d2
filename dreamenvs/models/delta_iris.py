"""Δ-IRIS (Micheli, Alonso and Fleuret, 2024): a Transformer predicts what a frame and an action do not tell.

A block of the sequence is [I-token, action, δ1 … δK]: the current frame, what is done, the tokens of the transition.
The next frame is the tokenizer's decoder on the frame, the action and the tokens, so the state holds the frame itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.family import Family
from dreamenvs.models.frame_token import FrameToken, FrameTokenConfig, NoFrameToken, NoFrameTokenConfig
from dreamenvs.models.heads import HeadConfig
from dreamenvs.models.outcomes import Outcomes, build_hidden_outcomes
from dreamenvs.models.token_blocks import ActionInput
from dreamenvs.models.two_stage import StageConfig, TwoStageOptimization, build_stage, decaying_groups
from dreamenvs.nn import distributed, initialization
from dreamenvs.priors.autoregressive import AutoregressiveConfig, AutoregressivePrior
from dreamenvs.protocols import SequenceModel, Stage
from dreamenvs.random import Noise
from dreamenvs.sequence.transformer import BlockTransformerConfig, Transformer
from dreamenvs.tokenizers.delta import DeltaConfig, DeltaTokenizer
from dreamenvs.types import LossTerms, Outcome, Segment, WorldSpec

CacheT = TypeVar("CacheT")

TERMINATION_DRAW = 10_000  # the prior draws from 0 upwards, one for each token


class DeltaState(NamedTuple, Generic[CacheT]):
    """The current frame, how it came about, and the sequence model's memory of all but its last inputs."""

    frame: Tensor  # (B, C, H, W) uint8
    tokens: Tensor  # (B, K) int64, of the transition into the frame; zeros where there was none
    hidden: Tensor  # (B, D), after the last action, zeros before the first
    pending: Tensor  # (B, 1 + I, D), inputs for the next call: δK, zeros where there was none, and the I-token
    cache: CacheT


def _paper_turn(updates: int) -> StageConfig:
    return StageConfig(
        rows=32, length=21, updates=updates, rate=1e-4, weight_decay=0.01, clip=10.0, warmup=0, decay=1.0
    )


# The first epoch of Crafter; later epochs add 500 updates of each, in turns with 10,000 steps of new experience.
PAPER_OPTIMIZATION = TwoStageOptimization(tokenizer=_paper_turn(5000), dynamics=_paper_turn(2500))


@dataclass(frozen=True, kw_only=True)
class DeltaIRISConfig:
    """A Δ-IRIS world model; the defaults are the paper's for Crafter."""

    tokenizer: DeltaConfig = field(default_factory=DeltaConfig)
    frame_token: FrameTokenConfig | NoFrameTokenConfig = field(default_factory=FrameTokenConfig)
    sequence: BlockTransformerConfig = field(
        default_factory=lambda: BlockTransformerConfig(
            width=512, layers=3, heads=8, feed_forward=2048, dropout=0.0, blocks=21
        )
    )
    prior: AutoregressiveConfig = field(default_factory=AutoregressiveConfig)
    head: HeadConfig = field(default_factory=lambda: HeadConfig(units=512))
    optimization: TwoStageOptimization = PAPER_OPTIMIZATION

    def __post_init__(self) -> None:
        self.optimization.refuse_stale()


class DeltaIRIS(nn.Module, Generic[CacheT]):
    """A tokenizer of transitions, I-tokens or none, a sequence model and an autoregressive prior, as a `WorldModel`."""

    def __init__(
        self,
        spec: WorldSpec,
        *,
        tokenizer: DeltaTokenizer,
        frame_token: FrameToken | NoFrameToken,
        sequence: SequenceModel[CacheT],
        prior: AutoregressivePrior,
        outcomes: Outcomes,
        optimization: TwoStageOptimization,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.optimization = optimization
        self.encode_actions = ActionEncoder(spec.actions)
        self.tokenizer = tokenizer
        self.frame_token = frame_token
        self.sequence = sequence
        self.prior = prior
        self.outcomes = outcomes
        self.action_input = ActionInput(self.encode_actions.width, sequence.width)
        self.embed_tokens = initialization.table(tokenizer.vocabulary, sequence.width)

    @property
    def num_tokens(self) -> int:
        return self.tokenizer.num_tokens

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.vocabulary

    @property
    def num_features(self) -> int:
        return self.tokenizer.latent_width + (self.frame_token.count + 1) * self.sequence.width

    def observe(self, context: Segment) -> DeltaState[CacheT]:
        """Warm up on real frames; the state waits for the action after the last one."""
        rows, steps = context.actions.shape[:2]
        if not bool(context.valid.all()):
            raise ValueError("a context has no padding: observe takes segments whose every step is valid")
        frames, cache = context.observations, self.sequence.initial_cache(rows)
        images = rearrange(self.frame_token(frames.flatten(0, 1)), "(b t) i d -> b t i d", b=rows)
        latest, hidden = self._start(rows), self._start(rows)[:, 0]
        tokens = torch.zeros(rows, 1, self.num_tokens, dtype=torch.int64, device=frames.device)
        if steps > 1:
            actions = self._encode(context.actions[:, :-1])
            tokens = self._transitions(frames, actions)
            inputs = self._lay_out(images[:, :-1], actions, tokens)
            inputs, latest = torch.cat([latest, inputs[:, :-1]], 1), inputs[:, -1:]
            outputs, cache = self.sequence.extend(inputs, cache)
            hidden = outputs[:, -self.num_tokens].contiguous()
        pending = torch.cat([latest, images[:, -1]], 1)
        return DeltaState(frames[:, -1].clone(), tokens[:, -1].contiguous(), hidden, pending, cache)

    def update(self, state: DeltaState[CacheT], actions: Tensor, observations: Tensor) -> DeltaState[CacheT]:
        """One more real frame: the dynamics run as in a dream, on the tokens of what really came."""
        encoded = self._encode(actions)
        hidden, cache = self._advance(state, encoded)
        tokens = self.tokenizer.encode(state.frame, encoded, observations)
        cache = self.prior.read(self.sequence, self.embed_tokens(tokens), cache)
        return DeltaState(observations.clone(), tokens, hidden, self._pending(tokens, observations), cache)

    def step(self, state: DeltaState[CacheT], actions: Tensor, noise: Noise) -> tuple[DeltaState[CacheT], Outcome]:
        """One imagined step: reward and termination follow from the action, then one token from the other."""
        encoded = self._encode(actions)
        hidden, cache = self._advance(state, encoded)
        drawn = self.prior.sample(self.sequence, hidden, cache, self.embed_tokens, noise)
        pixels = self.tokenizer.decode(state.frame, encoded, self.tokenizer.embed(drawn.tokens))
        outcome = self.outcomes.sample(hidden, state.tokens, drawn.tokens, noise, TERMINATION_DRAW)
        finite = drawn.finite & outcome.finite & pixels.sum((1, 2, 3)).isfinite()
        # The next step sees the frame as an environment would show it, in 8 bits, as real frames are.
        frame = pixels.mul_(255).round_().clamp_(0, 255).to(torch.uint8)
        following = DeltaState(frame, drawn.tokens, hidden, self._pending(drawn.tokens, frame), drawn.cache)
        return following, outcome._replace(finite=finite)

    def tokens(self, state: DeltaState[CacheT]) -> Tensor:
        """The transition into the current frame; zeros after a context of a single frame."""
        return state.tokens

    def decode(self, state: DeltaState[CacheT]) -> Tensor:
        return state.frame.clone()

    def features(self, state: DeltaState[CacheT]) -> Tensor:
        """The last transition's codes, the current frame's I-token, and what the sequence model remembers."""
        return torch.cat([self.tokenizer.embed(state.tokens), state.pending[:, 1:].flatten(1), state.hidden], -1)

    def stages(self) -> tuple[Stage, ...]:
        """The tokenizer on pairs of frames, then the dynamics on the tokens of a tokenizer that stays as it is."""
        turns, tokenizer = self.optimization, tuple(self.tokenizer.parameters())
        known = {id(parameter) for parameter in tokenizer}
        dynamics = [parameter for parameter in self.parameters() if id(parameter) not in known]
        # Tokens depend on two frames and an action, and I-tokens on pixels: nothing can be prepared frame by frame.
        return (
            build_stage(
                "tokenizer", turns.tokenizer, self.tokenizer_loss, decaying_groups(self, tokenizer, turns.tokenizer)
            ),
            build_stage(
                "dynamics", turns.dynamics, self.dynamics_loss, decaying_groups(self, dynamics, turns.dynamics)
            ),
        )

    def tokenizer_loss(self, segment: Segment) -> LossTerms:
        """Over the transitions between real frames; padding is nobody's next frame."""
        pairs = segment.valid[:, :-1] & segment.valid[:, 1:]
        if not bool(distributed.all_sum(pairs.sum())):
            raise ValueError("segments of single frames have no transitions: Δ-tokens need two frames in a row")
        frames = segment.observations
        actions = self._encode(segment.actions[:, :-1][pairs])
        return self.tokenizer.loss(frames[:, :-1][pairs], actions, frames[:, 1:][pairs])

    def dynamics_loss(self, segment: Segment) -> LossTerms:
        """Tokens of transitions between real frames, and the reward and termination of every real step."""
        frames, rows, steps = segment.observations, *segment.actions.shape[:2]
        pairs = segment.valid[:, :-1] & segment.valid[:, 1:]
        actions = self._encode(segment.actions)
        with torch.no_grad():
            tokens = self._transitions(frames, actions[:, :-1], pairs)
        images = rearrange(self.frame_token(frames.flatten(0, 1)), "(b t) i d -> b t i d", b=rows)
        # The last frame's tokens are not known; what stands in their place comes after all that is predicted.
        unknown = torch.nn.functional.pad(tokens, (0, 0, 0, 1))
        blocks = self._lay_out(images, actions, unknown)
        inputs = torch.cat([self._start(rows), blocks[:, :-1]], 1)
        hidden = rearrange(self.sequence(inputs), "b (t p) d -> b t p d", t=steps)
        # With the zeros in front, a block's outputs are those of δK before, I, a, δ1 … δK-1: the last K predict δ.
        predicting = hidden[:, :, -self.num_tokens :]
        prior = self.prior.loss(predicting[:, :-1].flatten(0, 1), tokens.flatten(0, 1), pairs.flatten())
        # Before the first transition there is none, as in a state that has seen a single frame.
        known = torch.nn.functional.pad(tokens, (0, 0, 1, 0))
        outcomes = self.outcomes.loss(predicting[:, :, 0], known, segment.rewards, segment.terminated, segment.valid)
        return LossTerms(prior.total + outcomes.total, prior.parts | outcomes.parts)

    def _advance(self, state: DeltaState[CacheT], actions: Tensor) -> tuple[Tensor, CacheT]:
        """Hidden (B, D) after what is pending and the encoded actions, all at once."""
        inputs = torch.cat([state.pending, self.action_input(actions)[:, None]], 1)
        outputs, cache = self.sequence.extend(inputs, state.cache)
        return outputs[:, -1].contiguous(), cache

    def _pending(self, tokens: Tensor, frames: Tensor) -> Tensor:
        """δK, which waits for the next action, and the I-token of the frame it leads to."""
        return torch.cat([self.embed_tokens(tokens[:, -1:]), self.frame_token(frames)], 1)

    def _start(self, rows: int) -> Tensor:
        """What stands before the first frame in the place of a δK: zeros (B, 1, D)."""
        return self.embed_tokens.weight.new_zeros(rows, 1, self.sequence.width)

    def _encode(self, actions: Tensor) -> Tensor:
        encoded: Tensor = self.encode_actions(actions)
        return encoded.to(self.embed_tokens.weight.dtype)

    def _transitions(self, frames: Tensor, actions: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Tokens (B, T - 1, K) of frames (B, T, …) and encoded actions (B, T - 1, A); zeros where not in `pairs`."""
        chosen = torch.ones(actions.shape[:2], dtype=torch.bool, device=frames.device) if pairs is None else pairs
        encoded = self.tokenizer.encode(frames[:, :-1][chosen], actions[chosen], frames[:, 1:][chosen])
        return encoded.new_zeros(*chosen.shape, self.num_tokens).index_put((chosen,), encoded)

    def _lay_out(self, images: Tensor, actions: Tensor, tokens: Tensor) -> Tensor:
        """Inputs (B, T·(I + 1 + K), D) of I-tokens (B, T, I, D), encoded actions (B, T, A) and tokens (B, T, K)."""
        blocks = torch.cat([images, self.action_input(actions)[:, :, None], self.embed_tokens(tokens)], 2)
        return blocks.flatten(1, 2)


def build(config: DeltaIRISConfig, spec: WorldSpec) -> DeltaIRIS[Any]:
    """Assemble a Δ-IRIS world model."""
    width, shape = config.sequence.width, spec.observation_shape
    tokenizer = DeltaTokenizer(config.tokenizer, shape, ActionEncoder(spec.actions).width)
    frame_token = (
        FrameToken(config.frame_token, shape, width)
        if isinstance(config.frame_token, FrameTokenConfig)
        else NoFrameToken(width)
    )
    return DeltaIRIS(
        spec,
        tokenizer=tokenizer,
        frame_token=frame_token,
        sequence=Transformer(config.sequence.for_blocks(frame_token.count + 1 + tokenizer.num_tokens)),
        prior=AutoregressivePrior(config.prior, width, tokenizer.num_tokens, tokenizer.vocabulary),
        outcomes=build_hidden_outcomes(config.head, width),
        optimization=config.optimization,
    )


DELTA_IRIS = Family(name="DeltaIRIS", config=DeltaIRISConfig, paper=DeltaIRISConfig(), build=build)
