"""The token-level engine: a block of K tokens and an action for each frame, one input of the sequence model each.

Serves IRIS, which draws a frame token by token, and REM, which draws it in one pass; they differ in components only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from dreamenvs.models.actions import ActionEncoder
from dreamenvs.models.outcomes import Outcomes
from dreamenvs.models.reconstruction import autoencoder_loss
from dreamenvs.models.token_blocks import ActionInput, SharedCodes, TokenTable, lay_out
from dreamenvs.models.two_stage import TwoStageOptimization, build_stage, decaying_groups
from dreamenvs.protocols import BlockPrior, SequenceModel, Stage, Tokenizer
from dreamenvs.random import Noise
from dreamenvs.types import LossTerms, Outcome, Segment, WorldSpec

TERMINATION_DRAW = 10_000  # priors draw from 0 upwards, one for each token


class TokenState(NamedTuple):
    """The current frame, what the sequence model said after the last action, and its memory of all before."""

    tokens: Tensor  # (B, K) int64
    hidden: Tensor  # (B, D), zeros before the first action
    cache: Any


class TokenLevelModel(nn.Module):
    """Any tokenizer, token embedding, sequence model and block prior that fit together, as a `WorldModel`."""

    def __init__(
        self,
        spec: WorldSpec,
        *,
        tokenizer: Tokenizer,
        embedding: SharedCodes | TokenTable,
        sequence: SequenceModel[Any],
        prior: BlockPrior,
        outcomes: Outcomes,
        context: int,
        optimization: TwoStageOptimization,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.context = context
        self.optimization = optimization
        self.encode_actions = ActionEncoder(spec.actions)
        self.tokenizer = tokenizer
        self.embedding = embedding
        self.action_input = ActionInput(self.encode_actions.width, sequence.width)
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

    def observe(self, context: Segment) -> TokenState:
        """Warm up on real frames, with their actions: whole blocks, and then the last frame without its action."""
        rows, steps = context.actions.shape[:2]
        if not bool(context.valid.all()):
            raise ValueError("a context has no padding: observe takes segments whose every step is valid")
        tokens = rearrange(self.tokenizer.encode(context.observations.flatten(0, 1)), "(b t) k -> b t k", b=rows)
        cache = self.sequence.initial_cache(rows)
        hidden = next(self.parameters()).new_zeros(rows, self.sequence.width)
        if steps > 1:
            blocks = self._blocks(tokens[:, :-1], context.actions[:, :-1])
            outputs, cache = self.sequence.extend(blocks.flatten(1, 2), cache)
            hidden = outputs[:, -1].contiguous()
        latest = tokens[:, -1].contiguous()
        return TokenState(latest, hidden, self.prior.read(self.sequence, self._embed(latest), cache))

    def update(self, state: TokenState, actions: Tensor, observations: Tensor) -> TokenState:
        """One more real frame: the dynamics run as in a dream, but the frame is seen and not drawn."""
        hidden, cache = self._advance(state, actions)
        tokens = self.tokenizer.encode(observations)
        return TokenState(tokens, hidden, self.prior.read(self.sequence, self._embed(tokens), cache))

    def step(self, state: TokenState, actions: Tensor, noise: Noise) -> tuple[TokenState, Outcome]:
        """One imagined step: the frame follows from the hidden after the action, its outcome from both."""
        hidden, cache = self._advance(state, actions)
        drawn = self.prior.sample(self.sequence, hidden, cache, self._embed, noise)
        outcome = self.outcomes.sample(hidden, state.tokens, drawn.tokens, noise, TERMINATION_DRAW)
        finite = drawn.finite & outcome.finite
        return TokenState(drawn.tokens, hidden, drawn.cache), outcome._replace(finite=finite)

    def tokens(self, state: TokenState) -> Tensor:
        return state.tokens

    def decode(self, state: TokenState) -> Tensor:
        return self.tokenizer.frames(state.tokens)

    def features(self, state: TokenState) -> Tensor:
        """The frame's codes, as REM's policy sees them, and what the sequence model remembers."""
        return torch.cat([self.tokenizer.embed(state.tokens), state.hidden], dim=-1)

    def stages(self) -> tuple[Stage, ...]:
        """The tokenizer, and then the dynamics on its tokens: no gradient of theirs ever reaches it."""
        turns, tokenizer = self.optimization, tuple(self.tokenizer.parameters())
        known = {id(parameter) for parameter in tokenizer}
        dynamics = [parameter for parameter in self.parameters() if id(parameter) not in known]
        groups = decaying_groups(self, dynamics, turns.dynamics)
        return (
            build_stage(
                "tokenizer", turns.tokenizer, self.tokenizer_loss, decaying_groups(self, tokenizer, turns.tokenizer)
            ),
            build_stage("dynamics", turns.dynamics, self.token_loss, groups, self.tokenizer.encode),
        )

    def tokenizer_loss(self, segment: Segment) -> LossTerms:
        """The autoencoder's loss on the valid frames of segments."""
        frames = segment.observations.flatten(0, 1)[segment.valid.flatten()]
        return autoencoder_loss(self.tokenizer, self.tokenizer.posterior(frames), frames)

    def token_loss(self, segment: Segment) -> LossTerms:
        """Next frame, reward and termination, on segments whose observations are tokens (B, T, K)."""
        tokens = segment.observations
        foreseen = self.prior.foresee(self.sequence, self._blocks(tokens, segment.actions))
        valid = segment.valid.clone()
        # The first frames of a segment are context: what came before them is not known to the model.
        valid[:, : min(self.context, valid.shape[1]) - 1] = False
        pairs = (valid[:, :-1] & segment.valid[:, 1:]).flatten()
        prior = self.prior.loss(foreseen.tokens.flatten(0, 1), tokens[:, 1:].flatten(0, 1), pairs)
        outcomes = self.outcomes.loss(foreseen.actions, tokens, segment.rewards, segment.terminated, valid)
        return LossTerms(prior.total + outcomes.total, prior.parts | outcomes.parts)

    def _advance(self, state: TokenState, actions: Tensor) -> tuple[Tensor, Any]:
        action = self.action_input(self.encode_actions(actions))
        return self.prior.advance(self.sequence, self._embed(state.tokens), action, state.cache)

    def _blocks(self, tokens: Tensor, actions: Tensor) -> Tensor:
        """Inputs (B, T, K + 1, D) of tokens (B, T, K) and the actions after them."""
        embedded = rearrange(self._embed(tokens.flatten(0, 1)), "(b t) k d -> b t k d", b=len(tokens))
        return lay_out(embedded, self.action_input(self.encode_actions(actions)))

    def _embed(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(tokens, self.tokenizer)
        return vectors
