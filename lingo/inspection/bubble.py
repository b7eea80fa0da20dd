"""For which share of their time the stages of a pipeline compute nothing that counts.

Of equal stages the clock of the schedule says it. Where they differ, the two forms waste in two
ways, and both count here as idle:

    PipelinedChain   a stage takes the time of its own layers; it waits for those that take longer
    Pipeline         all blocks take the time of a full one: what fills up the others is computed,
                     too, and thrown away. 6 layers in 4 stages are blocks of 2, in the time of 8
"""

from __future__ import annotations

from lingo.inspection.pipelined import Pipelined
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.mesh.pipeline.schedule import Schedule
from lingo.mesh.pipeline.simulation import simulate


def bubble_fraction(one: Pipelined, schedule: Schedule) -> float:
    """Returns the idle share of the time of all stages, if a FLOP takes as long everywhere.

    Of equal stages it is that of the schedule; it is also that if nothing multiplies anything.

    Args:
        one: the pipeline.
        schedule: the order of its work; a backward step takes so many times a forward step's FLOPs.
    """
    flops = one.layer.layer_flops(one.shape)
    blocks = [[sum(flops[i] for i in block) for block in of_round] for of_round in one.blocks]
    if len({block for of_round in blocks for block in of_round}) == 1:
        return schedule.bubble_fraction
    is_chain, full = isinstance(one.layer, PipelinedChain), blocks[0][0]
    forward = [[block if is_chain else full for block in of_round] for of_round in blocks]
    backward = [[one.backward_units * step for step in of_round] for of_round in forward]
    timeline = simulate(schedule, forward, backward)
    counted = schedule.num_micro_batches * (1 + one.backward_units) * sum(flops)
    return 1 - counted / (schedule.num_stages * timeline.makespan_seconds)
