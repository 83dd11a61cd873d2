"""Makes the one file of weights that LPIPS needs from torchvision's weights of VGG16 and those of LPIPS.

python -m dreamenvs.cli.lpips --vgg vgg16-397923af.pth --linear vgg.pth --out lpips.safetensors

Both are at hand wherever torchvision and lpips have run: the first in ~/.cache/torch/hub/checkpoints, the second in
the lpips package, at lpips/weights/v0.1/vgg.pth. Then `export DREAMENVS_LPIPS=$PWD/lpips.safetensors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from safetensors.torch import save_file
from torch import Tensor

from dreamenvs.nn.lpips import VARIABLE, load_lpips, lpips_shapes


@dataclass(frozen=True, kw_only=True)
class Args:
    """Make the file of weights for LPIPS."""

    vgg: Path
    """A state_dict of torchvision's vgg16."""
    linear: Path
    """A state_dict of lpips' linear layers for VGG16."""
    out: Path
    """The safetensors file to write."""


def main(args: Args) -> None:
    # weights_only: these files are pickles, and nothing but tensors is taken out of them.
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in (args.vgg, args.linear)]
    found: dict[str, Tensor] = {name: value for state in states for name, value in state.items()}
    missing = [name for name in lpips_shapes() if name not in found]
    if missing:
        raise SystemExit(f"{missing[0]} is neither in {args.vgg} nor in {args.linear}")
    weights = {name: found[name].detach().to(torch.float32).contiguous() for name in lpips_shapes()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, args.out)
    load_lpips(args.out)
    print(f"wrote {args.out}; set {VARIABLE}={args.out.resolve()}")


if __name__ == "__main__":
    main(tyro.cli(Args))
