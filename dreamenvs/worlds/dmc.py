"""Tasks of the DeepMind Control Suite (Tassa et al., 2018) seen through a camera, drawn at the size of the observation.

A task and its camera are built once, and only reset from episode to episode.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

Quality = Literal["fast", "full"]
CAMERAS = {"quadruped": 2}
"""The usual camera of a domain, where it is not the first: that of the quadruped looks from too far away."""

UNBOUNDED = 1e10
"""What the suite states where there is no bound."""


class RenderingError(RuntimeError):
    """MuJoCo cannot draw on this machine."""

    def __init__(self, reason: object) -> None:
        said = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
        super().__init__(
            f"MuJoCo cannot draw with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} ({said}): on a machine without a "
            "display install libegl1, libegl-mesa0 and libgl1-mesa-dri for MUJOCO_GL=egl, or libosmesa6 for "
            "MUJOCO_GL=osmesa"
        )


@dataclass(frozen=True, kw_only=True)
class DMCConfig:
    """How a task is seen and how often it is acted upon."""

    size: int = 64
    """Height and width of the observation."""
    repeat: int = 2
    """Control steps for each action, of which an episode has 1000; rewards add up."""
    camera: int = 0
    """Which of the task's cameras looks; -1 is a free one that sees all of it."""
    quality: Quality = "fast"
    """`fast` draws no shadows and no reflections, and leaves edges jagged: many times as many frames a second, but
    other pixels, so that the two must not be mixed."""

    def __post_init__(self) -> None:
        if not (8 <= self.size <= 512 and 1 <= self.repeat <= 64 and self.camera >= -1):
            raise ValueError(f"no sensible pictures: {self}")
        if self.quality not in get_args(Quality):
            raise ValueError(f"the quality is 'fast' or 'full', not {self.quality!r}")


class DMCEnv(gymnasium.Env[NDArray[np.uint8], NDArray[np.float32]]):
    """One task, such as cartpole and swingup; its time limit truncates."""

    def __init__(self, config: DMCConfig, domain: str, task: str, *, render_mode: str | None = None) -> None:
        suite = import_suite()
        if (domain, task) not in suite.ALL_TASKS:
            tasks = ", ".join(f"{known}-{name}" for known, name in suite.ALL_TASKS)
            raise ValueError(f"the DeepMind Control Suite has no task {domain}-{task}; it has {tasks}")
        self.metadata = {"render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self.config = config
        self._control = suite.load(domain, task, task_kwargs={"random": 0})  # reset gives another seed
        self.metadata["render_fps"] = round(1 / (self._control.control_timestep() * config.repeat))
        self._physics = self._control.physics
        cameras = self._physics.model.ncam
        if config.camera >= cameras:
            raise ValueError(f"{domain} has {cameras} cameras, numbered from 0, and no camera {config.camera}")
        self._camera: Any = None
        bounds = self._control.action_spec()
        low, high = np.broadcast_arrays(bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32))
        if np.abs([low, high]).max() >= UNBOUNDED:
            raise ValueError(f"the actions of {domain}-{task} have no bounds, which a dream needs")
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(0, 255, (config.size, config.size, 3), np.uint8)

    @property
    def physics_state(self) -> NDArray[np.float64]:
        """Positions, velocities and activations, in a new array: for scripted policies, never for a dream."""
        state: NDArray[np.float64] = self._physics.get_state()
        return state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        # Seeded anew for every episode, nothing depends on how much the episodes before have drawn.
        self._control.task.random.seed(int(self.np_random.integers(2**32)))
        self._control.reset()
        return self._picture(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """One action, `repeat` times; MuJoCo clips it to its bounds."""
        control = np.asarray(action, np.float64)
        if control.shape != self.action_space.shape or not np.isfinite(control).all():
            raise ValueError(f"an action is {self.action_space.shape} finite numbers, not {action!r}")
        total, terminated, truncated = 0.0, False, False
        for _ in range(self.config.repeat):
            step = self._control.step(control)
            total += float(step.reward)
            if step.last():
                terminated = step.discount == 0
                truncated = not terminated
                break
        return self._picture(), total, terminated, truncated, {}

    def render(self) -> NDArray[np.uint8] | None:
        """The current frame."""
        return self._picture() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Free what drawing needs; calling it again is harmless."""
        self._camera = None
        if self._physics is not None:
            self._physics.free()
        self._physics = self._control = None

    def _picture(self) -> NDArray[np.uint8]:
        if self._camera is None:
            try:
                self._camera = _open_camera(self._physics, self.config)
            except Exception as error:  # each drawing library has errors of its own
                raise RenderingError(error) from error
        picture: NDArray[np.uint8] = self._camera.render().copy()
        return picture


def import_suite() -> Any:
    """The package `dm_control.suite`; without a display MuJoCo is told to draw with EGL, before it is imported."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        from dm_control import suite
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dm_control", "mujoco"):
            raise RenderingError(error) from error
        raise ImportError('the DeepMind Control Suite needs an extra: pip install "dreamenvs[dmc]"') from error
    except Exception as error:  # a library that is not found shows as an AttributeError of None
        raise RenderingError(error) from error
    return suite


def _open_camera(physics: Any, config: DMCConfig) -> Any:
    """A camera, and the drawing context, which belongs to the thread that calls this."""
    from dm_control.mujoco.engine import Camera
    from mujoco import mjtRndFlag

    visual = physics.model.vis
    visual.global_.offwidth = visual.global_.offheight = config.size
    if config.quality == "fast":
        visual.quality.offsamples = visual.quality.shadowsize = 0
    camera = Camera(physics, config.size, config.size, config.camera)
    if config.quality == "fast":
        camera.scene.flags[mjtRndFlag.mjRND_SHADOW] = camera.scene.flags[mjtRndFlag.mjRND_REFLECTION] = 0
    return camera
