"""Eight devices for every test of a mesh: JAX counts them once a process."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _devices():
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # starts them, before a test can ask for another number


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file():
    """JAX keeps what it has compiled; all files together would fill the memory."""
    yield
    jax.clear_caches()
