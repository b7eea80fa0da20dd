"""A DLRM whose tables are cut over devices, by rows or by tables, learns what it does on one.

Where tables are cut along all devices that share the batch, no device ever gets the rows of a large
table that others have, nor their gradients: devices exchange ids, vectors of a batch, gradients of
networks and whole small tables. (Devices that share the batch and have the same rows add up the
dense gradients of these.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.layers import EmbeddingTables
from lingo.learner.state import Learner, initial_state
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.optim import Adagrad
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.click.click_input import ClickInput
from tasks.click.model import Dlrm, Mlp
from tasks.click.task import ClickPrediction

pytestmark = pytest.mark.xdist_group("tables")  # one device computes once
SIZES, D, B, STEPS = (501, 3, 64, 230), 4, 16, 5
OVER_BATCH = {"vocab": ["data"]}  # tables are cut along the devices that share the batch
DATA = ClickInput.params(vocab_sizes=SIZES, num_numbers=3, batch_size=B).build()


class Cut(NamedTuple):
    """A mesh, and fields of the tables."""

    mesh: Params
    tables: dict[str, Any] = {}


CUTS = {
    "rows": Cut(Mesh.params(data=2, model=4)),
    "rows, along the batch": Cut(Mesh.params(data=8, weight_rules=OVER_BATCH)),
    "rows of large tables": Cut(Mesh.params(data=4, weight_rules=OVER_BATCH), {"whole_below": 100}),
    "looked-up rows": Cut(Mesh.params(data=8, weight_rules=OVER_BATCH), {"sparse_from": 100}),
    "looked-up rows, two devices add up": Cut(Mesh.params(data=2, model=4), {"sparse_from": 100}),
    "looked-up rows, other updates in parts": Cut(
        Mesh.params(data=2, model=4, shard_update=True), {"sparse_from": 100}
    ),
    "tables": Cut(Mesh.params(data=2, model=4), {"num_groups": 4}),
    "tables, along the batch": Cut(Mesh.params(data=4, weight_rules=OVER_BATCH), {"num_groups": 4}),
}


def learner(sizes: Sequence[int] = SIZES, **tables: Any) -> Learner:
    model = Dlrm.params(
        bottom=Mlp.params(output_dims=(8, D)),
        top=Mlp.params(output_dims=(8, 1)),
        tables=EmbeddingTables.params(**tables),
    )
    task = ClickPrediction.params(model=model, num_numbers=3, vocab_sizes=tuple(sizes))
    return Learner(task.build(), Adagrad.params(learning_rate=0.1).build(), specs=DATA.specs())


def losses(runtime: Params, **tables: Any) -> np.ndarray:
    one = learner(**tables)
    program = runtime.build().start(one, initial_state(one))
    batches = [DATA.batch(step) for step in range(STEPS)]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    return np.asarray(program.train(stacked)["scalars"]["loss/total"])


@functools.cache
def losses_of_one_device() -> np.ndarray:
    return losses(Local.params())


@pytest.mark.parametrize("name", CUTS)
def test_five_losses_are_those_of_one_device_with_whole_tables(name: str):
    cut, expected = CUTS[name], losses_of_one_device()
    assert len(set(expected.tolist())) == STEPS
    np.testing.assert_allclose(losses(cut.mesh, **cut.tables), expected, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CUTS if CUTS[name].mesh.weight_rules])
def test_no_device_receives_a_large_table(name: str):
    cut = CUTS[name]
    program = cut.mesh.build().compile_program(learner(**cut.tables), DATA.specs())
    sizes = [math.prod(c.array.shape) for c in collectives(parse(program.text), program.mesh)]
    assert 0 < max(sizes) <= B * len(SIZES) * D < min(n for n in SIZES if n > 100) * D


@pytest.mark.parametrize(("sparse_from", "grows"), [(None, True), (100, False)])
def test_bytes_that_a_step_writes_do_not_grow_with_sparse_tables(sparse_from, grows):
    """Of XLA's own account: besides the state, which is updated in place, and reports."""
    mesh, written = Mesh.params(data=4, weight_rules=OVER_BATCH).build(), []
    for num_rows in (4_000, 40_000):
        one = learner((num_rows, 3, 64, 2 * num_rows), sparse_from=sparse_from, whole_below=100)
        memory = mesh.compile_program(one, DATA.specs()).memory
        written.append(memory["temporaries"] + memory["outputs"] - memory["aliased"])
    assert (written[1] > 2 * written[0]) is grows
    assert grows or written[1] == written[0]
