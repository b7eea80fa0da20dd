"""What is said of a compiled program."""

import json
from collections.abc import Iterator

import pytest

from lingo.config.params import Params
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.inspection.program import (
    LayerFinder,
    OperationOrigin,
    Row,
    UnreadableProgram,
    as_json,
    fold_indices,
    report,
    seconds,
    text,
)
from lingo.inspection.trace import trace
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.mesh.topology import topology
from lingo.optim.sgd import Sgd
from lingo.runtimes.program import CompiledProgram
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

MEMORY = {"arguments": 4096, "outputs": 2048, "aliased": 2000, "temporaries": 100}
ROWS = "replica_groups={{0,1},{2,3}}, to_apply=%add"


def task() -> Layer:
    return Stack.params(layer=Linear.params(dim=2, output_dim=2), num_layers=3).build()


def reduction(number: int, op_name: str, groups: str = ROWS) -> str:
    return (
        f"  %r{number} = f32[256]{{0}} all-reduce(%x), {groups},"
        f' metadata={{op_name="jit(f)/call_tf/{op_name}"}}\n'
    )


def program(lines: str, *, loop: str = "", num_steps: int = 1) -> CompiledProgram:
    module = (
        f"HloModule f\n{loop}\nENTRY %main (x: f32[256]) -> f32[256] {{\n"
        f"  %x = f32[256]{{0}} parameter(0)\n{lines}}}\n"
    )
    mesh = topology({"data": 2, "model": 2})
    return CompiledProgram(mesh, module, num_steps, MEMORY, 1.25, 2.0)


def test_tensors_of_one_layer_that_go_the_same_way_are_a_row():
    lines = (
        reduction(1, "local/layers/0/einsum")
        + reduction(2, "local/layers/0/add")
        + reduction(3, "gradient_tape/local/layers/0/einsum")
        + reduction(4, "local/layers/1/einsum", "replica_groups={{0,2},{1,3}}")
    )
    assert report(program(lines), task()).rows == [
        Row("all-reduce", "f32", ("model",), "forward", "layers/0", 2, 2048),
        Row("all-reduce", "f32", ("model",), "backward", "layers/0", 1, 1024),
        Row("all-reduce", "f32", ("data",), "forward", "layers/1", 1, 1024),
    ]


def test_steps_that_are_done_at_once_share_what_they_exchange():
    lines = "".join(reduction(i, "local/layers/0/einsum") for i in range(6))
    (row,) = report(program(lines, num_steps=3), task()).rows
    assert (row.tensors, row.bytes) == (2, 2048)


def test_a_table_has_the_largest_first_and_alike_layers_as_one():
    lines = reduction(0, "update/Sum", "replica_groups={{0,3},{1,2}}")
    lines += "".join(reduction(i, f"local/layers/{i}/einsum") for i in range(1, 3))
    head, _, columns, *table = text(report(program(lines), task())).splitlines()
    assert head == "on one of 4 devices: data=2, model=2"
    assert columns.split() == ["kind", "tensors", "type", "bytes", "axes", "phase", "layer"]
    assert [line.split() for line in table[:3]] == [
        ["all-reduce", "2", "f32", "2", "KiB", "model", "forward", "layers/*"],
        ["all-reduce", "1", "f32", "1", "KiB", "across", "update", "-"],
        ["all-reduce", "in", "all", "3", "3", "KiB"],
    ]
    assert table[4:] == [
        "memory   4 KiB arguments, 48 B new outputs, 100 B temporaries",
        "FLOPs    0, of products and convolutions",
    ]
    assert seconds(program("")) == "seconds  1.2 to trace, 2.0 to compile\n"


def test_loops_of_unknown_length_are_marked():
    loop = (
        "%body (x: f32[256]) -> f32[256] {\n  %x = f32[256]{0} parameter(0)\n"
        + reduction(1, "local/layers/0/einsum")
        + "}\n%condition (x: f32[256]) -> pred[] {\n  ROOT %x = f32[256]{0} parameter(0)\n}\n"
    )
    line = "  ROOT %w = f32[256]{0} while(%x), condition=%condition, body=%body\n"
    shown = text(report(program(line, loop=loop), task()))
    assert "1*" in shown
    assert "* at least: in a loop of unknown length" in shown


def test_the_share_of_the_update_is_of_operations_and_of_bytes():
    gather = (
        "  %g = f32[256]{0} all-gather(%x), replica_groups={{0,2},{1,3}}, dimensions={0},"
        ' metadata={op_name="jit(f)/call_tf/update/Identity"}\n'
    )
    multiply = '  %{0} = f32[256]{{0}} multiply(%x, %x), metadata={{op_name="jit(f)/{1}/mul"}}\n'
    along_data = "replica_groups={{0,2},{1,3}}, to_apply=%add"
    lines = reduction(1, "gradient_tape/local/layers/0/einsum", along_data) + gather
    lines += "".join(multiply.format(f"m{i}", "local/layers/0") for i in range(3))
    lines += multiply.format("m3", "update")
    found = report(program(lines), task())
    assert (found.operations, found.update_operations, found.update_bytes) == (1024, 256, 1024)
    shown = text(found)
    assert "update   25.0% of 1024 operations, 50.0% of the bytes exchanged\n" in shown
    assert "no reduce-scatter: 1 tensors, summed whole, then cut in shards\n" in shown
    scattered = text(report(program(lines.replace("all-reduce(", "reduce-scatter(")), task()))
    assert "reduce-scatter: 1 tensors, devices sum their own shards of them\n" in scattered
    assert "no reduce-scatter" not in scattered
    other = (
        reduction(1, "gradient_tape/local/layers/0/einsum")
        + gather
        + multiply.format("m", "update")
    )
    assert "reduce-scatter" not in text(report(program(other), task()))  # not along the same axis


def test_a_program_without_exchange_says_so():
    shown = text(report(program("  ROOT %y = f32[256]{0} copy(%x)\n"), task()))
    assert "the devices exchange nothing" in shown


def test_a_text_of_another_form_is_refused_as_such():
    unknown = "  %r = f32[2]{0} all-reduce(%missing), replica_groups={{0,1},{2,3}}\n"
    with pytest.raises(UnreadableProgram, match="cannot be read: KeyError: 'missing'"):
        report(program(unknown), task())


def test_json_has_every_layer_and_all_totals():
    lines = "".join(reduction(i, f"local/layers/{i}/einsum") for i in range(3))
    lines += reduction(3, "x", "replica_groups={{0,3},{1,2}}")
    shown = json.loads(json.dumps(as_json(report(program(lines), task()))))
    assert shown["devices"] == 4
    assert shown["mesh"]["model"] == 2
    layers = [row["layer"] for row in shown["collectives"]]
    assert layers == ["layers/0", "layers/1", "layers/2", ""]
    assert [row["axes"] for row in shown["collectives"]] == [["model"]] * 3 + [None]
    assert shown["bytes_by_kind"] == {"all-reduce": 4096}
    assert (shown["memory"], shown["trace_seconds"]) == (MEMORY, 1.25)


# ---- every operation of a step is traced back to its layer


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
