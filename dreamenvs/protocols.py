"""The seams of the package. Everything below `Dream` is one of these, and everything above it sees only `WorldModel`.

The state and the cache are values: NamedTuples of tensors, rows first, passed in and returned. Modules hold parameters
only. `step` may append to memory that the old and the new state share, but what an old state shows never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from dreamenvs.random import Noise
from dreamenvs.types import LossTerms, Outcome, Segment, WorldSpec

StateT = TypeVar("StateT")
CacheT = TypeVar("CacheT")


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that are optimised alike."""

    parameters: tuple[nn.Parameter, ...]
    learning_rate: float
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One optimisation phase of a world model: what to minimise, over which parameters, for how long."""

    name: str
    loss: Callable[[Segment], LossTerms]
    """Of a batch, which several ranks may share: sums over the batch go through `nn.distributed`, as by
    `masked_mean`."""
    groups: tuple[ParameterGroup, ...]
    clip: float
    """The largest gradient norm over all groups together."""
    rows: int
    length: int
    """Steps of a segment; a batch is `rows` segments."""
    updates: int
    warmup: int = 0
    """Updates in which the learning rates rise to their full size."""
    decay: float = 1.0
    """The share of the learning rates that is left at the end of a cosine; 1 keeps them."""
    final: bool = False
    """Whether segments also show the frame after an episode's last step, in the first place of the padding: what
    becomes of that step can be learned only there."""
    begin: Callable[[Iterable[Segment]], None] | None = None
    """Shown every episode once, as a segment of one row with its final frame, before the stage begins, and again when
    a fit resumes: for what is found in the data and not optimised. A second time it must change nothing."""
    prepare: Callable[[Tensor], Tensor] | None = None
    """Makes tokens (N, K) of frames (N, C, H, W), once for each frame before the stage begins; the observations of
    the segments that `loss` takes are then these tokens (B, T, K)."""


class WorldModel(Protocol[StateT]):
    """A learned world: rows of imagined episodes are advanced by `step`, with all memory in the state."""

    @property
    def spec(self) -> WorldSpec: ...

    @property
    def num_tokens(self) -> int:
        """K, the tokens of a frame."""
        ...

    @property
    def vocabulary(self) -> int:
        """V, how many values a token can take."""
        ...

    @property
    def num_features(self) -> int:
        """F, the size of what a latent policy sees."""
        ...

    def observe(self, context: Segment) -> StateT:
        """The state after T real frames; the last action of the context is not used, for it has not been taken yet."""
        ...

    def update(self, state: StateT, actions: Tensor, observations: Tensor) -> StateT:
        """One more real frame (B, C, H, W) after actions: acting for real."""
        ...

    def step(self, state: StateT, actions: Tensor, noise: Noise) -> tuple[StateT, Outcome]:
        """One imagined step."""
        ...

    def tokens(self, state: StateT) -> Tensor:
        """The current frame as tokens (B, K) int64."""
        ...

    def decode(self, state: StateT) -> Tensor:
        """The current frame as pixels (B, C, H, W) uint8."""
        ...

    def features(self, state: StateT) -> Tensor:
        """What a latent policy sees (B, F) float32; a new tensor at every call."""
        ...

    def stages(self) -> tuple[Stage, ...]:
        """What to optimise, in which order."""
        ...


class SequenceModel(Protocol[CacheT]):
    """A causal model over frames or tokens; `extend` and `step` give what `forward` would, without its history."""

    @property
    def width(self) -> int: ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """Hidden (B, T, D) for inputs (B, T, D), all at once, for training."""
        ...

    def initial_cache(self, rows: int) -> CacheT:
        """The cache before the first input, on the parameters' device and in their dtype."""
        ...

    def extend(self, inputs: Tensor, cache: CacheT) -> tuple[Tensor, CacheT]:
        """Hidden (B, T, D) for T more inputs at once; rows may have different ages."""
        ...

    def step(self, inputs: Tensor, cache: CacheT) -> tuple[Tensor, CacheT]:
        """Hidden (B, D) for one more input (B, D)."""
        ...


class Posterior(NamedTuple):
    """What a tokenizer makes of real frames while it is trained."""

    tokens: Tensor  # (N, K) int64
    logits: Tensor  # (N, K, V), of the distribution that the dynamics are aligned with
    latent: Tensor  # (N, K·D), straight-through: the sampled or nearest code forward, its soft version backward
    commitment: Tensor  # (N,), the tokenizer's own penalty; zero where there is none


class Tokenizer(Protocol):
    """Frames to tokens and back."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def latent_width(self) -> int:
        """The size of a whole frame's latent, K·D."""
        ...

    def encode(self, observations: Tensor) -> Tensor:
        """Tokens (N, K) int64 of observations (N, C, H, W) uint8, deterministic."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Latent (N, K·D) of tokens (N, K)."""
        ...

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels (N, C, H, W), floats around [0, 1], of a latent (N, K·D)."""
        ...

    def posterior(self, observations: Tensor) -> Posterior:
        """Encode (N, C, H, W) uint8 with gradients; statistics of the codes, as of EMA, move only in training mode."""
        ...

    def frames(self, tokens: Tensor) -> Tensor:
        """Pixels (N, C, H, W) uint8 of tokens (N, K), as an environment shows them."""
        ...

    def reconstruction(self, pixels: Tensor, observations: Tensor) -> Tensor:
        """(N,) how far decoded pixels (N, C, H, W) are from observations (N, C, H, W) uint8, in the tokenizer's scale.

        This is what training minimises, weighed against `Posterior.commitment`; it compares no two tokenizers.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Mixer(Protocol):
    """A frame's latent and the action that follows it, as one input to a frame-level sequence model."""

    def __call__(self, latent: Tensor, actions: Tensor) -> Tensor:
        """Inputs (N, D) of latent (N, K·D) and encoded actions (N, A)."""
        ...


class FramePrior(Protocol):
    """Predicts a whole frame's tokens from one hidden vector and the tokens of the past (N, 2, K), two frames."""

    def sample(self, hidden: Tensor, noise: Noise, past: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, K) from hidden (B, D), and (B,) whether every logit behind them was finite."""
        ...

    def loss(self, hidden: Tensor, target: Posterior, valid: Tensor, past: Tensor) -> LossTerms:
        """How badly hidden (N, D) predicts the target frames (N), over the valid (N,) ones."""
        ...


class ScoringPrior(Protocol):
    """What a `FramePrior` offers also where its likelihood cannot be read off while it samples.

    A prior that draws each token once and in their order needs none of this. One that draws tokens again, or in an
    order of its own, as draft-and-revise does, says here how likely the true tokens were.
    """

    def log_likelihood(self, hidden: Tensor, tokens: Tensor, past: Tensor) -> Tensor:
        """(N, K) nats, negative, of tokens (N, K) from hidden (N, D), each given those that come before it.

        The sum over a frame is the logarithm of a probability of the whole frame: summed over all V^K frames, these
        come to 1 at most. So a token may be given tokens that stand before it in some order, fixed or drawn, and those
        of its own pass not at all. A pseudo-likelihood, of each token given all others, is no such thing, and would
        make perplexities smaller than any prior's that is one.
        """
        ...


class PeekingModel(SequenceModel[CacheT], Protocol[CacheT]):
    """A sequence model that can say what would follow without moving on: what POP asks of it."""

    def extend_last(self, inputs: Tensor, cache: CacheT) -> tuple[Tensor, CacheT]:
        """`extend` by inputs (B, T, D), with the hidden (B, D) of the last one alone."""
        ...

    def peek(self, queries: Tensor, cache: CacheT) -> Tensor:
        """The hidden (B, K, D) that `extend` by the same queries (K, D) in every row would give; the cache stays."""
        ...

    def forward_peeking(self, blocks: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden (B, T, L, D) of blocks (B, T, L, D), and (B, T, K, D) of queries (K, D) in the place of each block."""
        ...


class Drawn(NamedTuple):
    """A frame that was drawn."""

    tokens: Tensor  # (B, K) int64
    finite: Tensor  # (B,) bool, whether every logit behind them was finite
    cache: Any


class Foreseen(NamedTuple):
    """What a token-level model says of segments of T frames, with gradients."""

    actions: Tensor  # (B, T, D), hidden after each action
    tokens: Tensor  # (B, T - 1, K, D), hidden from which the tokens of every frame but the first are predicted


class BlockPrior(Protocol):
    """Predicts a frame's tokens with a sequence model over blocks of K tokens and an action, which it is given.

    Between frames the cache holds what the prior has left in it: `read` brings it there after a real frame, `sample`
    after an imagined one, and `advance` goes on from there.
    """

    def read(self, sequence: Any, latest: Tensor, cache: Any) -> Any:
        """The cache once a real frame's embedded tokens (B, K, D) have come."""
        ...

    def advance(self, sequence: Any, latest: Tensor, action: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Hidden (B, D) after an embedded action (B, D) on the latest frame (B, K, D), and the cache."""
        ...

    def sample(
        self, sequence: Any, hidden: Tensor, cache: Any, embed: Callable[[Tensor], Tensor], noise: Noise
    ) -> Drawn:
        """The next frame after `advance` gave hidden and cache; `embed` makes inputs (B, K', D) of tokens (B, K')."""
        ...

    def foresee(self, sequence: Any, blocks: Tensor) -> Foreseen:
        """All predictions for embedded blocks (B, T, K + 1, D) at once, for training."""
        ...

    def loss(self, hidden: Tensor, tokens: Tensor, valid: Tensor) -> LossTerms:
        """How badly hidden (N, K, D) predicts tokens (N, K), over the valid (N,) frames."""
        ...
