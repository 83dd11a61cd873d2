from __future__ import annotations

import pytest
import torch

from dreamenvs.models.heads import HeadConfig, RewardHead, TerminationHead
from dreamenvs.nn.distributions import two_hot

CONFIG = HeadConfig(units=32)


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_untrained_heads_say_zero_and_even_odds(layers: int) -> None:
    hidden = torch.randn(5, 16)
    config = HeadConfig(units=32, layers=layers)
    rewards = RewardHead(config, 16)(hidden)
    assert rewards.dtype == torch.float32
    torch.testing.assert_close(rewards, torch.zeros(5), atol=1e-5, rtol=0)
    assert torch.equal(TerminationHead(config, 16)(hidden), torch.zeros(5))


def test_reward_loss_is_the_cross_entropy_over_valid_steps() -> None:
    head, hidden = RewardHead(CONFIG, 16), torch.randn(2, 3, 16)
    torch.nn.init.normal_(head.output.weight)
    rewards = torch.tensor([[1.0, 1e30, -2.0], [0.0, 30.0, 0.1]])
    valid = torch.tensor([[True, False, True], [True, True, False]])
    expected = -(two_hot(rewards[valid]) * head.logits(hidden)[valid].log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(head.loss(hidden, rewards, valid), expected)


def test_termination_loss_is_the_log_likelihood_over_valid_steps() -> None:
    head, hidden = TerminationHead(CONFIG, 16), torch.randn(6, 16)
    torch.nn.init.normal_(head.output.weight)
    terminated = torch.tensor([True, False, False, True, False, True])
    valid = torch.tensor([True, True, False, True, True, False])
    chances = head(hidden).sigmoid()
    expected = -torch.where(terminated, chances, 1 - chances)[valid].log().mean()
    torch.testing.assert_close(head.loss(hidden, terminated, valid), expected)


def test_termination_is_its_linear_layer() -> None:
    head, hidden = TerminationHead(CONFIG, 16).double(), torch.randn(6, 16, dtype=torch.float64)
    torch.nn.init.normal_(head.output.weight)
    torch.nn.init.normal_(head.output.bias)
    torch.testing.assert_close(head(hidden), head.output(head.trunk(hidden))[:, 0].float())


def test_heads_learn_rewards_and_endings() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(6, 16)
    rewards, terminated = torch.tensor([0.0, 1.0, -1.0, 5.0, 0.0, 100.0]), torch.arange(6) % 2 == 0
    valid = torch.ones(6, dtype=torch.bool)
    reward, termination = RewardHead(CONFIG, 16), TerminationHead(CONFIG, 16)
    optimizer = torch.optim.Adam([*reward.parameters(), *termination.parameters()], 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        (reward.loss(hidden, rewards, valid) + termination.loss(hidden, terminated, valid)).backward()
        optimizer.step()
    torch.testing.assert_close(reward(hidden), rewards, atol=0.1, rtol=0.1)
    assert torch.equal(termination(hidden) > 0, terminated)


def test_a_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    relu = HeadConfig(units=512, layers=2, activation="relu")
    for head in (
        RewardHead(HeadConfig(), 64),
        TerminationHead(HeadConfig(), 64),
        RewardHead(relu, 64),
        TerminationHead(relu, 64),
    ):
        torch.nn.init.normal_(head.output.weight)
        hidden = torch.randn(100, 64)
        with torch.inference_mode():
            for rows in (8, 12, 17, 33, 65):
                assert torch.equal(head(hidden[:rows]), head(hidden)[:rows])


def test_sizes_of_table_12() -> None:
    head = RewardHead(HeadConfig(), 512)
    assert sum(weights.numel() for weights in head.parameters()) == 512 * 256 + 256 + 256 + 256 * 255 + 255


def test_sizes_of_storms_table_14() -> None:
    config = HeadConfig(units=512, layers=2, activation="relu")
    sizes = [
        sum(weights.numel() for weights in head(config, 512).parameters()) for head in (RewardHead, TerminationHead)
    ]
    hidden = 2 * (512 * 512 + 2 * 512)
    assert sizes == [hidden + 513 * 255, hidden + 513]


def test_three_layers_with_relu() -> None:
    """Linear, LayerNorm and ReLU twice, then linear."""
    head = TerminationHead(HeadConfig(units=8, layers=2, activation="relu"), 5).double()
    torch.nn.init.normal_(head.output.weight)
    hidden = torch.randn(4, 5, dtype=torch.float64)
    expected = hidden
    for linear, norm in ((head.trunk[0], head.trunk[1]), (head.trunk[3], head.trunk[4])):
        expected = expected @ linear.weight.T
        centred = expected - expected.mean(-1, keepdim=True)
        expected = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        expected = expected.clamp(min=0)
    expected = (expected @ head.output.weight.T + head.output.bias)[:, 0]
    torch.testing.assert_close(head(hidden), expected.float())


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match="not 'tanh'"):
        HeadConfig(activation="tanh")  # type: ignore[arg-type]
