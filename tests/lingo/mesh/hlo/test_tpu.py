"""What only a TPU's compiler writes."""

from lingo.mesh.hlo.module import parse
from lingo.mesh.hlo.tpu import cycles, padding_bytes


def module(lines, computations=""):
    return parse(
        f"HloModule test\n\n{computations}\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n"
    )


def test_cycles_in_a_loop_count_once_per_iteration():
    def estimated(number):
        return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'

    body = (
        "%body (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  ROOT %n = f32[8]{{0}} negate(%p), {estimated(10)}\n}}\n"
        "%condition (p: f32[8]) -> pred[] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n"
    )
    lines = (
        f"  %a = f32[8]{{0}} parameter(0)\n  %c = f32[8]{{0}} copy(%a), {estimated(7)}\n"
        "  ROOT %w = f32[8]{0} while(%c), condition=%condition, body=%body,"
        ' backend_config={"known_trip_count":{"n":"5"}}'
    )
    assert cycles(module(lines, body)) == 7 + 5 * 10


def test_operations_without_an_estimate_have_no_cycles():
    lines = "  ROOT %a = f32[8]{0} parameter(0)"
    unknown = f'{lines}, backend_config={{"estimated_cycles":"{2**63 - 1}"}}'
    assert cycles(module(lines, "")) == cycles(module(unknown, "")) == 0


def test_padding_is_what_whole_tiles_of_the_minor_axes_have_more():
    lines = (
        "  %a = f32[259,128]{1,0:T(8,128)} parameter(0)\n"  # 264 rows
        "  %b = f32[5,3,100]{2,0,1:T(8,128)S(1)} parameter(1)\n"  # 3 times 8 x 128
        "  %c = bf16[300]{0:T(256)(128)(2,1)} parameter(2)\n"  # 512
        "  %d = f32[]{:T(128)} parameter(3)\n"
        "  ROOT %r = f32[2]{0} negate(%a)"
    )
    expected = 4 * (5 * 128) + 4 * (3 * 8 * 128 - 1500) + 2 * (512 - 300)
    assert padding_bytes(module(lines)) == expected
