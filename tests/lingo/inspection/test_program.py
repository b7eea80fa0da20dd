"""What is said of a compiled program."""

import json

import pytest

from lingo.inspection.program import Row, UnreadableProgram, as_json, report, seconds, text
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.stacks.stack import Stack
from lingo.mesh.topology import topology
from lingo.runtimes.compiled_program import CompiledProgram

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
        "memory   4 KiB arguments, 48 B outputs beside them, 100 B temporaries",
        "FLOPs    0, of matrix products",
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
    assert "* and more: in a loop of unknown length" in shown


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
    assert "reduce-scatter: 1 tensors, of which devices sum their shards\n" in scattered
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
