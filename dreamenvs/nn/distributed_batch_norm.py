"""BatchNorm over the batch of all ranks: torch's own synchronised one works on CUDA alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dreamenvs.nn import distributed


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, whose statistics are those of the whole batch where several ranks share it."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (N, C, H, W), normalised by channel."""
        if not self.training or not distributed.shared():
            return super().forward(inputs)
        count = distributed.all_sum(torch.tensor(inputs.numel() // inputs.shape[1], device=inputs.device))
        mean = distributed.all_sum(inputs.sum((0, 2, 3))) / count
        # From the deviations: the mean of squares less the square of the mean would lose most digits.
        centred = inputs - mean[:, None, None]
        variance = distributed.all_sum(centred.square().sum((0, 2, 3))) / count
        self._follow(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        scale = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias[:, None, None], centred, scale[:, None, None])

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, which stand for the batch's when the model is used."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
