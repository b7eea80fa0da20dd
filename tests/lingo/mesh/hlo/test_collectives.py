"""What devices exchange, read from the text of compiled programs."""

import pytest

from lingo.mesh.hlo.collectives import (
    axes_between,
    axes_of,
    collectives,
    groups,
    pairs,
)
from lingo.mesh.hlo.module import Array, parse
from lingo.mesh.topology import topology

MESH = topology({"data": 2, "model": 4})
ROWS, COLUMNS = "{{0,1,2,3},{4,5,6,7}}", "{{0,4},{1,5},{2,6},{3,7}}"


def found(lines, *, computations=""):
    text = f"HloModule test\n\n{computations}\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n"
    return collectives(parse(text), MESH)


def test_one_tensor_in_one_instruction():
    (one,) = found(
        "  %dot.3 = f32[2,256]{1,0} parameter(0)\n"
        f"  ROOT %r = f32[2,256]{{1,0}} all-reduce(%dot.3), channel_id=8, replica_groups={ROWS},"
        ' to_apply=%add, metadata={op_name="jit(f)/local/stack/layers/0/ffn/einsum/Einsum"}'
    )
    assert (one.kind, one.axes, one.num_bytes) == ("all-reduce", ("model",), 2 * 256 * 4)
    assert one.op_name == "jit(f)/local/stack/layers/0/ffn/einsum/Einsum"


def test_tensors_that_are_reduced_together_count_by_themselves():
    first, second, third = found(
        '  %a = f32[128]{0} parameter(0), metadata={op_name="jit(f)/local/norm/Sum"}\n'
        '  %b = bf16[4]{0} parameter(1), metadata={op_name="jit(f)/local/head/Sum"}\n'
        "  %c = bf16[4]{0} bitcast(%b)\n"
        "  %d = f32[]{0} parameter(2)\n"
        "  ROOT %r = (f32[128]{0}, bf16[4]{0}, f32[]) all-reduce(%a, %c, /*index=2*/%d),"
        f" replica_groups={COLUMNS}, to_apply=%add,"
        ' metadata={op_name="jit(f)/local/(norm/Sum:head/Sum:Sum)"}'
    )
    assert [first.num_bytes, second.num_bytes, third.num_bytes] == [512, 8, 4]
    assert [first.op_name, second.op_name] == ["jit(f)/local/norm/Sum", "jit(f)/local/head/Sum"]
    assert third.op_name == "jit(f)/local/"  # all that the three have in common
    assert {first.axes, second.axes, third.axes} == {("data",)}


def test_bytes_are_those_of_the_larger_side():
    gather, scatter = found(
        "  %a = f32[2,8]{1,0} parameter(0)\n"
        f"  %g = f32[8,8]{{1,0}} all-gather(%a), replica_groups={ROWS}, dimensions={{0}}\n"
        f"  ROOT %s = f32[2,8]{{1,0}} reduce-scatter(%g), replica_groups={ROWS}, dimensions={{0}},"
        " to_apply=%add"
    )
    assert gather[:3] == ("all-gather", Array("f32", (8, 8)), ("model",))
    assert scatter[:3] == ("reduce-scatter", Array("f32", (8, 8)), ("model",))


def test_an_all_to_all_of_parts_is_one_tensor():
    parts, whole = found(
        "  %a = f32[1,4]{1,0} parameter(0)\n"
        "  %t = (f32[1,4]{1,0}, f32[1,4]{1,0}, f32[1,4]{1,0}, f32[1,4]{1,0})"
        f" all-to-all(%a, %a, %a, %a), replica_groups={ROWS}\n"
        "  %b = f32[8,4]{1,0} parameter(1)\n"
        f"  ROOT %w = f32[8,4]{{1,0}} all-to-all(%b), replica_groups={ROWS}, dimensions={{0}}"
    )
    assert (parts.num_bytes, whole.num_bytes) == (64, 128)


def test_a_permutation_has_the_axes_that_it_moves_along():
    (one,) = found(
        "  %a = f32[4]{0} parameter(0)\n"
        "  ROOT %p = f32[4]{0} collective-permute(%a), source_target_pairs={{0,1},{1,2},{2,3}}"
    )
    assert one[:3] == ("collective-permute", Array("f32", (4,)), ("model",))


def test_what_is_under_way_counts_where_it_starts():
    reduce, gather, permute = found(
        "  %a = f32[4]{0} parameter(0)\n"
        f"  %rs = f32[4]{{0}} all-reduce-start(%a), replica_groups={ROWS}, to_apply=%add\n"
        "  %rd = f32[4]{0} all-reduce-done(%rs)\n"
        f"  %gs = (f32[4]{{0}}, f32[16]{{0}}) all-gather-start(%a), replica_groups={ROWS}\n"
        "  %gd = f32[16]{0} all-gather-done(%gs)\n"
        "  %ps = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%a),"
        " source_target_pairs={{0,4}}\n"
        "  ROOT %pd = f32[4]{0} collective-permute-done(%ps)"
    )
    assert [reduce.num_bytes, gather.num_bytes, permute.num_bytes] == [16, 64, 16]


def test_what_an_asynchronous_call_wraps_is_found():
    inner = (
        "%wrapped (p: f32[8]) -> f32[2] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %s = f32[2]{{0}} reduce-scatter(%p), replica_groups={ROWS}, to_apply=%add\n}}\n"
    )
    (one,) = found(
        "  %a = f32[8]{0} parameter(0)\n"
        "  %s = ((f32[8]{0}), f32[2]{0}) async-start(%a), calls=%wrapped\n"
        "  ROOT %d = f32[2]{0} async-done(%s)",
        computations=inner,
    )
    assert (one.kind, one.num_bytes) == ("reduce-scatter", 32)


def test_a_loop_repeats_what_is_in_its_body():
    body = (
        "%body (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %s = f32[8]{{0}} all-reduce(%p), replica_groups={COLUMNS}, to_apply=%add\n}}\n"
        "%condition (p: f32[8]) -> pred[] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n"
    )
    loop = "  %a = f32[8]{0} parameter(0)\n  ROOT %w = f32[8]{0} while(%a), condition=%condition,"
    trips = ', backend_config={"known_trip_count":{"n":"64"}}'
    (known,) = found(f"{loop} body=%body{trips}", computations=body)
    assert (known.runs.times, known.runs.is_known, known.num_bytes) == (64, True, 64 * 32)
    (unknown,) = found(f"{loop} body=%body", computations=body)
    assert (unknown.runs.times, unknown.runs.is_known) == (1, False)


def test_a_fusion_of_a_tpu_that_sums_and_slices_is_a_reduce_scatter_of_what_comes_into_it():
    inner = (
        "%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  %s = f32[8]{{0}} all-reduce(%p), replica_groups={ROWS}, to_apply=%add\n"
        "  ROOT %d = f32[2]{0} slice(%s), slice={[0:2]}\n}\n"
    )
    (one,) = found(
        '  %a = f32[8]{0} parameter(0), metadata={op_name="jit(f)/local/norm/Sum"}\n'
        "  ROOT %s = f32[2]{0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1",
        computations=inner,
    )
    assert (one.kind, one.num_bytes) == ("reduce-scatter", 32)
    assert one.op_name == "jit(f)/local/norm/Sum"


def test_a_collective_that_computation_overlaps_counts_once():
    gather = (
        "  %p = f32[2]{0} parameter(0)\n"
        f"  %g = f32[8]{{0}} all-gather(%p), replica_groups={ROWS}, dimensions={{0}}\n"
    )
    inner = "".join(
        f"%{name} (p: f32[2]) -> f32[8] {{\n{gather}"
        f'  ROOT %c = f32[8]{{0}} custom-call(%g), custom_call_target="{target}"\n}}\n'
        for name, target in (
            ("fused.1", "AsyncCollectiveStart"),
            ("async_collective_fusion.1", "AsyncCollectiveUpdate"),
            ("fused.2", "AsyncCollectiveDone"),
        )
    )
    (one,) = found(
        "  %a = f32[2]{0} parameter(0)\n"
        "  %s = f32[8]{0} fusion(%a), kind=kCustom, calls=%fused.1\n"
        "  %u = f32[8]{0} fusion(%a), kind=kCustom, calls=%async_collective_fusion.1\n"
        "  ROOT %d = f32[8]{0} fusion(%a), kind=kCustom, calls=%fused.2",
        computations=inner,
    )
    assert (one.kind, one.num_bytes) == ("all-gather", 32)


# ---- groups of devices


ROW_IDS = [[0, 1, 2, 3], [4, 5, 6, 7]]
COLUMN_IDS = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ROW_IDS),
        ("replica_groups=[2,4]<=[8]", ROW_IDS),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", COLUMN_IDS),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ROW_IDS),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", COLUMN_IDS),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", ROW_IDS),
        (
            "replica_groups=mesh['a'=2,'b'=4], device_ids=(4,5,6,7,0,1,2,3) {'b'}",
            ROW_IDS[::-1],
        ),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", ROW_IDS),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", COLUMN_IDS),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [list(range(8))]),
        ("replica_groups={}", [list(range(8))]),
        ("to_apply=%add", [list(range(8))]),
    ],
)
def test_every_form_names_the_same_groups(text, expected):
    line = f"%x), channel_id=1, {text}, use_global_device_ids=true"
    assert groups(line, 8) == expected


@pytest.mark.parametrize(
    ("found", "axes"),
    [
        (ROW_IDS, ("model",)),
        (ROW_IDS[::-1], ("model",)),
        (COLUMN_IDS, ("data",)),
        ([list(range(8))], ("data", "model")),
        ([[i] for i in range(8)], ()),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], None),
        ([[0, 5, 2, 7], [4, 1, 6, 3]], None),
    ],
)
def test_groups_stand_along_mesh_axes_if_they_are_whole_rows(found, axes):
    assert axes_of(found, MESH) == axes


def test_three_axes_are_told_apart():
    cube = topology({"stage": 2, "data": 2, "model": 2})
    assert axes_of([[0, 1], [2, 3], [4, 5], [6, 7]], cube) == ("model",)
    assert axes_of([[0, 2], [1, 3], [4, 6], [5, 7]], cube) == ("data",)
    assert axes_of([[0, 1, 4, 5], [2, 3, 6, 7]], cube) == ("stage", "model")


def test_a_permutation_moves_along_the_axes_in_which_its_pairs_differ():
    found = pairs("source_target_pairs={{0,4},{1,5},{2,6},{3,7}}, metadata={}")
    assert found == COLUMN_IDS
    assert axes_between(found, MESH) == ("data",)
    assert axes_between([[0, 1], [1, 2], [3, 0]], MESH) == ("model",)
    assert axes_between([[0, 5]], MESH) == ("data", "model")
    assert axes_between(pairs("source_target_pairs={}"), MESH) == ()
