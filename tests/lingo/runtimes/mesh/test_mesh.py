"""A mesh's fields: what they mean, what is refused, and what a missing engine or device says."""

import typing
from collections.abc import Callable
from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.context import annotate
from lingo.layers.feed_forward import FeedForward
from lingo.learner.state import initial_state
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import AXES
from lingo.runtimes.mesh.mesh import Mesh
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
