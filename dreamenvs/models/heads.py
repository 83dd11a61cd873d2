"""Reward and termination, read from the hidden vector (STEP-VQ, table 12; GIT-STORM, table 14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from dreamenvs.nn.distributions import BINS, masked_mean, two_hot_loss, two_hot_mean
from dreamenvs.nn.layers import RowLayerNorm, RowLinear, RowRMSNorm, RowSiLU

Activation = Literal["silu", "relu"]


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Layers of linear, norm and activation before the output."""

    units: int = 256
    layers: int = 1
    activation: Activation = "silu"
    """`silu` comes after an RMSNorm, as in DRAMA; `relu` after a LayerNorm, which has the layer's only bias, as in
    STORM."""

    def __post_init__(self) -> None:
        if self.activation not in get_args(Activation):
            raise ValueError(f"activation is one of {get_args(Activation)}, not {self.activation!r}")


def _trunk(config: HeadConfig, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(config.layers):
        if config.activation == "silu":
            layers += [RowLinear(width, config.units), RowRMSNorm(config.units), RowSiLU()]
        else:
            layers += [RowLinear(width, config.units, bias=False), RowLayerNorm(config.units), nn.ReLU(inplace=True)]
        width = config.units
    return nn.Sequential(*layers)


def _output(config: HeadConfig, width: int, outputs: int) -> RowLinear:
    """The last layer, at zero: an untrained head says reward 0 and even odds rather than something at random."""
    output = RowLinear(config.units if config.layers else width, outputs)
    nn.init.zeros_(output.weight)
    nn.init.zeros_(output.bias)
    return output


class RewardHead(nn.Module):
    """Rewards (…) of hidden (…, D), as a two-hot distribution in symlog space."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.trunk = _trunk(config, width)
        self.output = _output(config, width, BINS)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, 255) of the bins."""
        logits: Tensor = self.output(self.trunk(hidden))
        return logits.contiguous().float()

    def forward(self, hidden: Tensor) -> Tensor:
        return two_hot_mean(self.logits(hidden))

    def loss(self, hidden: Tensor, rewards: Tensor, valid: Tensor) -> Tensor:
        """Cross-entropy () with the rewards (…), over the valid (…) ones."""
        return masked_mean(two_hot_loss(self.logits(hidden), rewards), valid)


class SignRewardHead(nn.Module):
    """Rewards (…) of hidden (…, D) as their signs, one of three classes (IRIS, REM).

    It says the mean, p(+1) - p(-1): the published code draws a class, which has the same mean and adds noise.
    """

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.trunk = _trunk(config, width)
        self.output = _output(config, width, 3)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (…, 3) of -1, 0 and 1."""
        # Not self.output(…): a product with few columns is summed in an order that depends on the number of rows.
        weighted: Tensor = self.trunk(hidden)[..., None, :] * self.output.weight
        return (weighted.sum(-1) + self.output.bias).float()

    def forward(self, hidden: Tensor) -> Tensor:
        shares = self.logits(hidden).softmax(-1)
        return shares[..., 2] - shares[..., 0]

    def loss(self, hidden: Tensor, rewards: Tensor, valid: Tensor) -> Tensor:
        """Cross-entropy () with the signs of the rewards (…), over the valid (…) ones."""
        classes = rewards.sign().long() + 1
        logits = self.logits(hidden)
        return masked_mean(F.cross_entropy(logits.flatten(0, -2), classes.flatten(), reduction="none"), valid.flatten())


class TerminationHead(nn.Module):
    """Log-odds (…) that the episode has terminated, of hidden (…, D)."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.trunk = _trunk(config, width)
        self.output = _output(config, width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        # Not self.output(…): a product with one column is summed in an order that depends on the number of rows.
        weighted: Tensor = self.trunk(hidden) * self.output.weight[0]
        return (weighted.sum(-1) + self.output.bias).float()

    def loss(self, hidden: Tensor, terminated: Tensor, valid: Tensor) -> Tensor:
        """Binary cross-entropy () with terminated (…) bool, over the valid (…) ones."""
        logits = self(hidden)
        return masked_mean(
            F.binary_cross_entropy_with_logits(logits, terminated.to(logits.dtype), reduction="none"), valid
        )
