from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-onednn", action="store_true", help="compute without oneDNN and without weights packed through it"
    )
    parser.addoption("--threads", type=int, help="compute with so many threads, and compare one with as many, not two")


PERSONAL = ("DREAMENVS_PATH", "DREAMENVS_LPIPS", "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")


def pytest_configure(config: pytest.Config) -> None:
    # Which dreams and weights somebody keeps at home, and how a shell is set up, is no business of a test.
    for name in PERSONAL:
        os.environ.pop(name, None)
    home = tempfile.TemporaryDirectory()
    config.add_cleanup(home.cleanup)
    os.environ["XDG_DATA_HOME"] = os.environ["LOCALAPPDATA"] = home.name
    if config.getoption("--without-onednn"):
        from dreamenvs.nn.cpu import packed

        torch.backends.mkldnn.set_flags(False)
        packed.AVAILABLE = False
    if threads := config.getoption("--threads"):
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes that tests start
        torch.set_num_threads(threads)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "threads" in metafunc.fixturenames:
        counts = [1, metafunc.config.getoption("--threads") or 2]
        # The bits of a row depend on the threads where weights are not packed.
        alone = metafunc.config.getoption("--without-onednn")
        metafunc.parametrize("threads", counts[:1] if alone else counts, indirect=True)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads the test shall set once it has prepared; put back afterwards."""
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def frames_agree() -> Callable[[Tensor, Tensor], bool]:
    """`tests.rounding.frames_agree`."""
    from tests.rounding import frames_agree

    return frames_agree


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Whichever tests came before: one that draws without a seed of its own draws the same."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def drawing() -> None:
    """Skips where MuJoCo cannot draw, and says what is missing."""
    pytest.importorskip("dm_control", exc_type=ImportError)
    from dreamenvs.worlds.dmc import DMCConfig, DMCEnv, RenderingError

    try:
        env = DMCEnv(DMCConfig(size=8), "pendulum", "swingup")
        env.reset(seed=0)
        env.close()
    except RenderingError as error:
        pytest.skip(str(error))
