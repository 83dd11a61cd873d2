"""The doctor names the fault that was planted in a dream, calls a sound one good, and says what it cannot know."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from torch import Tensor

from dreamenvs.agents.pqn import PQNConfig
from dreamenvs.data.collect import RandomPolicy, collect
from dreamenvs.data.episode import Episode
from dreamenvs.evaluation.diagnosis import Learned, find_drift, find_exploitation, find_objects
from dreamenvs.evaluation.doctor import Examination, examine
from dreamenvs.evaluation.statistics import Estimate
from tests.food_world import FAULTS, ID, SOUND, food_checkpoint, register_food
from tests.toy_worlds import Point, PointWorld, point_checkpoint

PQN = PQNConfig(rows=64, length=16, minibatches=8, rate=2e-3)
SHORT = Examination(real_steps=3_000, dream_steps=6_400, horizon=60, learner_steps=40_000, pqn=PQN, episodes=20, seed=3)
BLIND = Examination(real_steps=2_000, dream_steps=3_200, horizon=60, learner_steps=0, seed=3)


@pytest.fixture(scope="module")
def random_play() -> list[Episode]:
    register_food()
    env = gym.make(ID)
    return list(collect(env, RandomPolicy(env.action_space, 9), 3_000, 9))


def test_a_sound_dream_is_good() -> None:
    diagnosis = examine(food_checkpoint(), examination=SHORT)
    assert diagnosis.findings == []
    assert diagnosis.tier == "good", diagnosis.text()
    assert diagnosis.unknown == []
    assert diagnosis.one_step.reward_recall == diagnosis.one_step.end_precision == 1.0
    assert diagnosis.text().startswith("tier: good")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str) -> None:
    diagnosis = examine(food_checkpoint(fault), examination=BLIND)
    assert diagnosis.faults == [fault], diagnosis.text()
    assert diagnosis.tier == "broken"
    assert fault.replace("_", " ") in diagnosis.text()


def test_the_step_is_named_at_which_frames_drift() -> None:
    diagnosis = examine(food_checkpoint("drift"), examination=BLIND)
    counted = diagnosis.conservation
    assert counted is not None
    strange = [each.strange for each in counted.by_step]
    assert max(strange[: SOUND + 1]) == 0 < strange[SOUND + 1]
    (finding,) = diagnosis.findings
    assert any(f"from imagined step {step} on" in finding.text for step in range(SOUND + 1, SOUND + 5))


def test_without_the_real_environment_it_says_what_it_cannot_know(random_play: list[Episode]) -> None:
    blind = examine(food_checkpoint(real=False), random_play, examination=replace(BLIND, learner_steps=2_048, pqn=PQN))
    assert (blind.tier, blind.findings) == ("demo", [])
    assert blind.learned is not None
    assert blind.learned.real is None
    assert any("learned inside earns for real" in each for each in blind.unknown)
    assert "not known: what a policy that learned inside" in blind.text()
    leaking = examine(food_checkpoint("rewards_leaking", real=False), random_play, examination=BLIND)
    assert leaking.faults == ["rewards_leaking"]


def test_episodes_of_another_policy_are_not_taken_for_random_play(random_play: list[Episode]) -> None:
    dream = food_checkpoint("rewards_missing", real=False)
    diagnosis = examine(dream, random_play, random_play=False, examination=BLIND)
    assert diagnosis.random_real is None
    assert [finding.text.startswith("one step ahead") for finding in diagnosis.findings] == [True]
    assert any("what random play earns for real" in each for each in diagnosis.unknown)


def test_it_needs_something_real() -> None:
    with pytest.raises(ValueError, match="needs real episodes"):
        examine(food_checkpoint(real=False), examination=BLIND)


def test_a_diagnosis_is_json() -> None:
    plain = examine(food_checkpoint("objects_appear"), examination=BLIND).to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["tier"], plain["findings"][0]["fault"]) == ("broken", "objects_appear")
    assert plain["conservation"]["random_play"]["reward"]["mean"] == plain["random_play"]["dream_reward"]


def test_a_policy_that_earns_half_for_real_unmasks_a_dream() -> None:
    def learned(real: float) -> Learned:
        return Learned("PQN", 100, Estimate(10, 9, 11), Estimate(real, real - 0.5, real + 0.5), Estimate(1, 0.5, 1.5))

    assert [finding.broken for finding in find_exploitation(learned(4.0))] == [True]
    assert [finding.broken for finding in find_exploitation(learned(7.0))] == [False]
    assert find_exploitation(learned(8.2)) == []
    assert (learned(8.2).honest, learned(7.9).honest, learned(30.0).honest) == (True, False, True)
    once = learned(4.0)._replace(real=Estimate(4.0, float("nan"), float("nan")))
    assert find_exploitation(once) == []
    assert learned(2.5).beats_random
    assert not learned(1.6).beats_random


def test_frames_that_stand_still_are_drift() -> None:
    counted = examine(food_checkpoint(), examination=BLIND).conservation
    assert counted is not None
    assert find_drift(counted) == []
    frozen = [each if each.step <= 30 else each._replace(changed=0.0) for each in counted.by_step]
    (finding,) = find_drift(counted._replace(by_step=frozen))
    assert (finding.fault, finding.broken) == ("drift", True)
    assert any(f"from imagined step {step} on frames hardly change" in finding.text for step in range(31, 37))
    blurred = find_drift(counted._replace(strange=0.1))
    assert [(finding.fault, finding.broken) for finding in blurred] == [("strange_frames", False)]


@pytest.mark.parametrize("side", [4, 3])
def test_continuous_actions_and_frames_without_patches_are_said(side: int) -> None:
    class SmallPoint(PointWorld):
        def __init__(self) -> None:
            super().__init__()
            self.spec = replace(self.spec, observation_shape=(3, side, side))

        def decode(self, state: Point) -> Tensor:
            return super().decode(state)[:, :, :side, :side]

    rng = np.random.default_rng(0)
    point = point_checkpoint()
    frames = point.contexts.observations[..., :side, :side]
    dream = point._replace(model=SmallPoint(), contexts=point.contexts._replace(observations=frames))
    episode = Episode(
        observations=rng.integers(0, 255, (41, 1, 1, 1), np.uint8).repeat(side, 1).repeat(side, 2).repeat(3, 3),
        actions=rng.uniform(-1, 1, (40, 2)).astype(np.float32),
        rewards=np.full(40, -0.5, np.float32),
        terminated=np.zeros(40, bool),
        truncated=np.zeros(40, bool),
    )
    diagnosis = examine(dream, [episode, episode], examination=replace(BLIND, dream_steps=640, learner_steps=2_048))
    assert diagnosis.learned is None
    assert any("discrete actions" in each for each in diagnosis.unknown)
    assert (diagnosis.conservation is None) == (side == 3)
    assert any("what appears" in each for each in diagnosis.unknown) == (side == 3)
    assert diagnosis.random_dream.reward.mean < 0 == diagnosis.random_dream.ends.mean
    assert any("whether ends are predicted" in each for each in diagnosis.unknown)


def test_what_a_learner_does_to_things_is_no_proof_against_a_dream() -> None:
    counted = examine(food_checkpoint("objects_appear"), examination=BLIND).conservation
    assert [finding.broken for finding in find_objects(counted, "random play", broken=True)] == [True]
    assert [finding.broken for finding in find_objects(counted, "the learner's play", broken=False)] == [False]
