"""Appendix G of the STEP-VQ paper as a picture: frames, codes, changed patches in red over grey, reconstruction."""

from __future__ import annotations

import argparse
from typing import Any

import torch

import dreamenvs
from dreamenvs.evaluation.pictures import code_figure, write_png


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", default="dreamenvs/STEPVQ-Pong-v0")
    parser.add_argument("--out", default="codes.png")
    args = parser.parse_args()

    dream = dreamenvs.load(args.id)
    model: Any = dream.model  # of a family whose tokenizer has a codebook
    frames = torch.cat([dream.contexts.observations[row] for row in range(3)])
    print(write_png(args.out, code_figure(model.tokenizer, frames)))


if __name__ == "__main__":
    main()
