"""What modules of 0.1 are called now: importing one by its old name raises one sentence with the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "actions": "models.actions",
    "agents.actor_critic": "agents.protocol",
    "agents.latent": "agents.latent_actor_critic",
    "agents.learning": "agents.learner",
    "agents.recurrent": "agents.recurrent_actor_critic",
    "agents.rollout": "agents.imagination",
    "agents.values": "agents.critic_outputs",
    "agents.wandering": "agents.dream_trainer",
    "artifact": "files.atomic_directory",
    "blocks": "models.token_blocks",
    "card": "checkpoints.card",
    "checkpoint": "checkpoints.world_model",
    "data.experience": "data.growing_replay",
    "data.gathering": "data.collector",
    "data.storage": "data.replay_storage",
    "deflated": "files.frame_compression",
    "envs.atari": "worlds.atari",
    "envs.catalog": "ids",
    "envs.crafter": "worlds.crafter",
    "envs.dmc": "worlds.dmc",
    "envs.library": "checkpoints.library",
    "envs.loading": "checkpoints.shared_models",
    "envs.minatar": "worlds.minatar",
    "envs.pixels": "worlds.rendered",
    "envs.real": "worlds.real",
    "envs.resize": "worlds.area_resize",
    "envs.source": "worlds.source",
    "envs.spaces": "worlds.spaces",
    "envs.watching": "worlds.watching",
    "evaluation.delta_figure": "evaluation.delta_tokens",
    "evaluation.divergence": "evaluation.prior_divergence",
    "evaluation.figures": "evaluation.fidelity_tables",
    "evaluation.listening": "evaluation.teacher_forcing",
    "evaluation.play": "evaluation.episodes",
    "fitting.parallel": "fitting.distributed",
    "fitting.prepared": "fitting.token_cache",
    "fitting.updater": "fitting.optimizer",
    "heads": "models.heads",
    "mixers": "models.mixers",
    "models.autoencoder": "models.reconstruction",
    "models.turns": "models.two_stage",
    "nn.batch_conv": "nn.frame_networks.storm",
    "nn.batch_norm": "nn.distributed_batch_norm",
    "nn.bidirectional": "nn.bidirectional_transformer",
    "nn.choices": "nn.action_distributions",
    "nn.conv": "nn.frame_networks.step_vq",
    "nn.frame_network": "nn.frame_networks.delta_iris",
    "nn.initial": "nn.initialization",
    "nn.normalizer": "nn.running_normalizer",
    "nn.operations": "nn.flop_counting",
    "nn.packed": "nn.cpu.packed",
    "nn.perceptual": "nn.lpips",
    "nn.plain": "nn.frame_networks.rem",
    "nn.ranks": "nn.distributed",
    "nn.resampling": "nn.frame_networks.resampling",
    "nn.residual": "nn.frame_networks.iris",
    "priors.draft": "priors.mask_schedules",
    "sequence.cache": "sequence.kv_cache",
    "sequence.layers": "sequence.transformer_layers",
    "tokenizers.codebook": "tokenizers.gradient_codebook",
    "tokenizers.discrete": "tokenizers.vqgan",
    "tokenizers.quantizer": "tokenizers.ema_codebook",
    "tokenizers.unit_quantizer": "tokenizers.cosine_codebook",
}
"""Below `dreamenvs`; `ids` has the worlds of what was `envs.catalog`, and `families` its families."""
_PACKAGE = "dreamenvs."


class _MovedFinder:
    """The last one asked: only for what nobody else finds."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing, or an error that names the new place."""
        new = MOVED.get(fullname.removeprefix(_PACKAGE)) if fullname.startswith(_PACKAGE) else None
        if new is not None:
            # Without the `name` of the error, which `from dreamenvs import x` would take for an optional module.
            raise ModuleNotFoundError(f"{fullname} is now {_PACKAGE}{new}")
        return None


def install() -> None:
    """Let imports of old names say what they are called now; `import dreamenvs` calls it."""
    if _MovedFinder not in sys.meta_path:
        sys.meta_path.append(_MovedFinder)
