"""The worlds of the papers and the ids of dreams: a family, a world and a version. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dreamenvs.families import FAMILIES

# fmt: off
ATARI = (
    "Alien", "Amidar", "Assault", "Asterix", "BankHeist", "BattleZone", "Boxing", "Breakout", "ChopperCommand",
    "CrazyClimber", "DemonAttack", "Freeway", "Frostbite", "Gopher", "Hero", "Jamesbond", "Kangaroo", "Krull",
    "KungFuMaster", "MsPacman", "Pong", "PrivateEye", "Qbert", "RoadRunner", "Seaquest", "UpNDown",
)
DMC = {
    "AcrobotSwingup": "acrobot-swingup", "CartpoleBalance": "cartpole-balance",
    "CartpoleBalanceSparse": "cartpole-balance_sparse", "CartpoleSwingup": "cartpole-swingup",
    "CartpoleSwingupSparse": "cartpole-swingup_sparse", "CheetahRun": "cheetah-run", "CupCatch": "ball_in_cup-catch",
    "FingerSpin": "finger-spin", "FingerTurnEasy": "finger-turn_easy", "FingerTurnHard": "finger-turn_hard",
    "HopperHop": "hopper-hop", "HopperStand": "hopper-stand", "PendulumSwingup": "pendulum-swingup",
    "QuadrupedRun": "quadruped-run", "QuadrupedWalk": "quadruped-walk", "ReacherEasy": "reacher-easy",
    "ReacherHard": "reacher-hard", "WalkerRun": "walker-run", "WalkerStand": "walker-stand",
    "WalkerWalk": "walker-walk",
}
MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
# fmt: on

WORLDS = {
    **{game: f"ALE/{game}-v5" for game in ATARI},
    **{world: f"dm_control/{task}-v0" for world, task in DMC.items()},
    "Crafter": "Crafter",
    **{f"MinAtar{game}": f"MinAtar/{game}-v1" for game in MINATAR},
}
"""World names in ids, and the real environments they are dreams of."""

_NAME = re.compile(r"(?P<family>[A-Za-z0-9]+)-(?P<world>[A-Za-z0-9_.]+)-v(?P<version>\d+)")


def is_name(name: str) -> bool:
    """Whether a dream can have this name: a family, a world and a version."""
    return _NAME.fullmatch(name) is not None


def world_name(env_id: str) -> str:
    """The name of a world in dream ids: Pong for ALE/Pong-v5."""
    known = {known_id: world for world, known_id in WORLDS.items()}
    return known.get(env_id) or re.sub(r"-v\d+$|[^A-Za-z0-9]", "", env_id.rpartition("/")[2])


def fitting_command(name: str) -> str | None:
    """The command that makes the dream of a known name, or None."""
    match = _NAME.fullmatch(name)
    if match is None or match["world"] not in WORLDS or match["version"] != "0":
        return None
    name = "STEPVQ" if match["family"] == "DreamEnv" else match["family"]
    if name not in FAMILIES:
        return None
    return f"dreamenvs fit {FAMILIES[name].spelling} --env {WORLDS[match['world']]}"


def names() -> Iterator[str]:
    """Every registered name, without the namespace."""
    for world in WORLDS:
        yield from (f"{family}-{world}-v0" for family in FAMILIES)
