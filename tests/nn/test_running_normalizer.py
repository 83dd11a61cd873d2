"""Running statistics of inputs."""

from __future__ import annotations

import torch

from dreamenvs.nn.running_normalizer import LEAST, Normalizer


def test_what_was_seen_in_parts_is_what_was_seen_at_once() -> None:
    inputs = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4 + 2
    inputs[:, 2] = 7.0
    normalizer = Normalizer(3).double()
    for part in inputs.split([7, 20, 1, 22]):
        normalizer.see(part)
    torch.testing.assert_close(normalizer.mean, inputs.mean(0))
    torch.testing.assert_close(normalizer.variance, inputs.var(0, correction=0))
    assert normalizer.count == 50
    expected = (inputs - inputs.mean(0)) / (inputs.var(0, correction=0) + LEAST).sqrt()
    torch.testing.assert_close(normalizer(inputs[:, None]), expected[:, None])


def test_before_anything_was_seen_inputs_stay_nearly_as_they_are_and_none_is_loud() -> None:
    normalizer, inputs = Normalizer(2), torch.tensor([[0.5, -3.0], [1e6, -1e6]])
    torch.testing.assert_close(normalizer(inputs)[0], inputs[0], rtol=1e-3, atol=0)
    assert normalizer(inputs)[1].tolist() == [10.0, -10.0]
