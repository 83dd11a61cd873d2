"""TeacherForcing: noise that scores the true tokens while a world model samples, so that every family has a likelihood.

A prior passes its logits to the noise when it samples. TeacherForcing records the log-likelihood of the true tokens; if
it also returns them, the next logits are conditioned on them, as in an autoregressive prior.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dreamenvs.protocols import WorldModel
from dreamenvs.random import Noise


class TeacherForcing(Noise):
    """The noise of one step that knows the true next tokens (B, K), and ends an episode where that is likelier."""

    targets: Tensor
    forcing: bool
    _likelihoods: list[Tensor]
    _guesses: list[Tensor]
    _places: list[Tensor]
    _repeated: bool

    @classmethod
    def build(cls, noise: Noise, targets: Tensor, *, forcing: bool) -> TeacherForcing:
        """Listen in place of `noise`; with `forcing` answer with the targets, otherwise as the noise would."""
        teacher = cls(*noise)
        teacher.targets, teacher.forcing = targets, forcing
        teacher._likelihoods, teacher._guesses, teacher._repeated = [], [], False
        teacher._places = []
        return teacher

    def categorical(
        self,
        logits: Tensor,
        draw: int = 0,
        *,
        coupled: bool = False,
        exclusive: bool = False,
        places: Tensor | None = None,
    ) -> Tensor:
        """Tokens (B, K') for logits (B, K', V), which belong to the targets at `places` (B, K'), or to the next K'.

        A draft that is revised is heard once, as it is drafted: by the chain rule that is how likely the truth was. How
        likely a revision makes it nobody can say.
        """
        first = sum(part.shape[1] for part in self._likelihoods)
        following = torch.arange(first, first + logits.shape[1], device=logits.device)
        over = first + logits.shape[1] > self.targets.shape[1]
        if over:
            self._repeated = self._repeated or places is None
        if over and (places is None or not self.forcing):
            return super().categorical(logits, draw, coupled=coupled, exclusive=exclusive)
        places = following.expand(len(logits), -1) if places is None else places
        targets = self.targets.gather(1, places)
        if not over:
            likelihoods = logits.float().log_softmax(-1)
            self._likelihoods.append(likelihoods.gather(-1, targets[..., None])[..., 0])
            self._guesses.append(logits.argmax(-1))
            self._places.append(places)
        return targets if self.forcing else super().categorical(logits, draw, coupled=coupled, exclusive=exclusive)

    def categorical_again(self, logits: Tensor, draw: int = 0) -> Tensor:
        """The targets once more, where they were given."""
        return self.targets if self.forcing else super().categorical_again(logits, draw)

    def of_rows(self, rows: Tensor) -> Noise:
        """The noise of some rows (N,) alone, which nobody hears."""
        return Noise(self.seeds[rows], self.steps[rows], self.temperature)

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
        return self._in_order(self._likelihoods)

    @property
    def guesses(self) -> Tensor:
        """(B, K), the most likely tokens; only where it is `complete`."""
        return self._in_order(self._guesses)

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """What was heard of parts of the tokens, each at its place (B, K)."""
        values = torch.cat(parts, 1)
        return torch.empty_like(values).scatter_(1, torch.cat(self._places, 1), values)


def surprise(model: WorldModel[Any], state: Any, actions: Tensor, tokens: Tensor, teacher: TeacherForcing) -> Tensor:
    """(B,) nats for each true next token (B, K), of which exp(mean) is the perplexity; float64.

    It comes from the model's own `log_likelihood`, if it has one that answers (see `ScoringPrior`); otherwise it is
    what the teacher heard in the `step` from the same state; NaN where that was not `complete`.
    """
    score = getattr(model, "log_likelihood", None)
    likelihood = None if score is None else score(state, actions, tokens)
    if likelihood is None:
        likelihood = teacher.log_likelihood
    nats: Tensor = -likelihood.double().mean(1)
    return nats
