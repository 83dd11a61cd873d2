"""The learner: what it draws from, how it goes on, and what it refuses."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch

from dreamenvs import tree
from dreamenvs.agents.dream_trainer import DreamTrainer
from dreamenvs.agents.latent_actor_critic import LatentConfig
from dreamenvs.agents.learner import Learner, LearningConfig
from dreamenvs.agents.protocol import agent_spec
from dreamenvs.agents.recurrent_actor_critic import RecurrentConfig
from dreamenvs.agents.saving import build_agent
from dreamenvs.nn.optimization import NonFiniteLossError
from tests.agents.test_imagination import LATENT, PIXELS
from tests.small import build_small, random_segment
from tests.toy_worlds import CountingWorld, counting_contexts

SETTINGS: dict[str, Any] = {"rows": 8, "horizon": 3, "rate": 1e-2}


def make(config: Any = LATENT, seed: int = 0, model: Any = None, **settings: Any) -> Learner:
    torch.manual_seed(0)
    obs_type: Any = "latent" if isinstance(config, LatentConfig) else "rgb"
    spec = agent_spec(CountingWorld() if model is None else model, obs_type)
    return Learner(build_agent(config, spec), LearningConfig(**SETTINGS | settings), seed)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("reuse", [{}, {"epochs": 2, "minibatches": 3}])
@pytest.mark.parametrize("config", [LATENT, PIXELS])
def test_a_restored_learner_goes_on_bit_for_bit(config: Any, reuse: dict[str, int]) -> None:
    model, contexts = build_small("STEPVQ"), [random_segment(rows=8, steps=2, seed=seed) for seed in range(4)]
    whole = make(config, model=model, **reuse)
    for update, context in enumerate(contexts):
        expected = whole.update(model, context, update)
    first = make(config, model=model, **reuse)
    for update in range(2):
        first.update(model, contexts[update], update)
    second = make(config, model=model, **reuse)
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()})
    torch.manual_seed(99)  # the caller's generator is nothing to it
    for update in range(2, 4):
        found = second.update(model, contexts[update], update)
    assert found == expected
    assert same(whole.tensors(), second.tensors())
    assert not same(first.tensors(), second.tensors())


def test_the_callers_generators_are_left_alone() -> None:
    world, learner = CountingWorld(), make()
    before = torch.get_rng_state()
    learner.update(world, counting_contexts(tuple(range(8))), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_seed_and_update_decide_what_is_drawn() -> None:
    world, context = CountingWorld(limit=100), counting_contexts(tuple(range(8)))
    actions = []
    for seed, update in ((0, 0), (0, 0), (0, 1), (1, 0)):
        learner = make(seed=seed)
        start = learner.agent.begin(8)
        trajectory, _, _ = learner.learn(world, _moment(world, context, start), update)
        actions.append(trajectory.actions)
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])
    assert not torch.equal(actions[0], actions[3])


def _moment(world: Any, context: Any, memory: Any) -> Any:
    from dreamenvs.agents.imagination import Moment

    return Moment(world.observe(context), memory)


def test_the_slow_critic_follows_slowly() -> None:
    world, learner = CountingWorld(), make(slow_decay=0.75)
    assert learner.slow is not None
    old = [parameter.clone() for parameter in learner.slow.parameters()]
    learner.update(world, counting_contexts(tuple(range(8))), 0)
    for before, slow, own in zip(old, learner.slow.parameters(), learner.agent.parameters(), strict=True):
        torch.testing.assert_close(slow, 0.75 * before + 0.25 * own)
        assert not slow.requires_grad
    assert make(slow_weight=0.0).slow is None
    assert make(slow_weight=0.0, bootstrap="slow").slow is not None


def test_the_learning_rate_falls_to_a_tenth() -> None:
    world, learner = CountingWorld(), make(decay_updates=10)
    rates = []
    for update in (0, 5, 10, 50):
        learner.update(world, counting_contexts(tuple(range(8))), update)
        rates.append(learner._optimizer.param_groups[0]["lr"] / 1e-2)
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_where_all_actions_are_alike_standardised_advantages_teach_nothing() -> None:
    # With a critic at zero and rewards of one everywhere, every action looks equally good: nothing is to be learned.
    world, contexts = CountingWorld(limit=1000), counting_contexts((0,) * 8)
    for standardised, moves in ((True, False), (False, True)):
        learner = make(standardised=standardised, horizon=1, entropy=0.0, discount=0.0)
        world.step = lambda state, actions, noise: _constant(CountingWorld(limit=1000), state, actions, noise)  # type: ignore[method-assign]
        before = [parameter.clone() for parameter in learner.agent.actor.parameters()]  # type: ignore[attr-defined]
        learner.update(world, contexts, 0)
        after = learner.agent.actor.parameters()  # type: ignore[attr-defined]
        assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True)) == moves


def _constant(world: CountingWorld, state: Any, actions: Any, noise: Any) -> Any:
    following, outcome = world.step(state, actions, noise)
    return following, outcome._replace(rewards=torch.ones_like(outcome.rewards))


def test_minibatches_share_the_rows_out_and_every_epoch_shuffles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world, learner = CountingWorld(limit=1000), make(epochs=2, minibatches=3)
    context, parts = counting_contexts(tuple(range(8))), []
    losses = learner.losses

    def watched(trajectory: Any, memory: Any, aims: Any) -> Any:
        parts.append(trajectory.views[:, 0, 0].long().tolist())
        assert aims.returns.shape == trajectory.rewards.shape == (len(parts[-1]), 3)
        return losses(trajectory, memory, aims)

    monkeypatch.setattr(learner, "losses", watched)
    learner.update(world, context, 0)
    assert [len(part) for part in parts] == [3, 3, 2] * 2
    epochs = [list(chain(*parts[:3])), list(chain(*parts[3:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(8))
    assert epochs[0] != epochs[1]


def test_what_does_not_fit_is_refused() -> None:
    learner, tensors = make(), make().tensors()
    with pytest.raises(ValueError, match="not part of a learner's state"):
        learner.restore(tensors | {"other.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="another config"):
        make(slow_weight=0.0).restore(tensors)
    wide = make(LatentConfig(actor_units=16, critic_units=8))
    with pytest.raises(ValueError, match="weights of another agent"):
        wide.restore(tensors)
    with pytest.raises(ValueError, match="discount is a number from 0 to 1"):
        LearningConfig(discount=1.5)
    with pytest.raises(ValueError, match="epochs 1 and minibatches 9"):
        LearningConfig(rows=8, minibatches=9)
    with pytest.raises(ValueError, match="at least 1, not 8, 8"):
        LearningConfig(rows=8, horizon=0)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    world, learner = CountingWorld(), make()
    with torch.no_grad():
        learner.agent.critic[-1].bias[0] = float("nan")  # type: ignore[attr-defined]
    before = learner.tensors()
    with pytest.raises(NonFiniteLossError, match="at update 3"):
        learner.update(world, counting_contexts(tuple(range(8))), 3)
    after = learner.tensors()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before if name != "scale")


@pytest.mark.parametrize("config", [LATENT, PIXELS])
def test_wandering_rows_go_on_bit_for_bit(config: Any) -> None:
    model, contexts = build_small("STEPVQ"), random_segment(rows=6, steps=2)
    whole = DreamTrainer(make(config, model=model), model, contexts, limit=9)
    metrics = [whole.advance() for _ in range(6)]
    first = DreamTrainer(make(config, model=model), model, contexts, limit=9)
    assert [first.advance() for _ in range(3)] == metrics[:3]
    second = DreamTrainer(make(config, model=model), model, contexts, limit=9)
    second.learner.restore(first.learner.tensors())
    second.restore(first.tensors())
    assert [second.advance() for _ in range(3)] == metrics[3:]
    assert same(whole.tensors(), second.tensors())
    assert same(whole.learner.tensors(), second.learner.tensors())


def test_wandering_rows_leave_old_and_ended_dreams() -> None:
    world = CountingWorld(limit=40)
    learner = make(horizon=4)
    trainer = DreamTrainer(learner, world, counting_contexts((0, 1)), limit=12)
    seen = []
    for _ in range(12):
        metrics = trainer.advance()
        rows = trainer.tensors()
        assert (rows["ages"] < 12).all()
        # A dream of at most 16 steps from 0 or 1 with actions up to 2 never counts further than this.
        assert rows["row.0"].max() <= 1 + 2 * 16
        seen.append(metrics.get("finished_return"))
    finished = [value for value in seen if value is not None]
    assert finished
    assert all(0 < value <= 24 for value in finished)
    with pytest.raises(ValueError, match="another dream"):
        trainer.restore({})
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        DreamTrainer(learner, world, counting_contexts(), limit=0)


def test_recurrent_rows_remember_over_updates() -> None:
    model, contexts = build_small("STEPVQ"), random_segment(rows=6, steps=2)
    trainer = DreamTrainer(make(RecurrentConfig(encoder=PIXELS.encoder, units=8), model=model), model, contexts)
    before = tree.clone(trainer._moment.memory)
    trainer.advance()
    assert not torch.equal(before.hidden, trainer._moment.memory.hidden)


def test_a_normalized_agent_sees_alike_in_acting_and_in_judging() -> None:
    world, context = CountingWorld(limit=1000), counting_contexts(tuple(range(8)))
    learner = make(LatentConfig(actor_units=8, critic_units=8, normalized=True))
    agent: Any = learner.agent
    for update in range(3):
        before = tree.map(torch.clone, _moment(world, context, agent.begin(8)))
        trajectory, _, _ = learner.learn(world, before, update)
        assert agent.normalizer.count == 8 * (update + 1)
        slow: Any = learner.slow
        assert torch.equal(slow.normalizer.mean, agent.normalizer.mean)
    assert agent.normalizer.mean[0].item() == 3.5  # the mean start, not that of later views
    judged = agent.judge(trajectory.views, trajectory.actions, agent.begin(8))
    torch.testing.assert_close(judged.outputs[:, 1], agent.act(trajectory.views[:, 1], agent.begin(8))[0])
    other = make(LatentConfig(actor_units=8, critic_units=8, normalized=True))
    other.restore(learner.tensors())
    assert same(other.tensors(), learner.tensors())
