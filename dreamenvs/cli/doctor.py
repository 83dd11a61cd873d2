"""Say whether a dream is worth training in, and if not, why and what to try.

    dreamenvs doctor dreamenvs/STEPVQ-MinAtarBreakout-v0
    dreamenvs doctor runs/fit/checkpoint --data data/BreakoutHeldOut --no-random-play
    dreamenvs doctor dreamenvs/STEPVQ-MinAtarBreakout-v0 --write

Prints a few plain lines that begin with the tier: good, demo or broken. With --write the diagnosis goes into the card
of the dream, where `dreamenvs list` finds the tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

import dreamenvs
from dreamenvs.agents.player import Player
from dreamenvs.checkpoints.card import card_markdown
from dreamenvs.checkpoints.world_model import LIMITS, Checkpoint
from dreamenvs.cli.command_line import command_line
from dreamenvs.cli.threads import use_threads
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.diagnosis import Diagnosis
from dreamenvs.evaluation.doctor import Examination
from dreamenvs.files.atomic_directory import dump_json, parse_json, read_artifact, write_artifact

NAME = "dreamenvs doctor "


@dataclass(frozen=True)
class Args:
    """Say whether a dream is worth training in."""

    dream: Annotated[str, tyro.conf.Positional]
    """An environment id or the path of a checkpoint directory."""
    data: Path | None = None
    """A replay of held-out episodes; by default random actions are played for real."""
    random_play: bool = True
    """Whether uniformly random actions made these episodes."""
    agent: Path | None = None
    """An agent that learned in this dream, as `dreamenvs train` saves it; by default PQN learns in it."""
    examination: Annotated[Examination, tyro.conf.arg(name="")] = field(default_factory=Examination)
    """How thorough the doctor is."""
    write: bool = False
    """Write the diagnosis into the dream's card."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or 1."""


def main(args: Args) -> None:
    """Print the diagnosis."""
    use_threads(args.threads)
    path = dreamenvs.locate(args.dream)
    checkpoint = dreamenvs.load(path)
    diagnosis = dreamenvs.doctor(
        checkpoint,
        episodes=None if args.data is None else held_out(args.data, checkpoint, args.examination.real_steps),
        random_play=args.random_play,
        agent=None if args.agent is None else Player(dreamenvs.load_agent(args.agent), seed=args.examination.seed),
        examination=args.examination,
    )
    print(diagnosis.text())
    if args.write:
        write_card(path, diagnosis)
        print(f"written into the card of {path}")


def held_out(directory: Path, checkpoint: Checkpoint, steps: int) -> Sequence[Episode]:
    """The first episodes of a replay that suits the dream, up to `steps` steps of them and at least one episode."""
    replay, spec = Replay.open(directory), checkpoint.model.spec
    found = (replay.spec.observation_shape, replay.spec.actions)
    if found != (spec.observation_shape, spec.actions):
        raise SystemExit(f"{directory} holds {found}, the dream takes {(spec.observation_shape, spec.actions)}")
    return replay[: max(1, int((replay.lengths.cumsum() <= steps).sum()))]


def write_card(path: Path, diagnosis: Diagnosis) -> None:
    """Put the diagnosis into the card of a dream, with the command that made it; its other files stay as they are."""
    files = read_artifact(path, LIMITS)
    card = parse_json(files["card.json"], "card.json") | {"doctor": diagnosis.to_json()}
    others = [command for command in card.pop("commands", []) if NAME not in command]
    card["commands"] = [*others, command_line("doctor")]
    write_artifact(path, files | {"card.json": dump_json(card), "card.md": card_markdown(card).encode()})


if __name__ == "__main__":
    main(tyro.cli(Args))
