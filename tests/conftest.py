from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def drawing() -> None:
    """Skips where MuJoCo cannot draw, and says what is missing."""
    pytest.importorskip("dm_control", exc_type=ImportError)
    from dreamenvs.envs.dmc import DMCConfig, DMCEnv, RenderingError

    try:
        env = DMCEnv(DMCConfig(size=8), "pendulum", "swingup")
        env.reset(seed=0)
        env.close()
    except RenderingError as error:
        pytest.skip(str(error))
