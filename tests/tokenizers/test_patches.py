from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dreamenvs.tokenizers.patches import PatchesConfig, PatchTokenizer

pytestmark = pytest.mark.portable


def cells(count: int, colours: int = 5, seed: int = 0) -> Tensor:
    """Frames of 3 × 4 cells of 4 × 4 pixels, each of one of some colours."""
    generator = torch.Generator().manual_seed(seed)
    palette = torch.randint(256, (colours, 3), generator=torch.Generator().manual_seed(99), dtype=torch.uint8)
    chosen = palette[torch.randint(colours, (count, 3, 4), generator=generator)]
    return chosen.permute(0, 3, 1, 2).repeat_interleave(4, 2).repeat_interleave(4, 3)


def build(codes: int = 8, threshold: float = 4.0, size: int = 4) -> PatchTokenizer:
    torch.manual_seed(0)
    return PatchTokenizer(PatchesConfig(size=size, codes=codes, threshold=threshold, code_width=6), (3, 12, 16))


def test_frames_of_cells_come_back_to_the_bit() -> None:
    tokenizer, frames = build(), cells(20)
    assert tokenizer.grow(frames) == 5
    tokens = tokenizer.encode(frames)
    assert tokens.shape == (20, tokenizer.num_tokens)
    assert torch.equal(tokenizer.frames(tokens), frames)
    assert tokenizer.share_of_strange(frames) == 0


def test_the_token_is_the_nearest_patch() -> None:
    tokenizer = build(codes=16, threshold=0.0)
    tokenizer.grow(torch.randint(256, (2, 3, 12, 16), dtype=torch.uint8))
    frames = torch.randint(256, (6, 3, 12, 16), dtype=torch.uint8)
    given = tokenizer._cut(frames).double()
    distances = (given[:, None] - tokenizer.patches.double()).square().mean(2).sqrt()
    found = tokenizer.nearest(tokenizer._cut(frames))
    assert torch.equal(found.tokens, distances.argmin(1))
    torch.testing.assert_close(found.distances.double(), distances.min(1).values, rtol=1e-4, atol=1e-3)


def test_patches_never_move_and_the_same_frames_add_nothing() -> None:
    tokenizer = build()
    tokenizer.grow(cells(20, colours=3))
    before = tokenizer.patches[:3].clone()
    assert tokenizer.grow(cells(20, colours=3)) == 0
    assert tokenizer.grow(cells(20, colours=5, seed=1)) == 2
    assert torch.equal(tokenizer.patches[:3], before)
    assert int(tokenizer.kept) == 5


def test_no_more_patches_than_there_is_room_for() -> None:
    tokenizer = build(codes=2)
    assert tokenizer.grow(cells(20)) == 2
    assert tokenizer.encode(cells(20)).max() < 2
    assert 0 < tokenizer.share_of_strange(cells(20)) < 1


def test_what_is_near_is_not_kept() -> None:
    tokenizer, frames = build(threshold=4.0), cells(4, colours=2)
    tokenizer.grow(frames)
    assert tokenizer.grow(frames.clamp(3, 252) + torch.randint(0, 3, frames.shape, dtype=torch.uint8)) == 0


def test_noise_is_strange() -> None:
    tokenizer = build(codes=4)
    frames = torch.randint(256, (4, 3, 12, 16), dtype=torch.uint8)
    tokenizer.grow(frames)
    assert tokenizer.share_of_strange(torch.randint(256, frames.shape, dtype=torch.uint8)) == 1


def test_like_patches_begin_alike() -> None:
    tokenizer = build(codes=3, threshold=1.0)
    shades = torch.tensor([10, 30, 250], dtype=torch.uint8)
    frames = shades[:, None, None, None].expand(3, 3, 12, 16).contiguous()
    tokenizer.grow(frames)
    dark, grey, bright = (tokenizer.embed(tokenizer.encode(frame[None]))[0] for frame in frames)
    assert (dark - grey).norm() < (dark - bright).norm()


def test_frames_that_patches_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="patches of 5"):
        build(size=5)
