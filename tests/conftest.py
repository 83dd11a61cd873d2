from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-onednn", action="store_true", help="compute without oneDNN and without weights packed through it"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-onednn"):
        from dreamenvs.nn.cpu import packed

        torch.backends.mkldnn.set_flags(False)
        packed.AVAILABLE = False


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
