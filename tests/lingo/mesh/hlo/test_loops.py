"""How often loops turn."""

from lingo.mesh.hlo.loops import Loops, Runs, runs
from lingo.mesh.hlo.module import parse


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
