"""Every operation of a step is traced back to its layer."""

from collections.abc import Iterator

import pytest

from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.text_input import TextInput
from lingo.inspection.operation_origin import LayerFinder, OperationOrigin, fold_indices
from lingo.inspection.trace import trace
from lingo.layers.linear import Linear
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.optim.sgd import Sgd
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling


def experiment(stack: Params, **task: object) -> Experiment:
    return Experiment.params(
        task=LanguageModeling.params(model=LanguageModel.params(dim=4, stack=stack), **task),
        train_input=TextInput.params(batch_size=2, length=4),
        optimizer=Sgd.params(learning_rate=0.1),
    ).build()


def layer() -> Params:
    return TransformerLayer.params(attention=Attention.params(num_heads=2))


def operations(made: Experiment) -> Iterator[tuple[str, str]]:
    """Yields (kind, name) of the operations of a training step and of all its loops."""
    definition = trace(made).train.as_graph_def()
    yield from ((node.op, node.name) for node in definition.node)
    for function in definition.library.function:
        yield from ((node.op, node.name) for node in function.node_def)


def products(made: Experiment) -> set[OperationOrigin]:
    finder = LayerFinder(made.task)
    return {finder.find(name) for kind, name in operations(made) if kind == "Einsum"}


@pytest.mark.parametrize(
    ("stack", "numbers", "chunk_size"),
    [
        (Stack.params(layer=layer(), num_layers=2), ["0", "1"], None),
        (Stack.params(layer=Remat.params(layer=layer()), num_layers=2), ["0", "1"], None),
        (Repeat.params(layer=layer(), num_layers=3), ["[0:3]"], None),
        (Repeat.params(layer=Remat.params(layer=layer()), num_layers=3), ["[0:3]"], 2),
    ],
    ids=["stack", "stack, remat", "scan", "scan, remat, chunks"],
)
def test_every_matrix_product_has_its_layer(stack, numbers, chunk_size):
    layers = [f"model/stack/layers/{n}/{part}" for n in numbers for part in ("attention", "ffn")]
    expected = {
        OperationOrigin(p, w) for p in ("forward", "backward") for w in [*layers, "model/head"]
    }
    assert products(experiment(stack, chunk_size=chunk_size)) == expected


def test_the_gradient_of_a_lookup_has_its_layer():
    made = experiment(Stack.params(layer=layer(), num_layers=1))
    scatters = [name for kind, name in operations(made) if kind == "ScatterNd"]
    found = [LayerFinder(made.task).find(name) for name in scatters]
    assert found == [OperationOrigin("backward", "model/embedding")]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("jit(run)/while/body/call_tf/local/layers/1/mul", OperationOrigin("forward", "layers/1")),
        ("jit(run)/call_tf/a/local/layers/1/mul;local/b", OperationOrigin("forward", "layers/1")),
        (
            "PartitionedCall/gradient_tape/local/layers/0_1/mul/Mul",
            OperationOrigin("backward", "layers/0"),
        ),
        ("call_tf/update/cond", OperationOrigin("update", "")),
        ("call_tf/update/gradients/Sum", OperationOrigin("update", "")),
        ("call_tf/loss_denominators/Sum_1", OperationOrigin("loss_denominators", "")),
        ("call_tf/local/SparseSoftmax", OperationOrigin("forward", "")),
        ("layers/1/mul", OperationOrigin("forward", "layers/1")),
        ("call_tf/Sum", OperationOrigin("", "")),
        ("", OperationOrigin("", "")),
    ],
)
def test_names_are_read_without_what_compilers_add(name, source):
    stack = Stack.params(layer=Linear.params(dim=2, output_dim=2), num_layers=2).build()
    assert LayerFinder(stack).find(name) == source


def test_what_may_be_of_several_layers_is_said_to_be_of_all():
    stack = Stack.params(layer=layer(), num_layers=2).build(dim=4)
    assert LayerFinder(stack).find("local/attention/mul") == OperationOrigin(
        "forward", "layers/*/attention"
    )


def test_alike_layers_fold_into_one():
    assert fold_indices("stack/layers/3/ffn") == "stack/layers/*/ffn"
    assert fold_indices("stack/layers/[0:4:2]/ffn") == "stack/layers/*/ffn"
    assert fold_indices("") == ""
