"""Plans of all-reduce: who sends which chunk to whom, in which step, around chips that failed.

The payload of every chip is cut into equal chunks. A plan is the steps of the *reduce* alone, in
which chips add chunks that they receive to their own, until every chunk is complete on one chip,
its owner. The *gather* is the same steps mirrored: from the last step to the first, from receiver
to sender, copying instead of adding. So an all-reduce is a reduce and its mirror. If each chip
updates the chunks that it owns, and no others, between the two, this is the sharded update of a
multipod.

    grid.py         chips in a box, axes that are rings, lines or switches, chips that failed
    plan.py         Transfers of a step; Plan; the ring reduce-scatter that most plans are made of
    ring.py         one ring through all chips, by single hops
    planner.py      the planners by name: the one ring; all axes at once, each part of the payload
                    in another order; one axis after the other, switches as several rings; rings
                    of two rows
    execution.py    computes a plan with values, and says whether its sums are exact
    cost.py         steps, bytes, load of links, congestion, and seconds of the alpha-beta model;
                    a picture of the bytes on links
"""
