"""Compiles and partitions a learner's functions; reports their text, memory and compile time.

Compilation needs shapes only, so a program for thousands of devices compiles on one CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lingo.data.array_spec import Specs
from lingo.mesh.topology import Topology
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.mesh.engine import engine, explain_engine_errors
from lingo.runtimes.mesh.functions import Functions


def compile_training(
    functions: Functions, topology: Topology, specs: Specs, *, num_steps: int = 1
) -> CompiledProgram:
    """Compiles `functions.train`; later calls with the same shapes reuse the compiled program.

    Args:
        functions: functions of a learner.
        topology: of their mesh.
        specs: name -> (shape, dtype) of a batch.
        num_steps: steps of one call.
    """
    with explain_engine_errors():
        arguments = functions.arguments(specs, num_steps=num_steps)
        return _compile(functions.train, arguments, topology, num_steps=num_steps)


def compile_evaluation(functions: Functions, topology: Topology, specs: Specs) -> CompiledProgram:
    """Compiles `functions.evaluate`; arguments as for `compile_training`."""
    rows = functions.rows.sharding(axis=0)
    with explain_engine_errors():
        state, batches, size = functions.arguments(specs, num_steps=1)
        batch = {
            name: engine().ShapeDtypeStruct(array.shape[1:], array.dtype, sharding=rows)
            for name, array in batches.items()
        }
        arguments = (state.weights, state.state, batch, size)
        return _compile(functions.evaluate, arguments, topology, num_steps=1)


def _compile(
    function: Any, arguments: Sequence[Any], topology: Topology, *, num_steps: int
) -> CompiledProgram:
    began = time.perf_counter()
    lowered = function.lower(*arguments)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    return CompiledProgram(
        *(topology, compiled.as_text(), num_steps, _memory(compiled.memory_analysis())),
        trace_seconds=traced - began,
        compile_seconds=done - traced,
    )


def _memory(stats: Any) -> dict[str, int]:
    """Returns the bytes on one device that the compiler reports; {} if it has no report."""
    if stats is None:
        return {}
    return {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
    }
