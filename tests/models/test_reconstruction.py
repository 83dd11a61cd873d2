from __future__ import annotations

import torch

from dreamenvs.models.reconstruction import autoencoder_loss
from dreamenvs.nn.frame_networks.step_vq import ConvConfig
from dreamenvs.tokenizers.vq import VQConfig, VQTokenizer


def test_the_loss_is_the_mean_over_frames_of_reconstruction_and_commitment() -> None:
    config = VQConfig(conv=ConvConfig(channels=(8, 16), strides=(2, 2)), codes=12, code_width=6)
    tokenizer = VQTokenizer(config, (3, 16, 24)).eval()
    frames = torch.randint(256, (4, 3, 16, 24), dtype=torch.uint8)
    posterior = tokenizer.posterior(frames)
    terms = autoencoder_loss(tokenizer, posterior, frames)
    errors = tokenizer.reconstruction(tokenizer.decode(posterior.latent), frames)
    torch.testing.assert_close(terms.parts["reconstruction"], errors.mean().detach())
    torch.testing.assert_close(terms.parts["commitment"], posterior.commitment.mean().detach())
    torch.testing.assert_close(terms.total, (errors + posterior.commitment).mean())
    assert terms.total.requires_grad
    assert not any(part.requires_grad for part in terms.parts.values())
