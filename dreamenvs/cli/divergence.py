"""Compare how well dreams with a posterior foresee it on held-out frames, as figure 16 of GIT-STORM does.

    python -m dreamenvs.cli.divergence runs/storm-0 runs/gitstorm-0 --data data/MinAtarBreakout --rounds 4 16

Each dream is measured on the tenth of the episodes that its own fit held out. Prints a table, and JSON with --json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import dreamenvs
from dreamenvs.cli.threads import use_threads
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.measuring import Row, table, tell
from dreamenvs.evaluation.prior_divergence import measure_divergence
from dreamenvs.workflows.fitting import split


@dataclass(frozen=True)
class Args:
    """Compare the divergences of dreams."""

    dreams: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Environment ids or paths of checkpoints, fitted on the same data."""
    data: Path
    """The replay that they were fitted on."""
    rounds: tuple[int, ...] = (4, 16)
    """Draft rounds of priors whose tokens can see each other."""
    excerpts: int = 256
    """Held-out excerpts of 32 frames."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores."""
    json: bool = False
    """Print JSON instead of a table."""


def main(args: Args) -> None:
    use_threads(args.threads)
    replay, rows = Replay.open(args.data), []
    for name in args.dreams:
        rows.append(measure(name, replay, args))
        tell(name, "measured")
    print(json.dumps(rows, indent=1) if args.json else table(rows))


def measure(name: str, replay: Replay, args: Args) -> Row:
    """One dream's line."""
    dream = dreamenvs.load(name)
    model, seed = dream.model, int(dream.card["fitting"]["seed"])
    held_out, _ = split(replay, seed)
    found = measure_divergence(model, held_out, rows=args.excerpts, rounds=args.rounds)
    return {
        "dream": Path(name).name,
        "family": dream.family,
        "seed": seed,
        "prior_weights": sum(each.numel() for each in model.prior.parameters()),  # type: ignore[attr-defined]
        "kl_one_pass": round(found.one_pass, 3),
        **{f"kl_{number}_rounds": round(nats, 3) for number, nats in found.chain.items()},
        "posterior_entropy": round(found.entropy, 3),
        "reconstruction": round(found.reconstruction, 6),
        "frames": found.frames,
    }


if __name__ == "__main__":
    main(tyro.cli(Args))
