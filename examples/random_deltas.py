"""Section 3.4 of the Δ-IRIS paper as a picture: a dream, and below it one whose Δ-tokens are drawn at random.

    python examples/random_deltas.py --id path/to/a/DeltaIRIS/dream

Without a dream to look at, a tiny one is fitted first: a block that obeys its actions, beside a lamp that does not.
In both dreams the block goes where it is told; with random tokens the lamp flickers as it never did.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import dreamenvs
from dreamenvs.actions import sample_actions
from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import start_contexts
from dreamenvs.evaluation.delta_figure import delta_figure
from dreamenvs.evaluation.pictures import write_png
from dreamenvs.fitting.fit import Fit
from dreamenvs.models.delta_iris import DeltaIRISConfig, build
from dreamenvs.models.frame_token import FrameTokenConfig
from dreamenvs.models.turns import TurnConfig, TurnsOptimization
from dreamenvs.nn.frame_network import FrameNetworkConfig
from dreamenvs.sequence.transformer import BlockTransformerConfig
from dreamenvs.tokenizers.delta import DeltaConfig
from dreamenvs.types import DiscreteActions, WorldSpec


def lamp_episode(rng: np.random.Generator, steps: int = 40) -> Episode:
    """A block goes left, stays or goes right; on the right, a lamp changes its state once in a while."""
    actions, lit, place = rng.integers(0, 3, steps), False, int(rng.integers(7))
    frames = np.zeros((steps + 1, 8, 8, 4, 3), np.uint8)
    for step in range(steps + 1):
        frames[step, :, place], frames[step, :, 7] = (255, 160, 40), 255 * lit
        if step < steps:
            place = int(np.clip(place + actions[step] - 1, 0, 6))
            lit ^= bool(rng.random() < 0.1)
    return Episode(
        observations=frames.reshape(steps + 1, 8, 32, 3),
        actions=actions,
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) == steps - 1,
    )


def tiny_model(updates: int) -> DeltaIRISConfig:
    network = FrameNetworkConfig(channels=(16, 32), strides=(2, 1), groups=8)
    turn = TurnConfig(rows=8, length=12, updates=updates, rate=3e-3, clip=10.0)
    return DeltaIRISConfig(
        tokenizer=DeltaConfig(network=network, condition=network, channels=8, codes=16, code_width=8),
        frame_token=FrameTokenConfig(network=network, channels=2),
        sequence=BlockTransformerConfig(width=64, layers=2, heads=2, feed_forward=128, dropout=0.0, blocks=8),
        optimization=TurnsOptimization(tokenizer=turn, dynamics=turn),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", help="a dream of the family DeltaIRIS: an id or a path")
    parser.add_argument("--steps", type=int, default=12, help="imagined steps")
    parser.add_argument("--updates", type=int, default=600, help="of the tiny model's tokenizer, and of its dynamics")
    parser.add_argument("--out", default="deltas.png")
    args = parser.parse_args()

    if args.id is not None:
        dream = dreamenvs.load(args.id)
        model, contexts = dream.model, dream.contexts
    else:
        rng = np.random.default_rng(0)
        episodes = [lamp_episode(rng) for _ in range(100)]
        spec = WorldSpec(world="Lamp", observation_shape=(3, 8, 32), actions=DiscreteActions(count=3))
        torch.manual_seed(0)
        model = build(tiny_model(args.updates), spec)
        for metrics in Fit(model, episodes).run():
            if metrics.update % 100 == 0:
                print(f"{metrics.stage} {metrics.update}: loss {metrics.loss:.4f}")
        model.eval()
        contexts = start_contexts(episodes, 1, 4, rng)
    start = contexts._make(leaf[:1] for leaf in contexts)
    actions = sample_actions(model.spec.actions, args.steps, torch.Generator().manual_seed(0))
    print(write_png(args.out, delta_figure(model, start, actions, scale=4)))


if __name__ == "__main__":
    main()
