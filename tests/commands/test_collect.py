from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dreamenvs.data.replay import Replay
from dreamenvs.types import DiscreteActions, SourceEnv, WorldSpec
from dreamenvs.workflows import collecting

TRAINING = Path(__file__).parents[2] / "training"
BREAKOUT = ("--env", "MinAtar/Breakout-v1")


def run_collect(*args: str) -> subprocess.CompletedProcess[str]:
    from tests.warm import run_python

    return run_python([str(TRAINING / "collect.py"), *args], timeout=240)


@pytest.fixture
def script() -> ModuleType:
    from dreamenvs.cli import collect

    return collect


def test_random_episodes_of_minatar(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    out = tmp_path / "breakout"
    drawn = ("--drawing", "channels", "--scale", "1")
    result = run_collect(*BREAKOUT, "--steps", "120", "--out", str(out), "--seed", "3", *drawn)
    assert result.returncode == 0, result.stderr
    replay = Replay.open(out)
    assert replay.steps == 120
    assert replay.spec.world == "MinAtarBreakout"
    assert replay.spec.observation_shape == (4, 10, 10)
    assert replay.spec.source is not None
    assert replay.spec.source.options == {"drawing": "channels", "scale": 1}
    assert replay.notes == [{"policy": "random", "seed": 3, "episodes": len(replay), "steps": 120}]
    assert f"{len(replay)} episodes, 120 steps" in result.stdout
    assert str(replay.budget()) in result.stdout


def test_what_is_added_must_be_new_and_of_the_same_world(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("minatar")

    def run(**choices: object) -> None:
        script.main(script.Args(env="MinAtar/Breakout-v1", out=tmp_path / "out", **{"steps": 30, **choices}))

    run(seed=3)
    run(seed=4, num_envs=3, steps=33)
    assert Replay.open(tmp_path / "out").steps == 63
    for choices, message in (
        ({"seed": 3}, "has these episodes already"),
        ({"scale": 2}, r"observation_shape is \(3, 40, 40\) there and \(3, 20, 20\) here.*scale is 4 there and 2 here"),
        ({"life_loss": True}, "no choice of terminal_on_life_loss"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(**choices)
    assert Replay.open(tmp_path / "out").steps == 63


def test_a_refused_policy_leaves_no_directory(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    with pytest.raises(SystemExit, match=r"the tracker plays ALE/Pong, MinAtar/Breakout-v1, MinAtar/Freeway-v1 only"):
        script.collect_into(tmp_path / "out", script.choose_source("MinAtar/Asterix-v1"), "tracker", 9)
    assert not (tmp_path / "out").exists()


def test_any_policy_collects_into_a_replay(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    source = script.choose_source("MinAtar/Breakout-v1", scale=1)

    class Still:
        def predict(self, observation: np.ndarray, *rest: object) -> tuple[np.ndarray, None]:
            return np.ones(len(observation), np.int64), None

    replay = script.collect_into(
        tmp_path / "out", source, Still(), 50, seed=1, num_envs=2, notes={"round": 1}, bar=False
    )
    same = script.collect_into(replay, source, Still(), 10, seed=1, notes={"round": 2}, bar=False)
    assert same is replay
    assert replay.steps == 60
    assert (np.concatenate([episode.actions for episode in replay]) == 1).all()
    assert [note["round"] for note in replay.notes] == [1, 2]
    assert replay.notes[0]["policy"] == "Still"


def test_the_life_loss_choice_is_in_the_source(script: ModuleType) -> None:
    assert script.choose_source("ALE/Breakout-v5").options["terminal_on_life_loss"] is False
    assert script.choose_source("ALE/Breakout-v5", life_loss=True).options["terminal_on_life_loss"] is True


def test_worlds_are_named_as_in_ids(script: ModuleType) -> None:
    names = [script.world_name(name) for name in ("ALE/Pong-v5", "MinAtar/Asterix-v1", "my/Own_Env-v3", "Crafter")]
    assert names == ["Pong", "MinAtarAsterix", "OwnEnv", "Crafter"]


def test_every_difference_between_specs_is_told(script: ModuleType) -> None:
    source = SourceEnv(id="A-v0", options={"size": 4})
    old = WorldSpec(world="A", observation_shape=(3, 4, 4), actions=DiscreteActions(count=3), source=source)
    new = WorldSpec(world="A", observation_shape=(1, 4, 4), actions=DiscreteActions(count=2), source=None)
    assert script.differences(old, old) == []
    assert script.differences(old, new) == [
        "spec.observation_shape is (3, 4, 4) there and (1, 4, 4) here",
        "spec.actions.count is 3 there and 2 here",
        f"spec.source is {source!r} there and None here",
    ]


def frame(ball: tuple[int, int], paddle: int) -> np.ndarray:
    image = np.full((64, 64, 3), (144, 72, 17), np.uint8)
    image[ball] = 236
    image[paddle - 2 : paddle + 3, 56] = (92, 186, 92)
    return image


def test_the_tracker_moves_to_the_ball(script: ModuleType) -> None:
    from dreamenvs.worlds.players.pong import PongTracker

    tracker = PongTracker(0)
    first = np.stack([frame((20, 30), 40), frame((50, 30), 40), frame((40, 30), 40), np.zeros((64, 64, 3), np.uint8)])
    actions, state = tracker.predict(first, None, np.ones(4, bool))
    assert actions[0] in PongTracker.up
    assert actions[1] in PongTracker.down
    assert actions[2] in PongTracker.idle
    assert actions[3] in PongTracker.idle
    # The ball now rises one row a column, and will arrive 23 columns on at row 14; a new game knows only row 37.
    again = np.stack([frame((37, 33), 40)] * 4)
    assert tracker.predict(again, state, np.zeros(4, bool))[0][2] in PongTracker.up
    assert tracker.predict(again, state, np.ones(4, bool))[0][3] in PongTracker.up
    moves = tracker.predict(np.stack([frame((38, 33), 40)] * 4), state, np.array([False, False, True, False]))[0]
    assert moves[2] in PongTracker.idle
    assert moves[3] in PongTracker.idle


def test_one_row_is_tracked_as_among_many(script: ModuleType) -> None:
    from dreamenvs.worlds.players.pong import PongTracker

    rng = np.random.default_rng(0)
    balls, paddles = rng.integers(12, 54, (6, 5, 2)), rng.integers(15, 55, (6, 5))
    frames = np.array(
        [[frame(tuple(b), p) for b, p in zip(*row, strict=True)] for row in zip(balls, paddles, strict=True)]
    )
    many, state = [], None
    for observation in frames:
        actions, state = PongTracker().predict(observation, state, deterministic=True)
        many.append(actions)
    for row in range(5):
        state = None
        for time, observation in enumerate(frames[:, row]):
            actions, state = PongTracker().predict(observation[None], state, deterministic=True)
            assert actions[0] == many[time][row]
    assert len(set(np.concatenate(many).tolist())) == 3


@pytest.mark.parametrize(("game", "least"), [("Breakout", 3.0), ("Freeway", 3.0)])
def test_the_players_of_minatar_earn_much_more_than_chance(script: ModuleType, game: str, least: float) -> None:
    """In 500 steps of eight rows; random moves earn 0.4 in an episode of Breakout, and 0.1 in as many of Freeway."""
    pytest.importorskip("minatar")
    source = script.choose_source(f"MinAtar/{game}-v1")
    rows = collecting.make_rows(source, 8)
    policy = collecting.build_policy("tracker", source.id, rows.single_action_space, 0, (0.0,))
    episodes = list(script.collect(rows, policy, 4_000, 0))
    assert sum(episode.total_reward for episode in episodes) / len(episodes) > least
    rows.close()


def test_a_player_of_breakout_meets_the_ball(script: ModuleType) -> None:
    players = import_module("dreamenvs.worlds.players.minatar")
    paint = players.colours(players.CHANNELS)

    def draw(ball: tuple[int, int], trail: tuple[int, int], paddle: int) -> np.ndarray:
        field = np.zeros((10, 10, 3), np.uint8)
        for colour, place in ((players.PADDLE, (9, paddle)), (players.TRAIL, trail), (players.BALL, ball)):
            field[place] = paint[colour]
        return field.repeat(4, axis=0).repeat(4, axis=1)

    # Falling onto column 8; by the wall back to 8; up to the bricks, and down by the wall to 4; a ball below its trail.
    hidden = draw((3, 0), (3, 0), 4)
    hidden[12:16, :4] = paint[players.TRAIL]
    frames = [draw((6, 5), (5, 4), 8), draw((5, 7), (4, 6), 2), draw((5, 7), (6, 6), 8), hidden]
    actions = players.follow_ball(np.stack(frames))
    assert actions.tolist() == [players.STAY, players.RIGHT, players.LEFT, players.LEFT]
    with pytest.raises(SystemExit, match="reads colours"):
        players.follow_ball(np.zeros((1, 40, 40, 4), np.uint8))


def test_the_tracker_collects_with_bursts_of_random_moves(script: ModuleType) -> None:
    import gymnasium

    policy = collecting.build_policy("tracker", "ALE/Pong-v5", gymnasium.spaces.Discrete(6), 0)
    blank = np.zeros((400, 64, 64, 3), np.uint8)  # nothing to see: every move that is not random is idle
    state, moves = None, []
    for _ in range(20):
        actions, state = policy.predict(blank, state)
        moves.append(actions)
    # A drawn share of 0.5 on average, of which four in six are no idle moves.
    assert (np.stack(moves) > 1).mean() == pytest.approx(0.5 * 4 / 6, abs=0.04)


def test_the_persistent_policy_holds_its_moves(script: ModuleType) -> None:
    """In MinAtar Freeway a player must go up for some thirty steps to score, which single random moves never do."""
    import gymnasium

    policy = collecting.build_policy("persistent", "MinAtar/Freeway-v1", gymnasium.spaces.Discrete(3), 0)
    state, moves = None, []
    for _ in range(200):
        actions, state = policy.predict(np.zeros((50, 8, 8, 3), np.uint8), state)
        moves.append(actions)
    shares = np.bincount(np.concatenate(moves)) / (200 * 50)
    assert shares == pytest.approx(np.full(3, 1 / 3), abs=0.06)
    changes = (np.diff(np.stack(moves), axis=0) != 0).mean()
    assert changes == pytest.approx(
        2 / 3 / collecting.HOLD, rel=0.15
    )  # a new move is the old one in a third of the cases


def test_the_persistent_policy_holds_continuous_actions_of_all_dimensions(script: ModuleType) -> None:
    import gymnasium

    space = gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([1, 3]))
    policy = collecting.build_policy("persistent", "dm_control/reacher-easy-v0", space, 0)
    state, moves = None, []
    for _ in range(200):
        actions, state = policy.predict(np.zeros((50, 8, 8, 3), np.uint8), state)
        moves.append(actions)
    assert actions.dtype == np.float32
    kept = np.stack(moves)
    assert kept.mean((0, 1)) == pytest.approx([0, 1.5], abs=0.15)
    changes = (np.diff(kept, axis=0) != 0).all(2).mean()
    assert changes == pytest.approx(1 / collecting.HOLD, rel=0.15)


def test_who_plays_when_nobody_is_asked_for(script: ModuleType) -> None:
    ids = ("ALE/Pong-v5", "dm_control/walker-walk-v0", "MinAtar/Asterix-v1")
    assert [collecting.default_policy(env_id) for env_id in ids] == ["tracker", "persistent", "random"]
    with pytest.raises(SystemExit, match="swingup plays dm_control/cartpole only"):
        script.named_policy("swingup", "dm_control/walker-walk-v0", None, 0)


def test_the_scripted_swingup_stands_the_pole_up(script: ModuleType, drawing: None) -> None:
    """In two rows and alone, and far better than held random actions."""
    from dreamenvs.worlds.players.cartpole import CartpoleSwingup, states_of

    source = script.choose_source("dm_control/cartpole-swingup-v0")
    blank = np.zeros((1, 1, 3), np.uint8)
    returns = []
    for name in ("swingup", "persistent"):
        env = script.make_source(source)
        env.unwrapped._picture = lambda: blank  # neither looks
        policy = collecting.build_policy(name, source.id, env.action_space, 0, (0.0,), env)
        observation, _ = env.reset(seed=0)
        state, begins, total, truncated = None, np.ones(1, bool), 0.0, False
        while not truncated:
            actions, state = policy.predict(observation[None], state, begins)
            observation, reward, _, truncated, _ = env.step(actions[0])
            begins, total = np.zeros(1, bool), total + float(reward)
        returns.append(total)
    assert returns[0] > 800
    assert returns[1] < 400
    alone = CartpoleSwingup(states_of(env)).predict(blank)[0]
    assert alone.shape == (1, 1)
    many = CartpoleSwingup(lambda: np.tile(states_of(env)(), (3, 1))).predict(blank)[0]
    np.testing.assert_array_equal(many, alone.repeat(3, 0))


def test_dm_control_is_collected_in_processes_of_its_own(tmp_path: Path, drawing: None) -> None:
    out, cartpole = tmp_path / "cartpole", ("--env", "dm_control/cartpole-swingup-v0", "--repeat", "50")
    scripted = ("--policy", "swingup", "--epsilons", "0", "--num-envs", "2")
    result = run_collect(*cartpole, "--steps", "44", "--out", str(out), *scripted)
    assert result.returncode == 0, result.stderr
    replay = Replay.open(out)
    assert replay.spec.world == "CartpoleSwingup"
    assert replay.spec.source is not None
    assert replay.spec.source.options == {"size": 64, "repeat": 50, "camera": 0, "quality": "fast"}
    assert [len(episode) for episode in replay] == [20, 20, 2, 2]
    assert replay[0].actions.dtype == np.float32
    assert replay[0].actions.shape == (20, 1)
    assert [bool(episode.truncated[-1]) for episode in replay] == [True] * 4
    assert not any(episode.terminated.any() for episode in replay)


def test_a_machine_that_cannot_draw_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dm_control", exc_type=ImportError)
    monkeypatch.setenv("MUJOCO_GL", "paper")
    result = run_collect("--env", "dm_control/cartpole-swingup-v0", "--out", str(tmp_path / "none"))
    assert result.returncode == 1
    (said,) = result.stderr.splitlines()
    assert said.startswith("MuJoCo cannot draw with MUJOCO_GL=paper")
    assert not (tmp_path / "none").exists()
