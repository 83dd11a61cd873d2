"""Section 3.4 of the Δ-IRIS paper as a picture: a dream, and below it one whose Δ-tokens are drawn at random.

Both start from the same frame and take the same actions. What follows from them, such as the flight of the ball, the
decoder draws by itself for some steps; what the tokens are there to tell comes as noise.
"""

from __future__ import annotations

import argparse

import torch

import dreamenvs
from dreamenvs import tree
from dreamenvs.evaluation.delta_tokens import delta_figure
from dreamenvs.evaluation.pictures import write_png
from dreamenvs.models.actions import sample_actions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="dreamenvs/DeltaIRIS-MinAtarBreakout-v0", help="a dream of Δ-IRIS")
    parser.add_argument("--steps", type=int, default=12, help="imagined steps")
    parser.add_argument("--start", type=int, default=0, help="which of the dream's start contexts")
    parser.add_argument("--out", default="deltas.png")
    args = parser.parse_args()

    dream = dreamenvs.load(args.id)
    start = tree.take_rows(dream.contexts, torch.tensor([args.start]))
    actions = sample_actions(dream.model.spec.actions, args.steps, torch.Generator().manual_seed(0))
    print(write_png(args.out, delta_figure(dream.model, start, actions, scale=4)))


if __name__ == "__main__":
    main()
