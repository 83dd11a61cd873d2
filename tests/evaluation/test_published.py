"""The published tables: that they are whole, plausible, and come to the aggregates that the papers print."""

from __future__ import annotations

import math
from importlib.resources import files

import numpy as np
import pytest

from dreamenvs.evaluation import published, statistics
from dreamenvs.evaluation.published.tables import parse

TABLES = [(name, key) for name in published.NAMES for key in published.load(name).tables]


def hns(paper: str, table: str, method: str) -> np.ndarray:
    return published.load(paper).tables[table].normalized(method)


@pytest.mark.parametrize(
    ("paper", "table", "method", "mean", "median", "superhuman"),
    [
        ("rem", "atari_100k", "SimPLe", "0.332", "0.134", 1),
        ("rem", "atari_100k", "DreamerV3", "1.124", "0.485", 9),
        ("rem", "atari_100k", "TWM", "0.956", "0.505", 8),
        ("rem", "atari_100k", "STORM", "1.222", "0.425", 9),
        ("rem", "atari_100k", "IRIS", "1.046", "0.289", 9),  # the paper counts 10: see disagreements
        ("rem", "atari_100k", "REM", "1.222", "0.280", 12),
        ("rem", "ablations", "REM", "1.947", "2.339", 6),
        ("rem", "ablations", "No POP", "2.357", "2.221", 6),
        ("step_vq", "mamba2", "STEP-VQ-M", "1.110", "0.256", 9),
        ("step_vq", "mamba2", "CB-M", "1.053", "0.396", 8),
        ("step_vq", "transformer", "STEP-VQ-T", "1.048", "0.300", 9),
        ("step_vq", "transformer", "CB-T", "1.012", "0.384", 8),
        ("step_vq", "cross_entropy", "STEP-VQ-M, cross-entropy", "2.070", "1.209", 6),
        ("step_vq", "resolution", "STEP-VQ-M, 96×96", "2.385", "1.390", 5),
        ("step_vq", "resolution", "CB-M, 96×96", "1.871", "1.022", 4),
        ("git_storm", "atari_100k", "STORM", "0.947", "0.357", 6),
        ("git_storm", "atari_100k", "GIT-STORM", "1.124", "0.423", 8),  # the paper prints 1.126 and 0.426
    ],
)
def test_aggregates_come_out_as_printed(
    paper: str, table: str, method: str, mean: str, median: str, superhuman: int
) -> None:
    scores = hns(paper, table, method)[None]
    for text, figure in ((mean, statistics.mean), (median, statistics.median)):
        assert abs(float(figure(scores)) - float(text)) <= parse(text).half + 1e-9
    assert statistics.superhuman(scores) == superhuman


def test_every_printed_aggregate_is_right_or_among_the_disagreements() -> None:
    listed = {(d.paper, d.table, d.method, d.aggregate) for d in published.disagreements() if d.place[0] == "t"}
    checked = 0
    for name, key in TABLES:
        table = published.load(name).tables[key]
        for aggregate, figure in (("mean", np.mean), ("median", np.median)):
            for method, printed in table.aggregates.get(aggregate, {}).items():
                column = table.scores(method) if key == "dmc" else table.normalized(method)
                right = abs(figure(column) - printed.value) <= printed.half + 1e-9
                assert right != ((table.paper, table.number, method, aggregate) in listed), (name, key, method)
                checked += 1
    assert checked == 2 * (8 + 8) + 2 * (7 * 2) + 2 * (8 + 7)


def test_disagreements_are_these() -> None:
    found = [
        (d.paper, d.place, d.method, d.aggregate, d.printed, round(d.computed, 3), d.rounding)
        for d in published.disagreements()
    ]
    assert found == [
        ("REM", "table 1", "IRIS", "superhuman", 10, 9, True),  # Pong: 14.6 of both IRIS and people
        ("GIT-STORM", "table 5", "GIT-STORM", "mean", 1.126, 1.124, True),
        ("GIT-STORM", "table 5", "GIT-STORM", "median", 0.426, 0.423, True),
        ("GIT-STORM", "section 4.2", "DreamerV3", "iqm", 0.501, 0.502, False),  # the two are exchanged
        ("GIT-STORM", "section 4.2", "IRIS", "iqm", 0.502, 0.501, False),
        ("GIT-STORM", "table 6", "STORM", "median", 31.5, 64.05, False),
        ("GIT-STORM", "table 6", "GIT-STORM", "median", 475.12, 436.5, False),
        ("GIT-STORM", "table 6", "PPO", "mean", 211.9, 221.94, False),
        ("GIT-STORM", "table 6", "DrQ-v2", "mean", 677.4, 677.345, True),
        ("GIT-STORM", "table 6", "STORM", "mean", 214.5, 228.8, False),
        ("GIT-STORM", "table 6", "GIT-STORM", "mean", 442.1, 437.26, False),
        ("GIT-STORM", "section 4.1", "all", "tasks", 18, 20, False),
    ]


def test_conflicts_are_these() -> None:
    found = [(c.method, c.task, c.papers, tuple(round(v, 3) for v in c.values)) for c in published.conflicts()]
    assert found == [
        ("Random", "KungFuMaster", ("REM", "GIT-STORM"), (258.5, 256)),
        ("SimPLe", "Krull", ("REM", "GIT-STORM"), (2204.8, 2204)),
        ("TWM", "Asterix", ("REM", "GIT-STORM"), (1116.6, 1116)),
        ("IRIS", "CrazyClimber", ("REM", "GIT-STORM"), (59324.2, 59234)),
        # STEP-VQ normalised returns that had been rounded.
        ("IRIS", "Assault", ("REM", "STEP-VQ"), (2.506, 2.504)),
        ("IRIS", "Breakout", ("REM", "STEP-VQ"), (2.847, 2.929)),
        ("IRIS", "Freeway", ("REM", "STEP-VQ"), (1.051, 1.033)),
        ("IRIS", "Kangaroo", ("REM", "STEP-VQ"), (0.264, 0.263)),
        ("IRIS", "Krull", ("REM", "STEP-VQ"), (4.701, 4.699)),
        ("IRIS", "CrazyClimber", ("GIT-STORM", "STEP-VQ"), (1.934, 1.938)),
    ]


def test_printed_gaps_are_no_smaller_than_those_of_the_means() -> None:
    """Over runs the gap can only be larger, since min(score, 1) is concave: a check of what was read."""
    checked = 0
    for name, key in TABLES:
        table = published.load(name).tables[key]
        for method, printed in table.aggregates.get("optimality_gap", {}).items():
            gap = float(statistics.optimality_gap(table.normalized(method)[None]))
            assert printed.value + printed.half >= gap - 0.002, (name, key, method)  # tables are rounded, too
            checked += 1
    assert checked == 24


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_tables_are_whole_and_say_where_they_are_from(name: str, key: str) -> None:
    paper = published.load(name)
    table = paper.tables[key]
    assert paper.title
    assert paper.source
    assert table.number.isdigit()
    assert table.paper == paper.name
    assert len(set(table.tasks)) == len(table.tasks)
    assert set(table.quoted) <= set(table.methods)
    for method in table.methods:
        column = table.scores(method)
        assert column.shape == (len(table.tasks),)
        if np.isnan(column).any():
            assert any("could not be read" in note or "could be read" in note for note in table.notes)
    for row in table.aggregates.values():
        assert set(row) <= set(table.methods)


def test_games_are_the_26_everywhere() -> None:
    games = published.load("rem").tables["atari_100k"].tasks
    assert len(games) == 26
    for name, key in TABLES:
        table = published.load(name).tables[key]
        if table.benchmark == "Atari 100k":
            assert table.tasks == games, (name, key)
        elif table.benchmark.startswith("Atari 100k"):
            assert set(table.tasks) < set(games)
    assert len(published.load("git_storm").tables["dmc"].tasks) == 20


def test_delta_iris_is_normalised_with_another_papers_anchors() -> None:
    table = published.load("delta_iris").tables["atari_100k"]
    assert float(table.normalized("Δ-IRIS").mean()) == pytest.approx(1.396, abs=5e-4)
    assert float(np.median(table.normalized("Δ-IRIS"))) == pytest.approx(0.530, abs=5e-4)
    assert not table.aggregates  # none could be read
    crafter = published.load("delta_iris").tables["crafter_returns"]
    assert crafter.scores("Δ-IRIS")[0] == 7.7
    assert np.isnan(crafter.scores("Δ-IRIS")[1:]).all()


def test_numbers_keep_the_digits_that_are_printed() -> None:
    assert parse("1.222") == (1.222, 0.0005)
    assert parse("-20.7") == (-20.7, 0.05)
    assert parse("617") == (617, 0.5)
    mean = published.load("git_storm").tables["atari_100k"].aggregates["mean"]
    assert mean["SimPLe"] == (0.33, 0.005)  # printed as 33%
    assert mean["GIT-STORM"] == (1.126, 0.0005)  # printed as 112.6%


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="rem, delta_iris, git_storm, step_vq, not of 'dreamer'"):
        published.load("dreamer")
    table = published.load("step_vq").tables["mamba2"]
    with pytest.raises(KeyError, match="has STEP-VQ-M, CB-M, and no IRIS"):
        table.scores("IRIS")
    with pytest.raises(ValueError, match="table 6 of GIT-STORM has no scores of random actions"):
        published.load("git_storm").tables["dmc"].normalized("STORM")
    with pytest.raises(TypeError):
        published.load("rem").tables["new"] = table  # type: ignore[index]
    assert published.load("rem") is published.load("rem")


def test_files_are_part_of_the_package() -> None:
    held = {path.name for path in files(published).iterdir() if path.name.endswith(".json")}
    assert held == {f"{name}.json" for name in published.NAMES}


def test_published_methods_can_be_compared_with_each_other() -> None:
    """One "run" a game, the mean: no interval, and the value that the means give."""
    rem, iris = hns("rem", "atari_100k", "REM")[None], hns("rem", "atari_100k", "IRIS")[None]
    chance = statistics.probability_of_improvement(rem, iris, np.random.default_rng(0), resamples=5)
    assert chance.mean == np.mean(rem > iris)
    assert math.isnan(chance.low)
