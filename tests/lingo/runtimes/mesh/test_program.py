"""A program on a mesh: its precision, texts, state and errors; `test_layers.py` trains on one."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.text import prompt_batch
from lingo.layers import Layer
from lingo.learner.state import initial_state
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.engine import explain_engine_errors
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import ProgramError, explain_program_errors


def program(built: Experiment) -> Any:
    return built.runtime.start(built.learner, initial_state(built.learner))


def on(params: Params, mesh: Params) -> Experiment:
    return params.copy().set(runtime=mesh).build()


def trained(built: Experiment, program: Any, steps: Sequence[int]) -> Any:
    """Does some steps in one call; returns the loss of each."""
    batches = [built.train_input.batch(step) for step in steps]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    return program.train(stacked)["scalars"]["loss/total"]


def test_bfloat16_is_as_near_as_its_bits(experiment, text):
    params = experiment(text)
    params.task.dtype = "bfloat16"
    local, mesh = on(params, Local.params()), on(params, Mesh.params(data=4, model=2))
    expected, found = (trained(b, program(b), range(4)) for b in (local, mesh))
    np.testing.assert_allclose(found, expected, rtol=2e-2)


class Sums(Layer):
    """Adds up the positions so far; has no step."""

    def __call__(self, x):
        return tf.cumsum(x, axis=1)


def test_it_searches_for_texts_as_one_device_does(experiment, text):
    params = experiment(text)
    layer = params.task.model.stack.layer
    params.task.model.stack.layer = [layer, layer.copy().set(attention=Sums)]
    prompts = [Prompt(np.arange(97, 98 + i, dtype=np.int32)) for i in range(3)]
    batch = prompt_batch(prompts, rows=range(3), end_id=258)
    built = Beam.params(max_tokens=5, num_beams=3, num_samples=2).build()
    found = [
        program(on(params, mesh)).decode(batch, built, seed=3)
        for mesh in (Local.params(), Mesh.params(data=4, model=2))
    ]
    np.testing.assert_array_equal(found[1]["tokens"], found[0]["tokens"])
    np.testing.assert_allclose(found[1]["log_probs"], found[0]["log_probs"], atol=1e-5)


@pytest.mark.parametrize("num_examples", [4, 3])
def test_it_predicts_what_one_device_does(experiment, text, num_examples):
    built = [on(experiment(text), mesh) for mesh in (Local.params(), Mesh.params(data=2))]
    batch = {k: v[:num_examples] for k, v in built[0].train_input.batch(0).items()}
    local, mesh = (program(one).predict(batch, weights="ema") for one in built)
    assert mesh["weights"].tolist() == [1.0] * num_examples
    np.testing.assert_array_equal(mesh["tokens"], local["tokens"])
    for name in ("log_probs", "target_log_probs"):
        np.testing.assert_allclose(mesh[name], local[name], rtol=1e-5)


def test_an_evaluation_starts_a_batch_only_when_the_one_before_is_computed(experiment, text):
    built = on(experiment(text), Mesh.params(data=8))
    mesh, were_ready, sums = program(built), [], {}
    evaluate = mesh._evaluate

    def spin(value):
        return jax.lax.fori_loop(0, 10**6, lambda _, x: x + value / 1e6, 0 * value)

    spin_all = jax.jit(lambda states: jax.tree.map(spin, states))

    def evaluate_slowly(*arguments):
        were_ready.append(all(array.is_ready() for array in jax.tree.leaves(sums)))
        return spin_all(evaluate(*arguments))

    mesh._evaluate = evaluate_slowly
    for _ in range(4):
        sums = mesh.evaluate(built.train_input.batch(0), sums=sums)
    assert were_ready == [True] * 4


def test_a_state_gives_its_memory_to_the_next(experiment, text):
    built = on(experiment(text), Mesh.params(data=8))
    several = program(built)
    trained(built, several, [0])
    old = several._state
    trained(built, several, [1])
    assert all(array.is_deleted() for array in jax.tree.leaves((old.weights, old.slots)))
    several._state = old
    with pytest.raises(ProgramError, match="given away to a step that failed"):
        several.state()


def test_graph_names_the_layers(experiment, text):
    built = on(experiment(text), Mesh.params(data=8))
    graph = program(built).graph(built.train_input.specs())
    assert any("stack/layers/0/attention" in op.name for op in graph.get_operations())


def test_layers_that_do_not_fit_are_found_when_it_compiles(experiment, text):
    built = on(experiment(text), Mesh.params(data=8))
    specs = built.train_input.specs()
    with pytest.raises(ValueError, match=r"labels.shape=\(8, 3\)"):
        program(built).compile(specs | {"targets": ((4, 3), "int32")}, num_steps=1)


def test_an_error_of_the_devices_is_one_of_the_program():
    def failing() -> None:
        with explain_program_errors("step 3"), explain_engine_errors():
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of\n  memory")

    with pytest.raises(ProgramError, match=r"^step 3: RESOURCE_EXHAUSTED: Out of memory$"):
        failing()


def test_one_process_feeds_all_rows(experiment, text):
    assert program(on(experiment(text), Mesh.params(data=8))).example_slice(5) == slice(0, 5)
