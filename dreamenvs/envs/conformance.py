"""A checker for vector environments: any `VectorEnv` against Gymnasium's `SyncVectorEnv` of its single environment.

Gymnasium checks single environments only; this is for everybody who writes a native vector environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

MakeVec = Callable[..., VectorEnv[Any, Any, Any]]
MakeEnv = Callable[[], gym.Env[Any, Any]]

_VECTOR_KWARGS = ("num_envs", "autoreset_mode", "vectorization_mode", "vector_kwargs", "wrappers", "max_episode_steps")


class ConformanceError(AssertionError):
    """A vector environment does what Gymnasium's own would not; the message says in which mode, when and where."""


def check_vector_env(
    make_vec: MakeVec,
    make_env: MakeEnv | None = None,
    *,
    num_envs: int = 3,
    steps: int = 200,
    seed: int = 0,
    modes: Sequence[AutoresetMode] = tuple(AutoresetMode),
    tolerance: float = 0.0,
    pixel_tolerance: int = 0,
) -> None:
    """Raise `ConformanceError` at the first difference between a vector environment and its single one.

    Spaces, observations, rewards, flags and infos with their masks are compared row by row over resets by int and by
    list, random actions, and every autoreset mode; returned arrays must stay as they were returned.

    Args:
        make_vec: Called with `num_envs` and `autoreset_mode` by name; `functools.partial(gym.make_vec, id)` fits.
        make_env: Makes the single environment. By default it is made from the vector environment's spec.
        num_envs: Rows to compare.
        steps: Steps in each mode; at least one episode must end within them.
        seed: Of the resets and of the actions.
        modes: The autoreset modes that are supported.
        tolerance: Largest absolute difference of floats; 0 asks for equal bits.
        pixel_tolerance: Largest difference of uint8 values, which may have been rounded from floats.

    >>> from functools import partial
    >>> import gymnasium as gym, dreamenvs
    >>> make_vec = partial(gym.make_vec, "dreamenvs/STEPVQ-Pong-v0", horizon=5, obs_type="tokens")
    >>> check_vector_env(make_vec, steps=12)
    """
    for mode in modes:
        envs = make_vec(num_envs=num_envs, autoreset_mode=mode)
        single = make_env if make_env is not None else _single_of(envs)
        reference = SyncVectorEnv([single] * num_envs, autoreset_mode=mode)
        try:
            _Comparison(envs, reference, mode, tolerance, pixel_tolerance).run(steps, seed)
        finally:
            envs.close()
            reference.close()


def _single_of(envs: VectorEnv[Any, Any, Any]) -> MakeEnv:
    spec = envs.spec
    if spec is None:
        raise ValueError("this vector environment has no spec to make its single one from: pass make_env")
    kwargs = {key: value for key, value in spec.kwargs.items() if key not in _VECTOR_KWARGS}
    return lambda: gym.make(spec.id, disable_env_checker=True, **kwargs)


class _Comparison:
    """One mode's walk through both environments, side by side."""

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        reference: SyncVectorEnv,
        mode: AutoresetMode,
        tolerance: float,
        pixel_tolerance: int,
    ) -> None:
        self.envs, self.reference, self.mode = envs, reference, mode
        self.tolerance, self.pixel_tolerance = tolerance, pixel_tolerance
        self.moment = "at construction"
        self.returned: list[tuple[str, Any, Any]] = []

    def run(self, steps: int, seed: int) -> None:
        self._check_spaces()
        self._reset(seed=seed)
        self._walk(steps, seed)
        self._reset(seed=[seed + 7 * row + 1 for row in range(self.envs.num_envs)])
        self._walk(max(steps // 10, 1), seed + 1, must_end=False)
        self._reset(seed=None)
        self._check_unchanged()

    def _check_spaces(self) -> None:
        envs, reference = self.envs, self.reference
        for name in ("num_envs", "single_observation_space", "single_action_space"):
            self._equal(name, getattr(envs, name), getattr(reference, name))
        for name in ("observation", "action"):
            batched = batch_space(getattr(envs, f"single_{name}_space"), envs.num_envs)
            self._equal(f"{name}_space", getattr(envs, f"{name}_space"), batched)
        declared = envs.metadata.get("autoreset_mode")
        if declared is not self.mode:
            raise self._error(f"metadata['autoreset_mode'] is {declared!r}, not {self.mode!r}")

    def _reset(self, **kwargs: Any) -> None:
        self.moment = f"at reset({', '.join(f'{key}={value}' for key, value in kwargs.items())})"
        # Each gets options of its own: SyncVectorEnv takes the mask out of them.
        mine, theirs = self.envs.reset(**deepcopy(kwargs)), self.reference.reset(**deepcopy(kwargs))
        self._compare(("observation", "infos"), mine, theirs)

    def _walk(self, steps: int, seed: int, must_end: bool = True) -> None:
        self.envs.action_space.seed(seed)
        ever = np.zeros(self.envs.num_envs, dtype=np.bool_)
        for step in range(steps):
            self.moment = f"at step {step}"
            actions = self.envs.action_space.sample()
            mine, theirs = self.envs.step(deepcopy(actions)), self.reference.step(actions)
            self._compare(("observation", "rewards", "terminated", "truncated", "infos"), mine, theirs)
            ended = np.asarray(theirs[2]) | np.asarray(theirs[3])
            ever |= ended
            if self.mode is AutoresetMode.DISABLED and ended.any():
                self._reset(options={"reset_mask": ended.copy()})
        if must_end and not ever.any():
            raise ValueError(f"no episode ended within {steps} steps, so autoreset was not seen: allow more steps")

    def _compare(self, names: Sequence[str], mine: Sequence[Any], theirs: Sequence[Any]) -> None:
        for name, left, right in zip(names, mine, theirs, strict=True):
            if name == "observation":
                rows = iterate(self.envs.observation_space, left), iterate(self.envs.observation_space, right)
                for row, (one, other) in enumerate(zip(*rows, strict=True)):
                    self._equal(f"observation of row {row}", one, other)
                if left not in self.envs.observation_space:
                    raise self._error("the observation is not in observation_space")
            else:
                self._equal(name, left, right)
            self.returned.append((f"{name} returned {self.moment}", left, deepcopy(left)))

    def _check_unchanged(self) -> None:
        for name, now, then in self.returned:
            self._equal(f"{name}, seen again after later steps,", now, then)

    def _equal(self, name: str, mine: Any, theirs: Any) -> None:
        if isinstance(theirs, dict):
            if not isinstance(mine, dict) or mine.keys() != theirs.keys():
                raise self._error(f"{name} has the keys {_keys(mine)}, not {_keys(theirs)}")
            for key in theirs:
                self._equal(f"{name}[{key!r}]", mine[key], theirs[key])
        elif isinstance(theirs, np.ndarray):
            self._equal_arrays(name, mine, theirs)
        elif isinstance(theirs, tuple):
            for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
                self._equal(f"{name}[{index}]", one, other)
        elif mine != theirs:
            raise self._error(f"{name} is {mine!r}, not {theirs!r}")

    def _equal_arrays(self, name: str, mine: Any, theirs: NDArray[Any]) -> None:
        if not isinstance(mine, np.ndarray) or mine.shape != theirs.shape or mine.dtype.kind != theirs.dtype.kind:
            raise self._error(f"{name} is {_describe(mine)}, not {_describe(theirs)}")
        if theirs.dtype == object:
            for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
                self._equal(f"{name}[{index}]", one, other)
        elif theirs.dtype.kind == "f" and self.tolerance > 0:
            if not np.allclose(mine, theirs, rtol=0.0, atol=self.tolerance, equal_nan=True):
                raise self._error(f"{name} differs by {np.abs(mine - theirs).max()}, over {self.tolerance}")
        elif theirs.dtype == np.uint8 and self.pixel_tolerance > 0:
            apart = np.abs(mine.astype(np.int16) - theirs.astype(np.int16)).max(initial=0)
            if apart > self.pixel_tolerance:
                raise self._error(f"{name} differs by {apart}, over {self.pixel_tolerance}")
        elif not np.array_equal(mine, theirs, equal_nan=theirs.dtype.kind == "f"):
            where = np.argwhere(mine != theirs)[0].tolist()
            raise self._error(f"{name} is {mine[tuple(where)]}, not {theirs[tuple(where)]}, at {where}")

    def _error(self, what: str) -> ConformanceError:
        return ConformanceError(f"autoreset mode {self.mode.value}, {self.moment}: {what}")


def _keys(value: Any) -> str:
    return str(sorted(value)) if isinstance(value, dict) else type(value).__name__


def _describe(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
