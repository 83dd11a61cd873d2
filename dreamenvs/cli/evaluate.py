"""Measure a dream: how like the real world it is, and what policies earn in both.

    dreamenvs evaluate dreamenvs/STEPVQ-Pong-v0
    dreamenvs evaluate dreamenvs/STEPVQ-Pong-v0 --data data/PongHeldOut --train-steps 0
    dreamenvs evaluate dreamenvs/STEPVQ-Pong-v0 --steps 20_000 --video.count 256 --episodes 0

Prints tables and writes results.json, plots and a GIF of the dream beside reality. Of a dream of Crafter it tells the
Crafter score of the policies, too. With --update-card the figures go into the dream's own card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from tqdm import tqdm

import dreamenvs
from dreamenvs.checkpoints.card import card_markdown
from dreamenvs.checkpoints.world_model import LIMITS, Checkpoint
from dreamenvs.cli.collect import Ticking, named_policy
from dreamenvs.cli.command_line import command_line, parse
from dreamenvs.cli.progress import bar, ppo_progress
from dreamenvs.cli.threads import use_threads
from dreamenvs.data.collect import collect
from dreamenvs.data.episode import Episode
from dreamenvs.data.replay import Replay
from dreamenvs.evaluation.conservation import Conservation, conservation
from dreamenvs.evaluation.crafter_score import CRAFTER, CrafterScore, crafter_score
from dreamenvs.evaluation.fidelity import measure
from dreamenvs.evaluation.open_loop import imagine_beside
from dreamenvs.evaluation.pictures import side_by_side, write_gif
from dreamenvs.evaluation.plots import draw, draw_distances
from dreamenvs.evaluation.rollouts import measure_speed
from dreamenvs.evaluation.transfer import MAX_EPISODE_STEPS, Transfer, transfer
from dreamenvs.evaluation.video_report import VideoArgs, check_videos, measure_video
from dreamenvs.files.atomic_directory import dump_json, parse_json, read_artifact, write_artifact
from dreamenvs.studies.baselines import PPOConfig, learn
from dreamenvs.workflows.collecting import PolicyName, default_policy

SELF = ("dreamenvs evaluate ", "training/evaluate.py")
"""This command in cards, now and in version 0.1."""


@dataclass(frozen=True)
class EvaluateOptions:
    """What most people set."""

    dream: Annotated[str, tyro.conf.Positional]
    """An environment id or the path of a checkpoint directory."""
    data: Path | None = None
    """A replay of held-out episodes; by default fresh ones are played."""
    steps: int = 5_000
    """Real steps to play or, with --data, to take at most."""
    policy: PolicyName | None = None
    """Who plays them: by default the tracker in ALE/Pong, held random actions in dm_control, random ones elsewhere."""
    starts: int = 256
    """Open-loop dreams."""
    horizon: int = 15
    """Imagined steps in each of them."""
    video: VideoArgs = field(default_factory=VideoArgs)
    """Whole videos, dreamed from a few real frames."""
    episodes: int = 20
    """Episodes of each policy in the dream, and as many real ones; 0 leaves transfer out."""
    train_steps: int = 100_000
    """Imagined steps for PPO to learn from; 0 measures the random policy alone."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How it learns; at the temperature above, whatever this one says."""
    seed: int = 1_000_003
    """Of fresh episodes, dreams and PPO; far from those that data is collected with."""
    out: Path | None = None
    """Where the results go; by default runs/evaluate/<name>."""
    update_card: bool = False
    """Write fidelity, transfer and Crafter scores into the dream's card."""
    threads: int | None = None
    """CPU threads, by default those of OMP_NUM_THREADS, or the free cores."""


@dataclass(frozen=True, kw_only=True)
class EvaluateExpertOptions:
    """What the defaults are good for."""

    conservation_steps: int = 12_800
    """Imagined steps of random play in which it is counted what appears and what vanishes."""
    num_envs: int = 10
    """Episodes that are played side by side."""
    transfer_horizon: int = 500
    """Imagined steps of an episode."""
    max_episode_steps: int = MAX_EPISODE_STEPS
    """Steps after which a real episode is cut."""
    temperature: float = 0.5
    """Of these episodes, and of the dream in which PPO learns; fidelity is measured at 1."""
    deterministic: bool = False
    """Let the trained policy take its most likely action."""


@dataclass(frozen=True)
class Args(EvaluateExpertOptions, EvaluateOptions):
    """Measure a dream's fidelity, and the transfer of policies from it."""


def main(args: Args) -> None:
    use_threads(args.threads)
    path = dreamenvs.locate(args.dream)
    checkpoint = dreamenvs.load(path)
    out = args.out or Path("runs") / "evaluate" / path.name
    out.mkdir(parents=True, exist_ok=True)
    episodes = held_out(args, checkpoint)
    check_videos(args.video, episodes)
    with bar("fidelity", "step") as progress:
        fidelity = measure(
            checkpoint.model,
            episodes,
            np.random.default_rng(args.seed),
            starts=args.starts,
            horizon=args.horizon,
            progress=progress,
        )
    print(f"\n{fidelity.table()}\n")
    longest = max(episodes, key=len)
    beside = imagine_beside(checkpoint.model, longest, start=len(longest) // 4, seed=args.seed)
    write_gif(out / "beside.gif", side_by_side(*beside))
    conserved = measure_conservation(args, checkpoint, episodes)
    results: dict[str, Any] = {
        "dream": path.name,
        "command": command_line("evaluate"),
        "versions": {"dreamenvs": dreamenvs.__version__, "torch": torch.__version__.split("+")[0]},
        "fidelity": fidelity.to_json(),
        "conservation": conserved.to_json(),
        "speed": measure_speed(checkpoint.model, checkpoint.contexts, args.horizon),
    }
    if args.video.count:
        with bar("videos", "frame") as progress:
            videos = measure_video(args.video, checkpoint, episodes, args.seed, progress)
        print(f"\n{videos.table()}\n")
        results["video"] = videos.to_json()
        draw_distances(out / "video.png", videos)
    policies = choose_policies(args, checkpoint) if args.episodes else {}
    transfers = measure_transfer(args, checkpoint, policies)
    scores = measure_crafter(args, checkpoint, policies)
    results["transfer"] = {name: result.to_json() for name, result in transfers.items()}
    if scores:
        results["crafter"] = {name: score.to_json() for name, score in scores.items()}
    (out / "results.json").write_bytes(dump_json(results))
    draw(out, fidelity, transfers)
    if args.update_card:
        update_card(path, results)
    print(f"results, plots and a GIF are in {out}")


def measure_conservation(args: Args, checkpoint: Checkpoint, episodes: Sequence[Episode]) -> Conservation:
    """What the dream loses or doubles under random actions, and what random play comes to."""
    with bar("conservation", "step") as progress:
        result = conservation(checkpoint, episodes, steps=args.conservation_steps, seed=args.seed, progress=progress)
    print(f"\n{result.table()}\n")
    return result


def held_out(args: Args, checkpoint: Checkpoint) -> Sequence[Episode]:
    """Episodes that the dream was not fitted on."""
    if args.data is not None:
        return from_replay(args.data, checkpoint, args.steps)
    source = checkpoint.model.spec.source
    if source is None:
        raise SystemExit("the dream does not say which real environment it is of; give a replay with --data")
    name = args.policy or default_policy(source.id)
    env = dreamenvs.make_real(checkpoint)
    policy = named_policy(name, source.id, env.action_space, args.seed, rows=env)
    with tqdm(total=args.steps, desc=f"{name} episodes", unit="step", mininterval=1.0) as progress:
        episodes = list(collect(env, Ticking(policy, progress), args.steps, args.seed))
    env.close()
    return episodes


def from_replay(directory: Path, checkpoint: Checkpoint, steps: int) -> Sequence[Episode]:
    """The first episodes of a replay, at least one and up to `steps` steps of them."""
    replay, spec = Replay.open(directory), checkpoint.model.spec
    found = (replay.spec.observation_shape, replay.spec.actions)
    if found != (spec.observation_shape, spec.actions):
        raise SystemExit(f"{directory} holds {found}, the dream takes {(spec.observation_shape, spec.actions)}")
    return replay[: max(1, int(np.searchsorted(replay.lengths.cumsum(), steps, side="right")))]


def choose_policies(args: Args, checkpoint: Checkpoint) -> dict[str, Any]:
    """The random policy and, if asked for, PPO that learned in the dream."""
    policies: dict[str, Any] = {"random": "random"}
    if args.train_steps:
        config = replace(args.ppo, temperature=args.temperature)
        with ppo_progress("PPO in the dream", args.train_steps) as progress:
            policies["trained"] = learn(checkpoint, args.train_steps, args.seed, config, progress=progress)
    return policies


def measure_transfer(args: Args, checkpoint: Checkpoint, policies: dict[str, Any]) -> dict[str, Transfer]:
    """What policies earn in the dream and for real."""
    results = {}
    for name, policy in policies.items():
        with bar(f"transfer, {name}", "episode") as progress:
            results[name] = transfer(
                policy,
                checkpoint,
                obs_type="latent",
                episodes=args.episodes,
                num_envs=args.num_envs,
                seed=args.seed,
                deterministic=args.deterministic and name == "trained",
                horizon=args.transfer_horizon,
                temperature=args.temperature,
                max_episode_steps=args.max_episode_steps,
                progress=progress,
            )
        print(f"\n{name} policy\n{results[name].table()}\n")
    return results


def measure_crafter(args: Args, checkpoint: Checkpoint, policies: dict[str, Any]) -> dict[str, CrafterScore]:
    """What policies reach in the real Crafter; nothing where the dream is of another world."""
    source = checkpoint.model.spec.source
    if source is None or source.id != CRAFTER:
        return {}
    results = {}
    for name, policy in policies.items():
        with bar(f"Crafter score, {name}", "episode") as progress:
            results[name] = crafter_score(
                policy,
                checkpoint,
                args.episodes,
                args.seed,
                obs_type="latent",
                num_envs=args.num_envs,
                deterministic=args.deterministic and name == "trained",
                progress=progress,
            )
        print(f"\n{name} policy\n{results[name].table()}\n")
    return results


def update_card(path: Path, results: dict[str, Any]) -> None:
    """Write the figures into the card of a dream, with the command that made them; its other files stay as they are."""
    files = read_artifact(path, LIMITS)
    card = parse_json(files["card.json"], "card.json") | {"fidelity": results["fidelity"]}
    card |= {"conservation": results["conservation"]}
    card |= {"video": results["video"]} if "video" in results else {}
    commands = card.pop("commands", [])
    if results["transfer"]:
        card["transfer"] = results["transfer"]
        card |= {"crafter": results["crafter"]} if "crafter" in results else {}
        commands = [command for command in commands if not any(name in command for name in SELF)]  # all figures are new
    card["commands"] = [*commands, results["command"]]
    write_artifact(path, files | {"card.json": dump_json(card), "card.md": card_markdown(card).encode()})


if __name__ == "__main__":
    main(parse(Args))
