"""A mesh's fields and errors; the precision, texts and state of its program.

`test_layers.py` trains on one.
"""

import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.beam import Beam
from lingo.decode.text import prompt_batch
from lingo.layers import Layer
from lingo.layers.context import annotate
from lingo.layers.feed_forward import FeedForward
from lingo.learner.state import initial_state
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import AXES
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.engine import explain_engine_errors
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import ProgramError, explain_program_errors
from tests.lingo.runtimes.child import printed


def test_every_recipe_can_be_chosen():
    assert set(typing.get_args(typing.get_type_hints(Mesh)["rules"])) == set(RECIPES)


def test_the_mesh_has_an_axis_for_each_field():
    sizes = dict(zip(AXES, (2, 3, 5, 7, 2, 3, 11), strict=True))
    mesh = Mesh.params(**sizes).build().topology()
    assert mesh.axes == AXES
    assert mesh.sizes == tuple(sizes.items())


def test_rules_are_the_recipe_with_its_changes():
    mesh = Mesh.params(weight_rules={"mlp": ["model", "data"]}, activation_rules={"new": []})
    rules, recipe = mesh.build().axis_rules(), RECIPES["1d"]
    assert rules.weights == {**recipe.weights, "mlp": ("model", "data")}
    assert rules.activations == {**recipe.activations, "new": ()}


def test_a_mesh_axis_that_is_none_is_refused():
    with pytest.raises(ParamError, match=r"weight_rules\['mlp'\]: 'modle' is not an axis.*'model'"):
        Mesh.params(weight_rules={"mlp": ["modle"]}).build()


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_without_devices_is_refused(axis):
    with pytest.raises(ParamError, match=axis):
        Mesh.params(**{axis: 0}).build()


def test_sizes_that_do_not_divide_are_refused_where_they_must(experiment, text):
    params = experiment(text).set(runtime=Mesh.params(model=4, uneven=False))
    with pytest.raises(ParamError, match="'vocab' of 259 does not divide into 4 equal parts"):
        params.build()


def test_so_are_rows_that_do_not_divide(experiment: Callable[..., Params], text: str) -> None:
    params = experiment(text).set(runtime=Mesh.params(data=4, uneven=False), accumulation_steps=2)
    params.train_input.batch_size = 8
    params.build()
    params.train_input.batch_size = 12
    with pytest.raises(ParamError, match="batch_size=12 does not divide into 8 equal parts"):
        params.build()
    params.runtime.uneven = True
    params.build()


@pytest.mark.parametrize(("name", "near"), [("lenght", ".*'length'"), ("frames", "")])
def test_a_rule_that_no_layer_asks_for_is_refused(experiment, text, name, near):
    params = experiment(text).set(runtime=Mesh.params(sequence=2, activation_rules={name: []}))
    with pytest.raises(ParamError, match=rf"activation_rules\['{name}'\]: no layer names{near}"):
        params.build()


class Frames(FeedForward):
    """A layer with an axis of its own, which no weight has."""

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        return annotate(super().__call__(x, **inputs), "batch", "frames", None)


def test_an_axis_of_a_users_own_layer_has_a_rule(experiment, text):
    rules = {"frames": ["sequence"]}
    params = experiment(text).set(runtime=Mesh.params(sequence=2, activation_rules=rules))
    params.task.model.stack.layer.ffn = Frames
    params.build()


def test_rules_that_cut_an_activation_twice_are_told_with_the_layer(experiment, text):
    rules = {"length": ["model"]}
    built = experiment(text).set(runtime=Mesh.params(model=2, activation_rules=rules)).build()
    where = "runtime: stack/layers/0/attention: the mesh axis 'model' of 2 devices would cut"
    with pytest.raises(ParamError, match=where):
        built.runtime.compile_program(built.learner, built.train_input.specs())


def test_too_few_devices_are_said_with_what_to_do(experiment, text):
    built = experiment(text).set(runtime=Mesh.params(data=16)).build()
    with pytest.raises(ParamError, match="the mesh has 16 devices, 8 are here: --devices=16 makes"):
        built.runtime.start(built.learner, initial_state(built.learner))


def test_more_devices_than_one_process_can_have_are_not_suggested(experiment, text):
    built = experiment(text).set(runtime=Mesh.params(data=10**4)).build()
    with pytest.raises(ParamError, match="8 are here: --devices makes at most 4096 of the"):
        built.runtime.start(built.learner, initial_state(built.learner))


def test_other_devices_than_there_are_come_too_late():
    mesh = Mesh.params(data=2).build()
    mesh.make_devices(8)
    with pytest.raises(ParamError, match="devices=4, but JAX has already started with 8"):
        mesh.make_devices(4)


def test_without_jax_a_mesh_is_shown_and_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['jax'] = None\n"
        "import lingo\n"
        "from lingo.config.params import ParamError\n"
        "built = lingo.get('lm.source.tiny', 'runtime=Mesh(data=2)').build()\n"
        "assert 'tensorflow' not in sys.modules\n"
        "try:\n"
        "    built.runtime.make_devices(2)\n"
        "except ParamError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'lingo-tf[mesh]'" in printed("-c", code)


def test_jax_finds_gpus_before_tensorflow_is_loaded(tmp_path):
    plugin = tmp_path / "jax_plugins" / "of_a_gpu" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("import sys\ndef initialize(): print('tensorflow' in sys.modules)\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "import lingo\n"
        "lingo.get('lm.source.tiny', 'runtime=Mesh').build().runtime.join()\n"
        "print('joined')\n"
    )
    assert printed("-c", code) == "False\njoined\n"


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
    with pytest.raises(ProgramError, match="a step that failed has reused its memory"):
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
