"""The loss of a tokenizer as an autoencoder, whichever engine trains it."""

from __future__ import annotations

from torch import Tensor

from dreamenvs.nn import distributed
from dreamenvs.protocols import Posterior, Tokenizer
from dreamenvs.types import LossTerms


def autoencoder_loss(tokenizer: Tokenizer, posterior: Posterior, frames: Tensor) -> LossTerms:
    """How badly frames (N, C, H, W) uint8 come back from their latent, with the tokenizer's own penalty.

    The posterior is an argument, since dynamics that train with the tokenizer need the very same one. Padding must
    not reach either: the codes would follow it.
    """
    reconstruction = distributed.mean(tokenizer.reconstruction(tokenizer.decode(posterior.latent), frames))
    commitment = distributed.mean(posterior.commitment)
    parts = {"reconstruction": reconstruction.detach(), "commitment": commitment.detach()}
    return LossTerms(reconstruction + commitment, parts)
