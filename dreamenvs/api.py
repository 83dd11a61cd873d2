"""What `dreamenvs.fit`, `train`, `evaluate` and their like do, a few lines each; `dreamenvs/__init__.py` shows them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from dreamenvs.agents.defaults import AgentRecipe, Size, default_recipe
from dreamenvs.agents.player import Player
from dreamenvs.agents.pqn import learn_in_dream
from dreamenvs.agents.protocol import Agent
from dreamenvs.checkpoints.shared_models import CheckpointLike, load
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.data.collect import Policy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.data.segments import episode_lengths
from dreamenvs.dream import ObservationType
from dreamenvs.envs.registration import register_names
from dreamenvs.evaluation import transfer as transfers
from dreamenvs.evaluation.diagnosis import Diagnosis
from dreamenvs.evaluation.doctor import Examination, examine
from dreamenvs.evaluation.episodes import PolicyLike
from dreamenvs.evaluation.fidelity import Fidelity, measure
from dreamenvs.evaluation.results import Progress
from dreamenvs.families import BY_SPELLING, FAMILIES, FamilyEntry, add
from dreamenvs.models import FAMILIES as MODELS
from dreamenvs.models import Family
from dreamenvs.presets.choice import choose_preset
from dreamenvs.presets.variants import with_updates
from dreamenvs.presets.world_models import model_config
from dreamenvs.progress_line import ProgressLine
from dreamenvs.types import DiscreteActions
from dreamenvs.workflows.collecting import build_policy, default_policy
from dreamenvs.workflows.experience import Source, open_data
from dreamenvs.workflows.fitting import Contexts, FitData, FitRecipe, finish_fit, new_fit, split
from dreamenvs.workflows.training import adapt_recipe, new_trainer, updates_for
from dreamenvs.worlds.real import make_real

AgentName = Literal["actor-critic", "pqn"]
HELD_OUT_SEED = 1_000_003
"""Of fresh episodes, far from the seeds that data is collected with."""


def fit(
    source: Source,
    family: str = "grid",
    steps: int = 20_000,
    *,
    preset: str | None = None,
    seed: int = 0,
    size: int | None = None,
    update_share: float = 1.0,
    policy: Policy | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> Checkpoint:
    """Fit a world model on real experience; the dream it returns can be trained in at once.

    >>> import dreamenvs
    >>> dream = dreamenvs.fit("MinAtar/Breakout-v1", steps=400, update_share=0.002, progress=False)
    >>> dream.family, dream.model.spec.observation_shape, dream.card["data"]["real_steps"]
    ('GRID', (3, 40, 40), 400)

    Args:
        source: A Gymnasium id, an environment, a function that makes one, a replay or its directory, the id of a local
            Minari data set, or a list of episodes. Small images are kept as they are (32 × 32 stays 32 × 32), and other
            environments are seen through their pictures.
        family: Which family of world models: grid, stepvq, storm, iris, rem, …; see `dreamenvs list`.
        steps: Real steps to play, where an environment is given.
        preset: The size of the model; by default a small one that suits the frames.
        seed: Of the environment, the policy, weights, batches and contexts; the same seed gives the same dream.
        size: The side of the pictures that the model sees; by default the environment's own, or 64.
        update_share: How many of the preset's updates are made; 0.1 makes a dream to try things out with.
        policy: Who plays, with Stable-Baselines3's `predict`; by default random actions, or the world's own player.
        out: A directory to save the dream in; `dream.save` does the same later.
        progress: Whether to print how far it is, or a function that is called with the updates done and in total.
    """
    name = family_name(family)
    if not update_share > 0:
        raise ValueError(f"update_share is above 0, not {update_share}")
    played = ProgressLine("playing", "steps") if progress is True else None
    with open_data(source, steps, seed=seed, size=size, policy=policy, progress=played) as data:
        frame = data.spec.observation_shape
        chosen = choose_preset(name, data.episodes) if preset is None else preset
        _check_preset(name, chosen)
        config = with_updates(model_config(name, chosen, frame), {}, update_share)
        dream = _fit(FitRecipe(family=name, config=config, seed=seed), data, chosen, progress)
    return dream if out is None else dream._replace(path=dream.save(out))


def _fit(recipe: FitRecipe, data: FitData, preset: str, progress: bool | Progress) -> Checkpoint:
    parts = split(data.episodes, recipe.seed)
    fitting = new_fit(recipe, data.spec, parts.fitted)
    total = sum(stage.updates for stage in fitting.stages)
    report = _progress(progress, f"fitting {recipe.family}", "updates")
    for done, _ in enumerate(fitting.run(), 1):
        if report is not None:
            report(done, total)
    length = min(Contexts().length, int(episode_lengths(parts.fitted).max()))
    measured = ProgressLine("measuring", "steps") if progress is True else None
    # The version is asked for here, since the package imports this module late.
    from dreamenvs import __version__

    versions = {"dreamenvs": __version__, "torch": torch.__version__.split("+")[0]}
    extra: dict[str, Any] = {"preset": preset, "versions": versions}
    return finish_fit(fitting, recipe, data, parts, Contexts(length=length), extra=extra, progress=measured)[0]


def train(
    dream: CheckpointLike,
    steps: int = 200_000,
    *,
    agent: AgentRecipe | AgentName | None = None,
    size: Size = "small",
    limit: int = 100,
    seed: int = 0,
    progress: bool | Progress = True,
) -> Player:
    """Train an agent inside a dream, with no real step; what it returns has Stable-Baselines3's `predict`.

    >>> import dreamenvs
    >>> player = dreamenvs.train("dreamenvs/STEPVQ-MinAtarBreakout-v0", steps=2048, progress=False)
    >>> env = dreamenvs.make_real("dreamenvs/STEPVQ-MinAtarBreakout-v0", obs_type=player.obs_type)
    >>> action, state = player.predict(env.reset(seed=0)[0])

    Args:
        dream: What `fit` or `load` returned, an environment id, or the path of a checkpoint directory.
        steps: Imagined steps to learn from.
        agent: Which agent learns: `"actor-critic"`, as the dream's family has it; `"pqn"`, parallel Q-learning, for
            discrete actions; or a recipe of your own. By default PQN in dreams of GRID, as it gets more out of them,
            and the actor-critic in others.
        size: Of the family's actor-critic: small for a few cores, or the paper's.
        limit: Imagined steps after which a dream is left: in long ones an agent learns to live off the model's errors.
        seed: Of weights and dreams.
        progress: Whether to print how far it is, or a function that is called with the steps done and in total.
    """
    opened = dream if isinstance(dream, Checkpoint) else load(dream)
    report = _progress(progress, f"learning in {opened.path.name}", "imagined steps")
    if agent is None and opened.family == "GRID" and isinstance(opened.model.spec.actions, DiscreteActions):
        agent = "pqn"
    if agent == "pqn":
        return learn_in_dream(opened, steps, seed=seed, horizon=limit, progress=report)
    if isinstance(agent, str) and agent != "actor-critic":
        raise ValueError(f"there are the agents {', '.join(get_args(AgentName))}, not {agent!r}")
    recipe = adapt_recipe(agent if isinstance(agent, AgentRecipe) else default_recipe(opened.family, size), steps)
    trainer = new_trainer(opened, recipe, seed=seed, limit=limit)
    updates, each = updates_for(steps, recipe), recipe.learning.rows * recipe.learning.horizon
    for done in range(1, updates + 1):
        trainer.advance()
        if report is not None:
            report(done * each, updates * each)
    learned: Any = trainer.learner.agent
    return Player(learned.eval())


def evaluate(
    dream: CheckpointLike,
    *,
    episodes: Sequence[Episode] | None = None,
    steps: int = 5_000,
    starts: int = 256,
    horizon: int = 15,
    seed: int = HELD_OUT_SEED,
    progress: bool | Progress = True,
) -> Fidelity:
    """Compare a dream with real episodes: pixels, tokens, rewards and ends, by the number of imagined steps.

    >>> import dreamenvs
    >>> dream = "dreamenvs/STEPVQ-MinAtarBreakout-v0"
    >>> fidelity = dreamenvs.evaluate(dream, steps=300, starts=8, horizon=3, progress=False)
    >>> fidelity.psnr > 20, "PSNR" in fidelity.table()
    (True, True)

    Args:
        dream: What `fit` or `load` returned, an environment id, or the path of a checkpoint directory.
        episodes: Real episodes that it was not fitted on; by default new ones are played.
        steps: Real steps to play for them.
        starts: Open-loop dreams.
        horizon: Imagined steps in each of them.
        seed: Of the episodes that are played, and of the dreams.
        progress: Whether to print how far it is, or a function that is called with the steps done and in total.
    """
    opened = dream if isinstance(dream, Checkpoint) else load(dream)
    if episodes is None:
        env = make_real(opened)
        source = opened.model.spec.source
        env_id = source.id if source is not None else ""
        player = build_policy(default_policy(env_id), env_id, env.action_space, seed, rows=env)
        episodes = list(collect(env, player, steps, seed))
        env.close()
    report = _progress(progress, f"measuring {opened.path.name}", "steps")
    rng = np.random.default_rng(seed)
    return measure(opened.model, episodes, rng, starts=starts, horizon=horizon, progress=report)


def doctor(
    dream: CheckpointLike,
    *,
    episodes: Sequence[Episode] | None = None,
    random_play: bool = True,
    agent: Player | None = None,
    examination: Examination | None = None,
    progress: bool = True,
    **settings: Any,
) -> Diagnosis:
    """Say whether a dream is worth training in, and if not, why and what to try.

    The tier is good, demo or broken. In a good dream a policy that learned only inside earns for real at least 80 % of
    what it earns in the dream, and clearly more than random play; in a broken one a policy would exploit the errors.

    >>> import dreamenvs
    >>> dream = "dreamenvs/STEPVQ-MinAtarBreakout-v0"
    >>> little = {"real_steps": 200, "dream_steps": 640, "horizon": 10, "learner_steps": 0}
    >>> diagnosis = dreamenvs.doctor(dream, progress=False, **little)
    >>> diagnosis.tier in ("demo", "broken"), diagnosis.text().startswith("tier: ")
    (True, True)

    Args:
        dream: What `fit` or `load` returned, an environment id, or the path of a checkpoint directory.
        episodes: Real episodes that it was not fitted on; by default random actions are played for real.
        random_play: Whether uniformly random actions made these episodes.
        agent: What learned in this dream; by default PQN learns in it, if actions are discrete.
        examination: How thorough it is; by default up to two minutes on one core for a dream of MinAtar.
        progress: Whether to print how far it is.
        **settings: Fields of the examination, such as `learner_steps` or `horizon`.
    """
    opened = dream if isinstance(dream, Checkpoint) else load(dream)
    return examine(
        opened,
        episodes,
        random_play=random_play,
        given=agent,
        examination=replace(examination or Examination(), **settings),
        report=lambda name: ProgressLine(name, "steps") if progress else None,
    )


def transfer(
    agent: PolicyLike | Player | Agent[Any],
    dream: CheckpointLike,
    *,
    episodes: int = 100,
    obs_type: ObservationType | None = None,
    deterministic: bool = False,
    horizon: int = 500,
    max_episode_steps: int = transfers.MAX_EPISODE_STEPS,
    num_envs: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool | Progress = True,
) -> transfers.Transfer:
    """What a policy earns in the dream, what it earns in the real environment, and the gap, with intervals.

    >>> import dreamenvs
    >>> dream = "dreamenvs/STEPVQ-MinAtarBreakout-v0"
    >>> result = dreamenvs.transfer("random", dream, episodes=4, horizon=20, progress=False)
    >>> result.real.episode_return.mean >= 0
    True

    Args:
        agent: What `train` or `load_agent` returned, anything with Stable-Baselines3's `predict`, or `"random"`.
        dream: What `fit` or `load` returned, an environment id, or the path of a checkpoint directory.
        episodes: How many are played in the dream, and as many in the real environment.
        obs_type: What the policy sees; an agent of this package says it itself, others see `"rgb"` by default.
        deterministic: Whether the policy takes its most likely action.
        horizon: Steps of a dream.
        max_episode_steps: Steps after which a real episode is cut.
        num_envs: How many are played side by side.
        temperature: Of the dreamed tokens.
        seed: Of both environments.
        progress: Whether to print how far it is, or a function that is called with the episodes done and in total.
    """
    player: Any = Player(agent) if isinstance(agent, torch.nn.Module) else agent  # type: ignore[arg-type]
    seen: ObservationType = obs_type or getattr(player, "obs_type", None) or "rgb"
    return transfers.transfer(
        player,
        dream,
        obs_type=seen,
        episodes=episodes,
        num_envs=num_envs,
        seed=seed,
        deterministic=deterministic,
        horizon=horizon,
        temperature=temperature,
        max_episode_steps=max_episode_steps,
        progress=_progress(progress, "playing", "episodes"),
    )


def register_family(family: Family, *, like: str = "stepvq", agent: AgentRecipe | None = None) -> str:
    """Make a family of one's own known to this process, and return its name for `fit`.

    Its checkpoints load, its ids work, and `fit` takes it, with the config `family.paper`. A process that loads its
    dreams registers it, too: nothing that a file names is ever imported.

    >>> import dreamenvs
    >>> from dreamenvs.models.step_vq import STEP_VQ, StepVQConfig
    >>> mine = dreamenvs.Family(name="Mine", config=StepVQConfig, paper=StepVQConfig(), build=STEP_VQ.build)
    >>> dreamenvs.register_family(mine)
    'mine'

    Args:
        family: Its name, config class, default config, and how a model is built. The name has letters and digits.
        like: The family of this package whose agent and online loop it takes.
        agent: The agent that learns in its dreams by default, small or not.
    """
    base = FAMILIES[family_name(like)]
    spelling = family.name.lower()
    if not family.name.isascii() or not family.name.isalnum():
        raise ValueError(f"the name of a family has letters and digits only, since it begins ids: {family.name!r}")
    known = MODELS.get(family.name)
    if (known is None and spelling in BY_SPELLING) or (known is not None and known.name in _BUILT_IN):
        raise ValueError(f"{family.name!r} is a family of dreamenvs; choose another name")
    entry = FamilyEntry(
        name=family.name,
        spelling=spelling,
        model=family,
        small=_as_it_is,
        paper_agent=base.paper_agent if agent is None else agent,
        small_agent=base.small_agent if agent is None else agent,
        paper_loop=base.paper_loop,
        presets=("small", "paper"),
        context=base.context,
        horizon=base.horizon,
    )
    add(entry)
    MODELS[family.name] = family
    register_names(family.name)
    return spelling


def family_name(family: str) -> str:
    """A family's name, as ids have it, from its spelling on command lines or from the name itself."""
    name = BY_SPELLING.get(family, family)
    if name not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose from {', '.join(BY_SPELLING)}")
    return name


def _as_it_is(paper: Any, preset: str, frame: tuple[int, ...]) -> Any:
    return paper


def _check_preset(family: str, preset: str) -> None:
    presets = FAMILIES[family].presets
    if preset not in presets:
        raise ValueError(f"{family} has the presets {', '.join(presets)}, not {preset!r}")


def _progress(progress: bool | Progress, stage: str, unit: str) -> Progress | None:
    if isinstance(progress, bool):
        return ProgressLine(stage, unit) if progress else None
    return progress


_BUILT_IN = frozenset(FAMILIES)
