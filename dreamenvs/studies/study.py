"""A study: families × worlds × variants × seeds, each of them a run of commands with its own directory.

A study file is data. It names scripts from a fixed list and the words that they are given, and neither goes through a
shell; what stands in braces is replaced by name, and nothing is evaluated.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from dreamenvs.config import ConfigError, from_json
from dreamenvs.files.atomic_directory import MAX_JSON, ArtifactError, parse_json

SCRIPTS: Mapping[str, str | Path] = {
    "collect.py": "dreamenvs.cli.collect",
    "evaluate.py": "dreamenvs.cli.evaluate",
    "fit_world_model.py": "dreamenvs.cli.fit",
    "rounds.py": "dreamenvs.cli.rounds",
    "train_agent.py": "dreamenvs.cli.train",
    "train_online.py": "dreamenvs.cli.online",
}
"""What a study may run, by the names in study files: modules of the package, and files in tests. Never a study, nor
what runs other files: a study file could then run anything."""
TYPED = {
    "collect.py": ("dreamenvs", "collect"),
    "evaluate.py": ("dreamenvs", "evaluate"),
    "fit_world_model.py": ("dreamenvs", "fit"),
    "rounds.py": ("dreamenvs", "rounds"),
    "train_agent.py": ("dreamenvs", "train"),
    "train_online.py": ("dreamenvs", "online"),
}
"""The same as one types them."""
USUAL = (
    "train_online.py {family} --env {env} --preset small --seed {seed} --threads {threads} --name {name} "
    "--out {directory}/dream {options}"
)
PLACEHOLDERS = ("family", "env", "seed", "name", "directory", "threads")
OPTIONS = "{options}"
_BRACES = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says of two methods, to be held against the runs."""

    text: str
    first: str
    """A method: a family, or a family and a variant with a space between them."""
    second: str
    measure: str = "return"
    """What the first is said to have more of: the return, or one of `measures`."""
    less: bool = False
    """Whether it is said to have less of it."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Where the figures of a report stand in the results file of a run, as keys with points between them."""

    score: str = "final.return.mean"
    """The return of a run."""
    curve: str | None = "curve"
    """A list of objects, the points of the learning curve; null where runs have none."""
    curve_steps: str = "step"
    """In a point: the real steps so far."""
    curve_score: str = "mean"
    """In a point: the return after so many."""
    measures: Mapping[str, str] = field(default_factory=dict)
    """Other numbers of a run, by the names that the report gives them."""
    claims: tuple[Claim, ...] = ()
    """To be held against the runs."""

    def __post_init__(self) -> None:
        for claim in self.claims:
            if claim.measure != "return" and claim.measure not in self.measures:
                known = ", ".join(["return", *self.measures])
                raise ValueError(f"the claim {claim.text!r} is about {claim.measure!r}; there are {known}")


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study file holds."""

    name: str
    families: tuple[str, ...]
    """As the scripts spell them: stepvq, iris, …"""
    worlds: tuple[str, ...]
    """Ids of real environments."""
    seeds: tuple[int, ...] = (0,)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    """Names, and the extra words that take the place of {options}; the name may be empty."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the names of variants: the families that have them, where it is not all."""
    family_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the names of families: words that come before those of the variant."""
    commands: tuple[tuple[str, ...], ...] = (tuple(USUAL.split()),)
    """One after another, the name of a command in `SCRIPTS` and its words, which may hold {family}, {env}, {seed},
    {threads}, and {directory} or {name}, which is runs/{name}; {options} is a word of its own. They leave
    {directory}/results.json."""
    threads: int = 1
    """Of a run."""
    retries: int = 2
    """How often a run that failed is tried again."""
    minutes: float | None = None
    """How long one attempt may take."""
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; it is made of letters, digits, points, dashes and underscores")
        for kind, values in (("families", self.families), ("worlds", self.worlds), ("seeds", self.seeds)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{kind} is {list(values)}; there must be one at least, and none twice")
        for word in (*self.families, *self.worlds):
            if not re.match(r"[A-Za-z0-9][^{}]*$", word):
                raise ValueError(f"{word!r} is no family or world; these begin with a letter, and have no braces")
        if not self.variants or any(name and not _NAME.fullmatch(name) for name in self.variants):
            raise ValueError(f"variants are named {list(self.variants)}; name one at least, with letters and digits")
        for variant, families in self.only.items():
            if variant not in self.variants or not families or not set(families) <= set(self.families):
                known = f"variants are {list(self.variants)}, families {list(self.families)}"
                raise ValueError(f"only has {list(families)} for {variant!r}; {known}")
        if strange := set(self.family_options) - set(self.families):
            raise ValueError(f"family_options has {sorted(strange)}; families are {list(self.families)}")
        if left := [family for family in self.families if not any(self._has(family, v) for v in self.variants)]:
            raise ValueError(f"{left[0]!r} has no variant left: every one is for other families only")
        for claim in self.report.claims:
            if unknown := {claim.first, claim.second} - (methods := set(self.methods())):
                raise ValueError(f"the claim {claim.text!r} names {sorted(unknown)}; methods are {sorted(methods)}")
        if self.threads < 1 or self.retries < 0 or (self.minutes is not None and self.minutes <= 0):
            raise ValueError("threads must be 1 or more, retries 0 or more, and minutes, where given, above 0")
        self._check_commands()

    def _check_commands(self) -> None:
        if not self.commands or not all(self.commands):
            raise ValueError("commands is empty; each is the name of a script and its words")
        options = (*self.variants.values(), *self.family_options.values())
        words = [word for words in (*self.commands, *options) for word in words]
        for word in words:
            unknown = [name for name in _BRACES.findall(word) if name not in PLACEHOLDERS and word != OPTIONS]
            if unknown:
                known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                raise ValueError(f"the word {word!r} has {{{unknown[0]}}}; there are {known}, and {OPTIONS} by itself")
        if OPTIONS not in words and any(options):
            raise ValueError(f"there are variants or families with options, but no command has the word {OPTIONS}")
        if not any("{directory}" in word or "{name}" in word for word in words):
            raise ValueError("no command has {directory} or {name}: a run must leave {directory}/results.json")

    def _has(self, family: str, variant: str) -> bool:
        return family in self.only.get(variant, self.families)

    def methods(self) -> list[str]:
        """What is compared."""
        return [method_name(f, v) for f, v in product(self.families, self.variants) if self._has(f, v)]

    def runs(self) -> Iterator[Run]:
        """Every run; the seeds go round last, so that a first answer about every family is there early."""
        order = product(self.seeds, self.families, self.worlds, self.variants)
        return (
            self._run(family, env, variant, seed) for seed, family, env, variant in order if self._has(family, variant)
        )

    def _run(self, family: str, env: str, variant: str, seed: int) -> Run:
        values = {"family": family, "env": env, "seed": str(seed), "threads": str(self.threads)}
        options = (*self.family_options.get(family, ()), *self.variants[variant])
        words = (
            [w for word in command for w in (options if word == OPTIONS else (word,))] for command in self.commands
        )
        commands = tuple(_fill(each, values) for each in words)
        return Run(family, env, variant, seed, self.threads, commands)


def method_name(family: str, variant: str) -> str:
    """What is compared: the family, and its variant."""
    return f"{family} {variant}".rstrip()


class Run(NamedTuple):
    """One run, in full."""

    family: str
    env: str
    variant: str
    seed: int
    threads: int
    commands: tuple[tuple[str, ...], ...]
    """With {name} and {directory} still in them: these depend on all the rest."""

    @property
    def key(self) -> str:
        """The run's directory: readable, and ending in a hash of the description, so that other runs have others."""
        description = json.dumps(self._asdict(), sort_keys=True, ensure_ascii=True)
        words = [self.family, self.env.replace("/", "-"), *filter(None, [self.variant]), f"s{self.seed}"]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "", "-".join(words))[:100].lstrip(".")
        return f"{readable}-{hashlib.sha256(description.encode()).hexdigest()[:12]}"

    @property
    def method(self) -> str:
        """What is compared."""
        return method_name(self.family, self.variant)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.method} · {self.env} · seed {self.seed}"

    @property
    def work(self) -> str:
        """What the scripts leave everything in, below where they are started."""
        return f"runs/{self.key}"

    def filled(self) -> tuple[tuple[str, ...], ...]:
        """The commands as they are given."""
        values = {"name": self.key, "directory": self.work}
        return tuple(_fill(command, values) for command in self.commands)

    def typed(self) -> list[str]:
        """The commands as one would type them."""
        return [shlex.join([*TYPED.get(script, (script,)), *words]) for script, *words in self.filled()]


def read_study(path: Path, scripts: Mapping[str, str | Path] = SCRIPTS) -> Study:
    """A study from its file; what is wrong with it is said with the place in the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
        if len(data) > MAX_JSON:
            raise ConfigError(f"the file has more than {MAX_JSON} bytes")
        study = from_json(Study, parse_json(data, "it"), "study")
        check_scripts(study, scripts)
    except (OSError, ArtifactError, ConfigError) as error:
        raise SystemExit(f"{path} is no study: {error}") from error
    return study


def check_scripts(study: Study, scripts: Mapping[str, str | Path]) -> None:
    """Refuse what is not a script that a study may run."""
    there = [name for name, place in scripts.items() if isinstance(place, str) or place.is_file()]
    for script, *_ in study.commands:
        if script not in there:
            raise ConfigError(f"a command begins with {script!r}; it must be one of {', '.join(there)}")


def _fill(command: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Put values into words, and leave what has none yet."""
    return tuple(_BRACES.sub(lambda found: values.get(found[1], found[0]), word) for word in command)
