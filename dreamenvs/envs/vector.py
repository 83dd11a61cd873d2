"""DreamVectorEnv: many dreams as one `gymnasium.vector.VectorEnv`, one forward pass a step whatever `num_envs` is."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from dreamenvs.checkpoints.library import warn_if_broken
from dreamenvs.checkpoints.shared_models import CheckpointLike, open_world
from dreamenvs.checkpoints.world_model import Checkpoint
from dreamenvs.dream import Dream, ObservationType, Rows
from dreamenvs.envs.rendering import to_rgb
from dreamenvs.models.actions import action_space, check_actions
from dreamenvs.worlds.spaces import check_choice, observation_space

Output = Literal["numpy", "torch"]
RowIndices = Sequence[int] | NDArray[np.integer[Any]] | Tensor

DEFAULT_HORIZON = 500


class Snapshot(NamedTuple):
    """A moment of a vector environment: its rows, and which of them have ended and wait for a reset."""

    rows: Rows[Any]
    finished: Tensor  # (B,) bool


class DreamVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` imagined episodes of one learned world.

    >>> import dreamenvs
    >>> envs = dreamenvs.DreamVectorEnv(4, checkpoint="dreamenvs/STEPVQ-Pong-v0", obs_type="tokens")
    >>> envs.reset(seed=0)[0].shape
    (4, 256)

    Args:
        num_envs: How many rows are dreamed side by side.
        checkpoint: An environment id, the path of a checkpoint directory, or what `dreamenvs.load` returned.
        horizon: Imagined steps after which a row is truncated.
        device: Where the model runs, such as `"cpu"` or `"cuda:0"`.
        autoreset_mode: What happens to a row whose episode ended; an `AutoresetMode` or its value.
        obs_type: `"rgb"` frames, `"latent"` features (what a latent policy sees) or the frame's `"tokens"`.
        output: `"numpy"` arrays, or `"torch"` tensors on the device with no copy.
        render_mode: `"rgb_array"` or None.
        temperature: Of the sampled tokens: 1 as learned, 0 the most likely frame.
        max_episode_steps: Gymnasium's own name for a limit; the smaller of it and `horizon` counts.

    A row in which the model produces NaN or infinity is truncated with reward 0, shows its last finite frame, and says
    so in `infos["error"]`; the other rows go on.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's own declaration)
        "render_modes": ["rgb_array"],
        "render_fps": 15,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        checkpoint: CheckpointLike,
        horizon: int = DEFAULT_HORIZON,
        device: str | torch.device = "cpu",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        obs_type: ObservationType = "rgb",
        output: Output = "numpy",
        render_mode: str | None = None,
        temperature: float = 1.0,
        max_episode_steps: int | None = None,
    ) -> None:
        if not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise ValueError(f"num_envs must be a whole number, at least 1, not {num_envs!r}")
        if not isinstance(horizon, int | np.integer) or horizon < 1:
            raise ValueError(f"horizon must be a whole number of steps, at least 1, not {horizon!r}")
        check_choice("obs_type", obs_type, ObservationType)
        check_choice("output", output, Output)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be 'rgb_array' or None, not {render_mode!r}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = deepcopy(type(self).metadata) | {"autoreset_mode": self.autoreset_mode}
        self.metadata["torch"] = output == "torch"
        self.render_mode = render_mode
        self.obs_type = obs_type
        self.output = output
        if not isinstance(checkpoint, Checkpoint):
            warn_if_broken(checkpoint)
        world = open_world(checkpoint, device)
        horizon = min(horizon, max_episode_steps or horizon)
        self.world_name = world.name
        self.dream: Dream[Any] = Dream(
            world.model, world.starts, num_rows=int(num_envs), horizon=int(horizon), temperature=temperature
        )
        self.num_envs = int(num_envs)
        self.single_observation_space = observation_space(world.model, obs_type)
        self.single_action_space = action_space(world.model.spec.actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._finished: Tensor | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes: in all rows, or in those of `options["reset_mask"]`.

        Row i under `seed=s` is the single environment under `seed=s+i`, whatever `num_envs` is. Without a seed, rows
        go on with their own randomness.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = self._row_seeds(seed)
        mask = self._reset_mask(options)
        if self._finished is None:
            if not mask.all():
                raise ResetNeeded("the first reset begins all rows: call reset without a reset_mask before one with it")
            draws = self.np_random.integers(2**62, size=self.num_envs)
            self.dream.reset([int(draw) if seed is None else seed for seed, draw in zip(seeds, draws, strict=True)])
            self._finished = torch.zeros(self.num_envs, dtype=torch.bool, device=self.dream.device)
        else:
            chosen = np.flatnonzero(mask)
            for_seeding = {int(row): value for row in chosen if (value := seeds[row]) is not None}
            self.dream.seed_rows(self._indices(list(for_seeding)), list(for_seeding.values()))
            self.dream.reset_rows(self._indices(chosen))
            self._finished = self._finished.index_fill(0, self._indices(chosen), False)
        return self._export(self.dream.observation(self.obs_type)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance every row by one imagined step. All returned arrays are new."""
        finished = self._waiting()
        checked = check_actions(self.dream.model.spec.actions, actions, self.num_envs).to(self.dream.device)
        waiting = finished.nonzero()[:, 0] if finished.any() else None
        if waiting is not None and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"rows {waiting.tolist()} have ended and autoreset is disabled: "
                'call reset(options={"reset_mask": mask}) with a mask of these rows before the next step'
            )
        rewards, terminated, truncated, failed = self.dream.step(checked, resetting=waiting)
        ended = terminated | truncated
        infos = self._errors(failed)
        observation = self.dream.observation(self.obs_type)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            infos = self._begin_again(ended, observation, infos)
            self._finished = torch.zeros_like(ended)
        else:
            self._finished = ended
        if self.output == "numpy":
            rewards = rewards.double()  # Gymnasium's own vector environments give float64
        return (
            self._export(observation),
            self._export(rewards),
            self._export(terminated),
            self._export(truncated),
            infos,
        )

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """One H×W×3 frame for each row, or None where no `render_mode` was chosen."""
        if self.render_mode is None:
            return None
        self._waiting()
        return tuple(to_rgb(self.dream.observation("rgb").cpu().numpy()))

    def snapshot(self) -> Snapshot:
        """The present moment of all rows with their randomness; what follows from it follows again after `restore`."""
        finished = self._waiting()
        return Snapshot(self.dream.snapshot(), finished.clone())

    def restore(self, snapshot: Snapshot, rows: RowIndices | None = None, source: RowIndices | None = None) -> Any:
        """Go back to a snapshot and return the observation; a restored row repeats its future exactly.

        Args:
            snapshot: What `snapshot` returned, of this environment or of another one of the same dream.
            rows: The rows to restore, all by default.
            source: The snapshot's rows to put there, the same ones by default; one row may fill many.
        """
        finished = self._waiting()
        whole = torch.arange(self.num_envs, device=finished.device)
        into = whole if rows is None else self._indices(rows)
        taken = into if source is None else self._indices(source)
        self.dream.restore(snapshot.rows, into, taken)
        self._finished = finished.index_copy(0, into, snapshot.finished.to(finished.device)[taken])
        return self._export(self.dream.observation(self.obs_type))

    def _waiting(self) -> Tensor:
        if self._finished is None:
            raise ResetNeeded("this environment has not begun: call reset before step, render, snapshot or restore")
        return self._finished

    def _begin_again(self, ended: Tensor, observation: Tensor, infos: dict[str, Any]) -> dict[str, Any]:
        """SAME_STEP: reset the ended rows, put their first frames into `observation`, keep the final ones in infos."""
        rows = ended.nonzero()[:, 0]
        final = observation.index_select(0, rows)
        self.dream.reset_rows(rows)
        observation.index_copy_(0, rows, self.dream.observation(self.obs_type, rows))
        mask = self._export(ended)
        final_info = {"final_info": infos, "_final_info": _copy(mask)}
        if self.output == "torch":
            dense = torch.zeros_like(observation).index_copy_(0, rows, final)
            return {"final_obs": dense, "_final_obs": _copy(mask), **final_info}
        sparse = np.full(self.num_envs, None, dtype=object)
        for row, frame in zip(rows.tolist(), final.cpu().numpy(), strict=True):
            sparse[row] = frame.copy()
        return {"final_obs": sparse, "_final_obs": _copy(mask), **final_info}

    def _errors(self, failed: Tensor) -> dict[str, Any]:
        if not failed.any():
            return {}
        messages = np.full(self.num_envs, None, dtype=object)
        for row in failed.nonzero()[:, 0].tolist():
            messages[row] = (
                f"the model of {self.world_name} produced NaN or infinity at imagined step "
                f"{int(self.dream.rows.ages[row])}: this row was ended and shows its last finite frame"
            )
        return {"error": messages, "_error": failed.cpu().numpy()}

    def _export(self, tensor: Tensor) -> Any:
        return tensor if self.output == "torch" else tensor.cpu().numpy()

    def _indices(self, rows: RowIndices) -> Tensor:
        indices = torch.as_tensor(rows, dtype=torch.int64).to(self.dream.device).reshape(-1)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()):
            raise ValueError(f"rows are numbered from 0, so {indices.tolist()} cannot be taken")
        return indices

    def _row_seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + row for row in range(self.num_envs)]
        seeds = [None if value is None else int(value) for value in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed has {len(seeds)} entries for num_envs={self.num_envs}")
        return seeds

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        # The mask is read and left in place: RecordEpisodeStatistics reads it again after us.
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a NumPy array of booleans, not {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask'] needs shape ({self.num_envs},) and a True in it, not {mask}")
        return mask


def _copy(mask: Any) -> Any:
    return mask.clone() if isinstance(mask, Tensor) else mask.copy()
