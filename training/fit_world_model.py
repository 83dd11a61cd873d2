"""Fit a world model of a real environment and save it as a dream.

    python training/fit_world_model.py stepvq --env ALE/Pong-v5            # collects first, where there is no data
    python training/fit_world_model.py stepvq --data data/Pong --preset small

With the `small` preset the tokenizer first learns to give frames back; then, with every frame as tokens, the dynamics
learn what comes next. With `paper` everything is fitted at once, as the model's stages say. Held-out episodes tell how
good the dream is, and the figures go into its card.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from collect import Args as CollectArgs
from collect import main as collect_episodes
from collect import world_name
from presets import model_config
from safetensors.torch import load_file, save_file
from tqdm import tqdm

import dreamenvs
from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import sample_segments, start_contexts
from dreamenvs.data.storage import load_episodes, load_notes, load_spec
from dreamenvs.envs.catalog import FAMILIES as SPELLINGS
from dreamenvs.envs.library import user_directory
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.fitting.loop import Metrics, optimize
from dreamenvs.models import FAMILIES
from dreamenvs.protocols import ParameterGroup, Posterior
from dreamenvs.types import LossTerms, Segment, WorldSpec

BY_SPELLING = {spelling: name for name, spelling in SPELLINGS.items() if name in FAMILIES}


@dataclass(frozen=True)
class Args:
    """Fit a world model of a real environment and save it as a dream."""

    family: Annotated[str, tyro.conf.Positional] = "stepvq"
    """Which family: stepvq, stepvqt, cb or cbt."""
    env: str = "ALE/Pong-v5"
    """The real environment."""
    data: Path | None = None
    """Episodes from training/collect.py; by default data/<World>, where they are collected if there are none."""
    collect_steps: int = 60_000
    """Real steps to collect."""
    preset: str = "small"
    """Model sizes: small or paper."""
    tokenizer_updates: int = 5000
    """Batches of 32 frames for the tokenizer."""
    tokenizer: Path | None = None
    """Weights of a fitted tokenizer, to fit the dynamics alone."""
    dynamics_updates: int = 3000
    """Batches of 32 segments of 64 steps for the dynamics."""
    joint_updates: int = 10_000
    """Batches of 16 segments of 64 steps for all at once, with the paper preset."""
    contexts: int = 24
    """Start contexts to put into the checkpoint."""
    context_length: int = 4
    """Frames in a start context."""
    out: Path | None = None
    """The checkpoint's directory; by default in the user's data directory, where gym.make finds it."""
    seed: int = 0
    """Of weights, batches and contexts."""
    threads: int = 2
    """CPU threads."""


def main(args: Args) -> None:
    if args.family not in BY_SPELLING:
        raise SystemExit(f"unknown family {args.family!r}: choose from {', '.join(BY_SPELLING)}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    family = FAMILIES[BY_SPELLING[args.family]]
    data = args.data or Path("data") / world_name(args.env)
    if not (data / "index.json").exists():
        policy = "tracker" if args.env.startswith("ALE/Pong-") else "random"
        print(f"collecting {args.collect_steps:,} steps of {args.env} into {data}")
        collect_episodes(
            CollectArgs(env=args.env, out=data, steps=args.collect_steps, policy=policy, seed=args.seed)  # type: ignore[arg-type]
        )
    spec, episodes = load_spec(data), load_episodes(data)
    held_out, fitted = split(episodes, rng)
    print(f"{len(fitted)} episodes to fit, {sum(map(len, fitted)):,} steps; {len(held_out)} held out")
    config = model_config(family.name, args.preset)
    model = family.build(config, spec)
    print(f"{family.name} ({args.preset}): {sum(p.numel() for p in model.parameters()):,} parameters")
    if args.preset == "paper":
        fit_jointly(model.train(), fitted, args, rng)
    else:
        fit_in_turn(model.train(), fitted, args, rng, Path("runs") / f"{family.name}-{spec.world}")
    model.eval().half().float()  # as it will be saved, so that the figures are those of the saved dream

    fidelity = measure(model, held_out, np.random.default_rng(args.seed))
    print(fidelity)
    card = make_card(args, data, spec, (held_out, fitted), fidelity._asdict())
    out = args.out or user_directory() / f"{family.name}-{spec.world}-v0"
    contexts = start_contexts(fitted, args.contexts, args.context_length, rng)
    dreamenvs.save(out, model, contexts, family=family.name, config=config, card=card, weights_dtype="float16")
    print(f"saved {out}\ngymnasium.make({dreamenvs.register(out)!r}) dreams it")


def split(episodes: Sequence[Episode], rng: np.random.Generator) -> tuple[list[Episode], list[Episode]]:
    """A tenth of the episodes, at least one, held out."""
    order = rng.permutation(len(episodes))
    count = max(1, len(episodes) // 10)
    return [episodes[i] for i in order[:count]], [episodes[i] for i in order[count:]]


def fit_jointly(model: Any, episodes: Sequence[Episode], args: Args, rng: np.random.Generator) -> None:
    """Every stage that the model declares, on frames."""
    for stage in model.stages():
        batches = (sample_segments(episodes, 16, 64, rng) for _ in range(args.joint_updates))
        steps = optimize(stage.name, stage.loss, stage.groups, batches, clip=stage.clip, warmup=1000)
        run(stage.name, steps, args.joint_updates)


def fit_in_turn(model: Any, episodes: Sequence[Episode], args: Args, rng: np.random.Generator, directory: Path) -> None:
    """The tokenizer, which is kept in the run's directory, and then the dynamics."""
    if args.tokenizer is not None:
        model.tokenizer.load_state_dict(load_file(args.tokenizer))
    else:
        fit_tokenizer(model, episodes, args, rng)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(model.tokenizer.state_dict(), directory / "tokenizer.safetensors")
    model.tokenizer.eval()
    fit_dynamics(model, tokenize(model, episodes), args, rng)


def fit_tokenizer(model: Any, episodes: Sequence[Episode], args: Args, rng: np.random.Generator) -> None:
    """Frames to tokens and back."""
    frames = np.concatenate([episode.observations for episode in episodes])

    def loss(batch: torch.Tensor) -> LossTerms:
        terms: LossTerms = model.autoencoder_loss(model.tokenizer.posterior(batch), batch)
        return terms

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(args.tokenizer_updates):
            chosen = rng.integers(len(frames), size=32)
            yield torch.from_numpy(frames[chosen]).permute(0, 3, 1, 2).contiguous()

    group = ParameterGroup(parameters=tuple(model.tokenizer.parameters()), learning_rate=1e-3)
    steps = optimize("tokenizer", loss, (group,), batches(), clip=100.0, updates=args.tokenizer_updates)
    run("tokenizer", steps, args.tokenizer_updates)


@torch.no_grad()
def tokenize(model: Any, episodes: Iterable[Episode]) -> list[Episode]:
    """The same episodes with tokens (T + 1, 1, 1, K) in the place of pixels: each frame is encoded once."""
    coded = []
    for episode in tqdm(list(episodes), desc="tokens", unit="episode"):
        frames = torch.from_numpy(episode.observations).permute(0, 3, 1, 2)
        tokens = torch.cat([model.tokenizer.encode(part) for part in frames.split(256)])
        coded.append(
            Episode(
                observations=tokens[:, None, None].to(torch.uint8).numpy(),
                actions=episode.actions,
                rewards=episode.rewards,
                terminated=episode.terminated,
                truncated=episode.truncated,
            )
        )
    return coded


def fit_dynamics(model: Any, coded: Sequence[Episode], args: Args, rng: np.random.Generator) -> None:
    """Next tokens, reward and termination, on tokens alone."""
    known = {id(parameter) for parameter in model.tokenizer.parameters()}
    parameters = tuple(parameter for parameter in model.parameters() if id(parameter) not in known)

    def loss(batch: Segment) -> LossTerms:
        tokens = batch.observations.flatten(0, 1).flatten(1).long()
        latent = model.tokenizer.embed(tokens)
        # Equation 6 asks for the tokens alone: a posterior that is certain of them.
        posterior = Posterior(tokens, torch.zeros(len(tokens), 0), latent, torch.zeros(len(tokens)))
        terms: LossTerms = model.dynamics_loss(posterior, batch)
        return terms

    def batches() -> Iterator[Segment]:
        for _ in range(args.dynamics_updates):
            yield sample_segments(coded, 32, 64, rng)

    group = ParameterGroup(parameters=parameters, learning_rate=1e-3, weight_decay=1e-3)
    steps = optimize("dynamics", loss, (group,), batches(), clip=100.0, updates=args.dynamics_updates)
    run("dynamics", steps, args.dynamics_updates)


def run(name: str, steps: Iterator[Metrics], updates: int) -> None:
    """Work through the updates, with a bar that shows the averaged losses and the time that is left."""
    averages: dict[str, float] = {}
    with tqdm(total=updates, desc=name, unit="update", mininterval=5) as bar:
        for metrics in steps:
            for part, value in metrics.parts.items():
                averages[part] = averages.get(part, value) + 0.02 * (value - averages.get(part, value))
            bar.set_postfix({part: f"{value:.3g}" for part, value in averages.items()}, refresh=False)
            bar.update()


def make_card(
    args: Args,
    data: Path,
    spec: WorldSpec,
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    fidelity: dict[str, Any],
) -> dict[str, Any]:
    """What the checkpoint says of itself."""
    held_out, fitted = episodes
    source = spec.source.id if spec.source is not None else "unknown"
    return {
        "title": f"{BY_SPELLING[args.family]} dream of {spec.world}",
        "summary": f"Fitted with the {args.preset} preset by training/fit_world_model.py.",
        "data": dict(load_notes(data))
        | {"env": source, "episodes": len(fitted), "fitted_steps": sum(map(len, fitted))}
        | {"held_out_episodes": len(held_out), "held_out_steps": sum(map(len, held_out))},
        "fitting": {
            "preset": args.preset,
            "seed": args.seed,
            "tokenizer_updates": args.tokenizer_updates,
            "dynamics_updates": args.dynamics_updates,
        },
        "fidelity": fidelity,
        "versions": {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]},
        "commands": [f"python training/fit_world_model.py {' '.join(sys.argv[1:])}"],
    }


if __name__ == "__main__":
    main(tyro.cli(Args))
