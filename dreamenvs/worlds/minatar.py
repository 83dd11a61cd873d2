"""MinAtar games (Young and Tian, 2019) as images. The package's own Gymnasium class does not seed, hence this one."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
Drawing = Literal["rgb", "channels"]


@dataclass(frozen=True, kw_only=True)
class MinAtarConfig:
    """How the game's boolean channels become an image."""

    scale: int = 4
    """The side of a cell in pixels; the field has 10 × 10 cells."""
    drawing: Drawing = "rgb"
    """`rgb` paints each channel in its own colour, later channels over earlier ones; `channels` keeps them apart."""

    def __post_init__(self) -> None:
        if not 1 <= self.scale <= 32 or self.drawing not in get_args(Drawing):
            raise ValueError(f"MinAtar is drawn at a scale from 1 to 32 as 'rgb' or 'channels', not {self}")


class MinAtarEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One game; `minimal` leaves out the actions that do nothing, as the -v1 ids do."""

    def __init__(
        self,
        config: MinAtarConfig,
        game: str,
        *,
        minimal: bool = True,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        import minatar

        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
        self.render_mode = render_mode
        self.config = config
        self._game = minatar.Environment(
            GAMES[game], sticky_action_prob=sticky_action_prob, difficulty_ramping=difficulty_ramping
        )
        self._actions: list[int] = self._game.minimal_action_set() if minimal else list(range(6))
        height, width, channels = self._game.state_shape()
        self._colours = colours(channels)
        shape = (height * config.scale, width * config.scale, 3 if config.drawing == "rgb" else channels)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self._seeded = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start a game."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._game.seed(int(self.np_random.integers(2**31)))
            self._seeded = True
        self._game.reset()
        self._game.last_action = 0  # the game would otherwise let a sticky action through from the last episode
        return self._draw(self.config.drawing), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one action."""
        reward, terminated = self._game.act(self._actions[int(action)])
        return self._draw(self.config.drawing), float(reward), bool(terminated), False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """The field in colours."""
        return self._draw("rgb") if self.render_mode == "rgb_array" else None

    def _draw(self, drawing: Drawing) -> NDArray[np.uint8]:
        field = np.asarray(self._game.state(), dtype=bool)  # (10, 10, channels)
        if drawing == "rgb":
            top = np.where(field, np.arange(1, field.shape[-1] + 1), 0).max(-1)
            cells = self._colours[top]
        else:
            cells = field.astype(np.uint8) * np.uint8(255)
        image: NDArray[np.uint8] = cells.repeat(self.config.scale, axis=0).repeat(self.config.scale, axis=1)
        return image


def colours(channels: int) -> NDArray[np.uint8]:
    """(1 + channels, 3): black for an empty cell, then evenly spaced hues, alternating in brightness."""
    hues = [colorsys.hsv_to_rgb(i / channels, 0.85, 1.0 if i % 2 == 0 else 0.7) for i in range(channels)]
    painted: NDArray[np.uint8] = np.rint(np.array([(0.0, 0.0, 0.0), *hues]) * 255).astype(np.uint8)
    return painted
