"""The state-space dual (Dao and Gu, 2024, "Transformers are SSMs"): one linear recurrence, step by step or in chunks.

    S[t] = exp(dt[t] a) S[t-1] + dt[t] b[t] x[t]        y[t] = c[t] S[t]

Shapes: x (B, T, heads, P), dt (B, T, heads) positive, a (heads,) negative, b and c (B, T, groups, N), state
(B, heads, N, P). The state is stored N before P, the transpose of the paper's. Heads share b and c within a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor


def ssd_recurrent(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, heads, P) and the final state, by the recurrence itself."""
    per_group = x.shape[2] // b.shape[2]
    b = repeat(b, "B T g n -> B T (g h) n", h=per_group)
    c = repeat(c, "B T g n -> B T (g h) n", h=per_group)
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = decay * state + b[:, t, :, :, None] * (dt[:, t, :, None] * x[:, t])[..., None, :]
        outputs.append((c[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state


def segment_sums(steps: Tensor) -> Tensor:
    """(..., T, T) sums of steps (..., T) over j+1..i, and -inf where j > i."""
    # Differences of a long float32 cumsum lose the digits that the exponential needs, so they are taken in float64.
    total = steps.double().cumsum(-1)
    sums = (total[..., :, None] - total[..., None, :]).to(steps.dtype)
    ahead = torch.ones(sums.shape[-2:], dtype=torch.bool, device=steps.device).triu(1)
    return sums.masked_fill(ahead, -torch.inf)


def ssd_chunked(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """`ssd_recurrent` with matrix products: quadratic inside chunks, recurrent between them."""
    length, groups = x.shape[1], b.shape[2]
    chunk = min(chunk, length)
    # Padded steps have dt = 0: they neither decay the state nor add to it.
    padding = -length % chunk
    x, dt, b, c = (F.pad(part, (0, 0) * (part.ndim - 2) + (0, padding)) for part in (x, dt, b, c))
    x = rearrange(x * dt[..., None], "B (k q) (g h) p -> B k g h q p", q=chunk, g=groups)
    log_decay = rearrange(dt * a, "B (k q) (g h) -> B k g h q", q=chunk, g=groups)
    b, c = (rearrange(part, "B (k q) g n -> B k g 1 q n", q=chunk) for part in (b, c))

    # 1. Within each chunk, as masked attention.
    within = segment_sums(log_decay).exp()  # (B, k, g, h, q, q)
    outputs = ((c @ b.mT) * within) @ x

    # 2. What each chunk adds to the state by its end.
    to_end = within[..., -1, :, None]  # (B, k, g, h, q, 1)
    added = b.mT @ (x * to_end)  # (B, k, g, h, n, p)

    # 3. The states between chunks: the same recurrence, one step a chunk.
    since_start = log_decay.cumsum(-1)  # (B, k, g, h, q)
    per_chunk = F.pad(rearrange(since_start[..., -1], "B k g h -> B g h k"), (1, 0))
    between = segment_sums(per_chunk).exp()  # (B, g, h, k+1, k+1)
    starts = torch.cat((rearrange(state, "B (g h) n p -> B 1 g h n p", g=groups), added), 1)
    states = torch.einsum("B g h i j, B j g h n p -> B i g h n p", between, starts)

    # 4. What each chunk reads from the state before it.
    outputs = outputs + (c @ states[:, :-1]) * since_start.exp()[..., None]
    outputs = rearrange(outputs, "B k g h q p -> B (k q) (g h) p")[:, :length]
    return outputs, rearrange(states[:, -1], "B g h n p -> B (g h) n p")
