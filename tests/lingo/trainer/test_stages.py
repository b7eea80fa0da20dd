"""A run whose rows change their length resumes around the change as if it had not stopped."""

import json

import numpy as np
import pytest

from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed
from tests.lingo.trainer.staged_rows import CHANGE, staged

NUM_STEPS = 6


@pytest.fixture
def make(small):
    return lambda **fields: staged(small(**fields))


@pytest.fixture
def whole(make, run, weights, losses, tmp_path):
    """Losses and last tensors of a run without a break."""
    run(make(), tmp_path / "whole")
    return losses(tmp_path / "whole"), weights(tmp_path / "whole")


def assert_same(mine, yours):
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, yours[name], err_msg=name)


def examples(directory):
    """Returns the ids of the examples of every step, from its audit log."""
    lines = (directory / "audit.jsonl").read_text().splitlines()
    return [json.loads(line)["examples"] for line in lines]


@pytest.mark.usefixtures("once_compiled")
def test_a_run_resumed_at_any_step_is_the_same_bit_for_bit(
    make, run, weights, losses, whole, tmp_path
):
    for stop in range(1, NUM_STEPS):
        parts = tmp_path / f"stopped at {stop}"
        run(make(max_steps=stop), parts)
        assert run(make(), parts).step == NUM_STEPS
        assert losses(parts) == whole[0]
        assert_same(weights(parts), whole[1])


@pytest.mark.usefixtures("once_compiled")
@pytest.mark.parametrize("size", [2, 4, NUM_STEPS])
def test_a_loop_of_steps_ends_where_the_length_changes(
    make, run, weights, losses, whole, tmp_path, size
):
    run(make().set(steps_per_loop=size), tmp_path / "loops", audit=True)
    assert_same(weights(tmp_path / "loops"), whole[1])
    last = max(whole[0])
    assert losses(tmp_path / "loops")[last] == whole[0][last]
    sizes = [len(ids) for ids in examples(tmp_path / "loops")]
    assert sizes == [4] * CHANGE + [2] * (NUM_STEPS - CHANGE)
    numbers = [number for ids in examples(tmp_path / "loops") for number in ids]
    assert numbers == [*range(4 * CHANGE + 2 * (NUM_STEPS - CHANGE))]


def test_several_devices_compute_what_one_does(tmp_path):
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = str(ROOT / "tests/lingo/trainer/stages_everywhere.py")
    out = printed(program, str(tmp_path), cwd=tmp_path, env=env | QUICK_TO_COMPILE)
    found = json.loads(out.splitlines()[-1])
    assert found.keys() == {"local", "replicated", "mesh"}
    for runtime, losses in found.items():
        assert losses == pytest.approx(found["local"], rel=1e-4), runtime
    assert str(NUM_STEPS) in found["local"]
