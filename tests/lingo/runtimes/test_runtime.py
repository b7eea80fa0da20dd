"""Errors of graphs, in words that name what went wrong and where."""

from __future__ import annotations

import pytest

from lingo.config.lazy import tf
from lingo.runtimes.runtime import ProgramError, explain_program_errors


def look_up(table: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("model/embedding"):
        return tf.gather(table, index)


def test_an_error_of_a_graph_says_what_and_in_which_layer() -> None:
    function = tf.function(look_up, autograph=False)
    with pytest.raises(ProgramError) as caught, explain_program_errors("step 3"):
        function(tf.zeros([3]), tf.constant([300]))
    assert str(caught.value) == (
        "step 3: InvalidArgumentError: indices[0] = 300 is not in [0, 3),"
        " in model/embedding/GatherV2"
    )
    assert caught.value.exit_code == 1


def test_an_error_under_xla_says_what() -> None:
    function = tf.function(lambda x, n: tf.reshape(x, [n]), autograph=False, jit_compile=True)
    with pytest.raises(ProgramError) as caught, explain_program_errors("evaluation"):
        function(tf.zeros([3]), tf.constant(300))
    said = "Input to reshape is a tensor with 3 values, but the requested shape has 300"
    assert str(caught.value) == f"evaluation: InvalidArgumentError: {said}, in Reshape"


def test_an_error_without_a_message_is_still_one() -> None:
    with (
        pytest.raises(ProgramError, match=r"step 1: AbortedError: no message$"),
        explain_program_errors("step 1"),
    ):
        raise tf.errors.AbortedError(None, None, "")
