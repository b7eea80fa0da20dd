"""Reading the text of a compiled program."""

import pytest

from lingo.config.params import ParamError
from lingo.mesh.hlo.module import Array, parse

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
