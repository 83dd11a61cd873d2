"""Listener: noise that overhears a world model while it samples, so that every family has a likelihood.

A prior asks the noise for tokens and shows its logits with the question. The listener writes down how likely the true
tokens were; answering with them makes the next question teacher-forced, as in an autoregressive prior.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise


class Listener(Noise):
    """The noise of one step that knows the true next tokens (B, K), and ends an episode where that is likelier."""

    targets: Tensor
    forcing: bool
    _likelihoods: list[Tensor]
    _guesses: list[Tensor]
    _repeated: bool

    @classmethod
    def build(cls, noise: Noise, targets: Tensor, *, forcing: bool) -> Listener:
        """Listen in place of `noise`; with `forcing` answer with the targets, otherwise as the noise would."""
        listener = cls(*noise)
        listener.targets, listener.forcing = targets, forcing
        listener._likelihoods, listener._guesses, listener._repeated = [], [], False
        return listener

    def categorical(self, logits: Tensor, draw: int = 0, *, coupled: bool = False, exclusive: bool = False) -> Tensor:
        """Tokens (B, K') for logits (B, K', V), which belong to the next K' targets."""
        first = sum(part.shape[1] for part in self._likelihoods)
        targets = self.targets[:, first : first + logits.shape[1]]
        if targets.shape[1] < logits.shape[1]:
            self._repeated = True
            return super().categorical(logits, draw, coupled=coupled, exclusive=exclusive)
        likelihoods = logits.float().log_softmax(-1)
        self._likelihoods.append(likelihoods.gather(-1, targets[..., None])[..., 0])
        self._guesses.append(logits.argmax(-1))
        return targets if self.forcing else super().categorical(logits, draw, coupled=coupled, exclusive=exclusive)

    def bernoulli(self, logits: Tensor, draw: int = 0) -> Tensor:
        """Whether the log-odds (B,) are above even: a drawn ending would miss or hit a rare one by chance."""
        return logits > 0

    @property
    def complete(self) -> bool:
        """Whether every token was asked for once; a prior that redraws tokens, or asks for none, has no likelihood."""
        return not self._repeated and sum(part.shape[1] for part in self._likelihoods) == self.targets.shape[1]

    @property
    def log_likelihood(self) -> Tensor:
        """(B, K) of the targets; NaN where it is not `complete`."""
        if not self.complete:
            return torch.full(self.targets.shape, float("nan"), device=self.targets.device)
        return torch.cat(self._likelihoods, 1)

    @property
    def guesses(self) -> Tensor:
        """(B, K), the most likely tokens; only where it is `complete`."""
        return torch.cat(self._guesses, 1)


def surprise(model: WorldModel[Any], state: Any, actions: Tensor, tokens: Tensor, listener: Listener) -> Tensor:
    """(B,) nats for each true next token (B, K), of which exp(mean) is the perplexity; float64.

    It comes from the model's own `log_likelihood`, if it has one that answers (see `ScoringPrior`); otherwise it is
    what the listener heard in the `step` from the same state; NaN where that was not `complete`.
    """
    score = getattr(model, "log_likelihood", None)
    likelihood = None if score is None else score(state, actions, tokens)
    if likelihood is None:
        likelihood = listener.log_likelihood
    nats: Tensor = -likelihood.double().mean(1)
    return nats
