"""The layers of experiments name axes that the recipes have rules for.

`test_layers.py` and `test_moe.py` compute gradients and evaluations on a mesh.
"""

from typing import Any, get_args

from lingo.config import registry
from lingo.config.lazy import tf
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import TrainState, map_shapes
from lingo.learner.step import train_step
from lingo.mesh.rules import Recipe
from lingo.runtimes.mesh.annotation import MeshPlacement
from lingo.runtimes.mesh.mesh import Mesh

RECIPES = get_args(Recipe)


def gradient(tape: Any, target: Any, sources: Any) -> Any:
    """Returns values in place of gradients, which take the longest to trace, with their axes."""
    weights, rows = sources
    return {where: None if where in rows else weight for where, weight in weights.items()}, rows


def test_every_kind_of_experiment_traces_on_a_mesh(kind_of_experiment, monkeypatch):
    monkeypatch.setattr(tf.GradientTape, "gradient", gradient)
    recipe = RECIPES[len(kind_of_experiment) % len(RECIPES)]  # any, not the same for all
    params = registry.get(kind_of_experiment).params
    for stack in params.all(Stack):
        stack.num_layers = len(stack.layer) if isinstance(stack.layer, list) else 1
    params.runtime = Mesh.params(data=2, expert=2, sequence=2, model=2, rules=recipe)
    built = params.build()
    learner, layout = built.learner, built.runtime.layout(built.learner)
    state = map_shapes(learner, lambda shape: tf.TensorSpec(shape, tf.float32))
    state = state._replace(step=tf.TensorSpec([], tf.int32))
    specs = built.train_input.specs().items()
    batch = {array: tf.TensorSpec(shape, dtype) for array, (shape, dtype) in specs}

    def step(state: TrainState, batch: dict[str, tf.Tensor]) -> None:
        train_step(learner, state, batch, MeshPlacement(layout))

    graph = tf.function(step, autograph=False).get_concrete_function(state, batch).graph
    assert "XlaSharding" in {op.type for op in graph.get_operations()}
