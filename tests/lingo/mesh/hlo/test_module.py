"""Reading the text of a compiled program."""

import pytest

from lingo.config.params import ParamError
from lingo.mesh.hlo.module import Array, Loops, Runs, parse, runs

TEXT = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum.1 = f32[] add(%x, %y)
}

ENTRY %main.2_spmd (x: f32[8]) -> (f32[8], s4[3]) {
  %x = f32[8]{0:T(256)} parameter(0), sharding={devices=[8]<=[8]}, metadata={op_name="x[\\'a\\']"}
  %both = (f32[8]{0}, /*index=1*/bf16[2,3]{1,0}) all-reduce-start(%x, /*index=1*/%x), to_apply=%add
  %n = s32[] constant(4)
  %one = f32[8]{0} get-tuple-element(%both), index=0, metadata={op_name="a/b" source_line=3}
  %c = f32[8]{0} conditional(%n, %x), branch_computations={%add, %add}
  ROOT %out = (f32[8]{0}, s4[3]{0}) tuple(%one, %n)
}
"""


def test_instructions_are_found_in_their_computations():
    module = parse(TEXT)
    assert list(module.computations) == ["add", "main.2_spmd"]
    assert module.entry == "main.2_spmd"
    assert list(module.computations["main.2_spmd"]) == ["x", "both", "n", "one", "c", "out"]
    assert module.root("add").name == "sum.1"
    assert module.root("main.2_spmd").opcode == "tuple"


def test_types_of_tuples_have_the_types_of_their_elements():
    body = parse(TEXT).computations["main.2_spmd"]
    assert body["both"].arrays == [Array("f32", (8,)), Array("bf16", (2, 3))]
    assert body["x"].arrays == [Array("f32", (8,))]
    assert body["n"].arrays == [Array("s32", ())]


@pytest.mark.parametrize(
    ("array", "num_bytes"),
    [
        (Array("f32", (2, 3)), 24),
        (Array("bf16", ()), 2),
        (Array("pred", (5,)), 5),
        (Array("s4", (3,)), 2),
        (Array("f8e4m3fn", (7,)), 7),
        (Array("c64", (2,)), 16),
        (Array("token", ()), 0),
    ],
)
def test_an_array_takes_the_bytes_of_its_elements(array, num_bytes):
    assert array.num_bytes == num_bytes


def test_operands_attributes_and_names_are_read():
    body = parse(TEXT).computations["main.2_spmd"]
    assert body["both"].operands == ["x", "x"]
    assert body["both"].callees == ["add"]
    assert body["c"].callees == ["add", "add"]
    assert body["n"].arguments == "4"
    assert (body["one"].attribute("index"), body["one"].attribute("body")) == ("0", None)
    assert (body["one"].op_name, body["n"].op_name) == ("a/b", "")


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ParamError, match="no ENTRY computation"):
        parse("module @jit_step {\n}\n")


# ---- how often computations run


def program(condition, limit, *, attributes=""):
    """Returns a loop that counts %i from 1, with %n from `limit`, and a loop behind it."""
    return parse(f"""\
HloModule test

%less (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=LT
}}

%condition (t: (s32[], s32[])) -> pred[] {{
  %t = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=1
  %five = s32[] constant(5)
{condition}
}}

%body (t: (s32[], s32[])) -> (s32[], s32[]) {{
  %t = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %r = (s32[], s32[]) tuple(%next, %n)
}}

%again (t: (s32[], s32[])) -> (s32[], s32[]) {{
  %t = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=1
  %w = (s32[], s32[]) call(%t), to_apply=%body
  ROOT %r = (s32[], s32[]) tuple(%i, %n)
}}

%condition.2 (t: (s32[], s32[])) -> pred[] {{
  %t = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=1
  ROOT %f = pred[] fusion(%i, %n), kind=kLoop, calls=%less
}}

ENTRY %main (p: s32[]) -> s32[] {{
  %p = s32[] parameter(0)
  %one = s32[] constant(1)
  %limit = s32[] {limit}
  %start = s32[] copy(%one)
  %t = (s32[], s32[]) tuple(%start, %limit)
  %first = (s32[], s32[]) while(%t), condition=%condition, body=%body{attributes}
  %count = s32[] get-tuple-element(%first), index=0
  %zero = s32[] constant(0)
  %t2 = (s32[], s32[]) tuple(%zero, %count)
  %second = (s32[], s32[]) while(%t2), condition=%condition.2, body=%again
  ROOT %out = s32[] get-tuple-element(%second), index=0
}}
""")


def trips(module, name):
    return Loops(module).trips(module.computations["main"][name], "main")


LESS_N = "  ROOT %c = pred[] compare(%i, %n), direction=LT"


def test_a_limit_that_enters_as_a_constant_is_followed():
    assert trips(program(LESS_N, "constant(4)"), "first") == 3


def test_a_limit_in_the_condition_is_read_also_through_fusions():
    fused = "  ROOT %f = pred[] fusion(%i, %five), kind=kLoop, calls=%less"
    assert trips(program(fused, "constant(9)"), "first") == 4


def test_of_two_limits_the_lower_holds():
    both = (
        "  %c1 = pred[] compare(%i, %n), direction=LT\n"
        "  %c2 = pred[] compare(%i, %five), direction=LT\n"
        "  ROOT %c = pred[] and(%c1, %c2)"
    )
    assert trips(program(both, "constant(3)"), "first") == 2
    assert trips(program(both, "constant(9)"), "first") == 4


def test_what_xla_knows_counts():
    said = ', backend_config={"known_trip_count":{"n":"7"}}'
    assert trips(program(LESS_N, "copy(%p)", attributes=said), "first") == 7


def test_a_limit_that_is_computed_is_not_known():
    assert trips(program(LESS_N, "copy(%p)"), "first") is None


def test_a_loop_up_to_the_count_of_another_turns_as_often_as_that():
    assert trips(program(LESS_N, "constant(4)"), "second") == 4  # it begins at 0, the other at 1


def test_what_is_inside_a_loop_runs_once_a_turn():
    found = runs(program(LESS_N, "constant(4)"))
    assert found["main"] == Runs(1, True)
    assert found["again"] == Runs(4, True)
    assert found["body"] == Runs(3 + 4, True)  # of the first loop, and called in the second


def test_turns_that_nobody_knows_count_once():
    assert runs(program(LESS_N, "copy(%p)"))["again"] == Runs(1, False)
