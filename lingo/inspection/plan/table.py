"""A plan as text and as a picture: the fastest ways to run an experiment, and why others lose.

rank   step  utilization     bytes  loses by     how
   1  6.1 s        57.3%  3.06 GiB               data=16, model=32, 2d_finalized
   2  6.2 s        56.5%  12.3 GiB  arithmetic   data=16, model=32, 2d_attempt_2
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lingo.config.base.errors import check_package
from lingo.config.count_text import count_text
from lingo.inspection.memory import size
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimate
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.input_part import InputNeed, InputPart, InputRate
from lingo.inspection.plan.report import Advice, Comparison, MeshPlan, PlanReport, Way
from lingo.inspection.plan.workload import NUM_NAMED
from lingo.inspection.weight_table import Columns, align_columns

IS_PREDICTION = (
    "A prediction, not a measurement: arithmetic at the peak of padded matrices or of the memory,"
    " exchanges by latency and bandwidth, without overlap."
)


def text(report: PlanReport) -> str:
    """Returns a report as text: a table of ways, then the details of the first way."""
    plan, first = report.plan, report.first
    blocks = [_header(plan, first)]
    if _num_ways(plan) > 1:
        blocks.append(_counts(plan))
        if first.fits:
            blocks.append(_ranks(report.ways))
    if report.faster is not None:
        blocks.append(_faster(report.faster))
    blocks += [f"{describe(first.candidate)}:\n", *_details(plan, first)]
    if _num_ways(plan) > 1 and first.fits:
        blocks.append(f"{plan.flags(first.candidate)}\n")
    if report.advice is not None:
        blocks.append(f"{_advice(plan.hardware, report.advice)}\n")
    return "\n".join(blocks)


def _num_ways(plan: MeshPlan) -> int:
    feasible, too_large, refusals = plan.ranking
    return len(feasible) + len(too_large) + sum(refusals.values())


def _header(plan: MeshPlan, first: Way) -> str:
    load, hardware = plan.workload, plan.hardware
    lines = [
        f"{plan.name}: {count_text(load.batch_size, 'example')} a step, {3 * load.flops:.4g} FLOPs,"
        f" on {first.candidate.mesh.num_devices:,} x {hardware.name} of "
        f"{size(hardware.memory_bytes)}",
        *textwrap.wrap(IS_PREDICTION, 100),
    ]
    if plan.missing_flops:
        lines += textwrap.wrap(
            f"Left out, as they have no `flops`: {', '.join(plan.missing_flops)}. Their time and"
            " activations come on top; define `flops(shape)` of layers of your own.",
            100,
        )
    if load.partial_remats:
        lines += textwrap.wrap(
            f"Remat only of {_some(load.partial_remats)}: its time is in the prediction, but not"
            " the bytes that it saves.",
            100,
        )
    if kinds := load.unknown_residuals:
        lines += textwrap.wrap(
            f"Bytes kept for the gradient are not known for layers {', '.join(kinds)}: they come on"
            " top.",
            100,
        )
    return "".join(f"{line}\n" for line in lines)


def _some(names: Sequence[str]) -> str:
    """Returns the first few names as text, followed by the number of names that are left out."""
    more = [f"{len(names) - NUM_NAMED:,} more"] if len(names) > NUM_NAMED else []
    return " and ".join([", ".join(names[:NUM_NAMED]), *more])


def _counts(plan: MeshPlan) -> str:
    feasible, too_large, refusals = plan.ranking
    refused = "".join(f"; {number:,} refused: {reason}" for reason, number in refusals.items())
    return (
        f"{_num_ways(plan):,} ways: {len(feasible):,} fit, {len(too_large):,} are too large"
        + refused
        + ("; the fastest of each mesh:\n" if feasible else "\n")
    )


def _ranks(ways: Sequence[Way]) -> str:
    words = {
        "loses by": [_loss(way.estimate, ways[0].estimate) for way in ways],
        "how": [describe(way.candidate) for way in ways],
    }
    numbers = {
        "rank": [str(n) for n in range(1, len(ways) + 1)],
        "step": [duration(way.estimate.step_seconds) for way in ways],
        "utilization": [f"{way.estimate.utilization:.1%}" for way in ways],
        "bytes": [size(way.estimate.total_bytes) for way in ways],
    }
    if prices := [way.price.million_examples for way in ways if way.price is not None]:
        numbers["price/million"] = [_amount(price) for price in prices]
    return align_columns(Columns({}, numbers), words)


def _loss(estimate: Estimate, first: Estimate) -> str:
    """Returns why a way is slower than the first way, as "kind +duration"; "" if it is not.

    The kind is the part of a step whose time exceeds the first way's by the most.
    """
    more = {kind: n - first.seconds.get(kind, 0.0) for kind, n in estimate.seconds.items()}
    kind = max(more, key=lambda name: more[name])
    return f"{kind} +{duration(more[kind])}" if estimate.step_seconds > first.step_seconds else ""


def _faster(way: Way) -> str:
    """Returns a line on a way that would be faster, but does not fit in memory."""
    estimate = way.estimate
    kind = max(estimate.bytes, key=lambda name: estimate.bytes[name])
    return (
        f"faster, but too large: {duration(estimate.step_seconds)}, {size(estimate.total_bytes)},"
        f" most of it {kind}: {describe(way.candidate)}\n"
    )


def _advice(hardware: Hardware, advice: Advice) -> str:
    """Returns the sentence that is shown if no way fits in memory."""
    candidate = advice.smallest.candidate
    needs = (
        "nothing fits: the smallest way needs"
        f" {size(advice.smallest.estimate.total_bytes)} on each of"
        f" {count_text(candidate.mesh.num_devices, 'device')} ({describe(candidate)}), and"
        f" {hardware.name} has {size(hardware.memory_bytes)}"
    )
    if advice.enough is None:
        return f"{needs}; doubling the devices is never enough with this batch"
    verb = "is" if advice.enough == 1 else "are"
    enough = f"{needs}; {count_text(advice.enough, 'device')} {verb} enough"
    if advice.enough == candidate.mesh.num_devices:
        return f"{enough} in another way: see --devices={advice.enough}"
    return enough


def describe(candidate: Candidate) -> str:
    """Returns a short text for a way to run an experiment: "data=16, model=32, 2d_finalized"."""
    texts = [str(candidate.mesh)]
    texts += [candidate.rules] if candidate.rules != "1d" else []
    texts += ["shard_update"] if candidate.shard_update else []
    texts += ["shard_weights"] if candidate.shard_weights else []
    texts += ["remat"] if candidate.remat else []
    if (number := candidate.accumulation_steps) > 1:
        texts.append(f"{number} accumulation steps")
    if candidate.num_stages > 1:
        texts.append(f"{candidate.micro_batches} micro-batches")
        texts += [f"{candidate.repeats} repeats"] if candidate.repeats > 1 else []
    return ", ".join(texts)


def _details(plan: MeshPlan, way: Way) -> list[str]:
    """Returns blocks of text on a way's bytes, seconds, exchanges, input and cost."""
    estimate = way.estimate
    blocks = [
        _shares("bytes on a device", estimate.bytes, size),
        _shares("time of a step", estimate.seconds, duration),
    ]
    if rows := estimate.exchanges:  # the longest first
        words = {
            "exchange": [row.exchange.kind for row in rows],
            "of": [row.exchange.purpose for row in rows],
            "along": ["+".join(row.exchange.axes) for row in rows],
        }
        numbers = {
            "tensors": [f"{row.exchange.tensors:,.0f}" for row in rows],
            "collectives": [f"{row.exchange.collectives:,.0f}" for row in rows],
            "bytes": [size(row.exchange.bytes) for row in rows],
            "seconds": [duration(row.seconds) for row in rows],
        }
        blocks.append(align_columns(Columns(words, numbers)))
    lines = [f"bubble {estimate.bubble:.1%}"] if estimate.bubble else []
    lines += [*_input(way.input, plan.rate), *_cost(plan, way)]
    return [*blocks, "".join(f"{line}\n" for line in lines)]


def _shares(title: str, values: dict[str, float], show: Any) -> str:
    """Returns a table of values and their shares of the total, the largest value first."""
    total = sum(values.values())
    items = sorted((item for item in values.items() if item[1]), key=lambda item: -item[1])
    rows = [*items, ("total", total)]
    return align_columns(
        Columns(
            {title: [name for name, _ in rows]},
            {
                "": [show(value) if value >= 0 else f"-{show(-value)}" for _, value in rows],
                "share": [f"{value / total:.1%}" for _, value in rows],
            },
        )
    )


def _input(part: InputPart, rate: InputRate | None) -> list[str]:
    """Returns lines on the hosts that make a step's input, their cores, and how uneven they are."""
    lines = [
        f"input {_amount(part.examples_per_second)} examples/s, {size(part.bytes_per_second)}/s,"
        f" from {count_text(part.hosts, 'host')}: {count_text(part.host_examples, 'example')} a"
        " step of each"
    ]
    if rate is not None and part.need is not None:
        lines += _need(part, rate, part.need)
    return lines


def _need(part: InputPart, rate: InputRate, need: InputNeed) -> list[str]:
    limit = (
        "the step is the limit"
        if need.limit == "step"
        else f"the input is the limit: {duration(need.even_seconds)} a step"
    )
    lines = [
        f"  a core makes {_amount(rate.examples_per_second)} examples/s, {rate.source}",
        f"  to keep up, each host needs {_amount(need.cores)} cores and has"
        f" {part.cores_per_host:,}; {count_text(need.hosts, 'such host')} would be enough; {limit}",
        f"  in one thread of each host: {duration(need.one_thread_seconds)} a step",
    ]
    if need.simulated_steps:
        noun = "hosts" if part.hosts > 1 else "batches"
        lines.append(
            f"  uneven {noun}, simulated for {need.simulated_steps:,} steps: batches vary by"
            f" {rate.variation:.0%}, {duration(need.step_seconds)} a step,"
            f" {need.slowdown:.2f} times as long as even ones"
        )
    return lines


def _cost(plan: MeshPlan, way: Way) -> list[str]:
    """Returns lines on the time of the whole training, and on prices if they are known."""
    steps, tokens = plan.training
    length = [count_text(steps, "step"), count_text(steps * plan.workload.batch_size, "example")]
    length += [f"{count_text(steps * tokens, 'token')} with padding"] if tokens else []
    hours = f"{duration(way.training_seconds)}, {_amount(way.device_hours)} device-hours"
    lines = [f"training of {', '.join(length)}: {hours}"]
    if (price := way.price) is not None:
        lines.append(
            f"price {price.step:.4g} a step, {_amount(price.million_examples)} a million examples,"
            f" {_amount(price.training)} the training"
        )
    return lines


def _amount(number: float) -> str:
    """Returns a number as text with three digits, or as an integer: "0.00315", "44.6", "12,345"."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def describe_hardware(hardware: Hardware) -> str:
    """Returns the speeds and sizes of hardware as text, one per line."""
    rates = hardware.flops_per_second.items()
    lines = {f"products of {dtype}": f"{rate:.3g} FLOPs/s" for dtype, rate in rates}
    lines["memory"] = f"{size(hardware.memory_bytes)}, {size(hardware.memory_bandwidth)}/s"
    lines["host"] = f"{count_text(hardware.cores_per_host, 'core')}"
    for dimension in hardware.dimensions:
        lines[f"{dimension.kind} of {dimension.size}"] = (
            f"{size(dimension.bandwidth)}/s, {duration(dimension.latency)}"
        )
    width = max(map(len, lines))
    return "".join(f"{name.ljust(width)}  {text}\n" for name, text in lines.items())


_DAY = 24 * 3600


def duration(seconds: float) -> str:
    """Returns a time as text with up to three digits and a unit: "3.5 us", "20.4 ms", "2 h"."""
    seconds = float(f"{seconds:.3g}")  # rounded before the unit is chosen: 999.6 ms is 1 s
    for seconds_of_unit, unit in ((_DAY, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * seconds_of_unit:
            return f"{seconds / seconds_of_unit:,.3g} {unit}"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


# ---- the compiled program ------------------------------------------------------------------------


def comparisons_text(comparisons: list[Comparison]) -> str:
    """Returns a table that compares predicted numbers with the compiled program's numbers."""

    def show(one: Comparison, value: float) -> str:
        if one.name.startswith("seconds"):
            return duration(value)
        return f"{value:.4g}" if one.name.startswith("FLOPs") else size(value)

    table = align_columns(
        Columns(
            {"on one device": [one.name for one in comparisons]},
            {
                "predicted": [show(one, one.prediction) for one in comparisons],
                "compiled": [
                    show(one, one.program) + ("" if one.is_known else "*") for one in comparisons
                ],
                "difference": [f"{one.difference:+.1%}" for one in comparisons],
            },
        )
    )
    if all(one.is_known for one in comparisons):
        return table
    return table + "* at least: in a loop of unknown length, whose iterations count once\n"


# ---- the picture ---------------------------------------------------------------------------------


_MAX_WAYS = 10


def write_picture(report: PlanReport, path: Path) -> None:
    """Writes a picture of the fastest ways: the bytes on a device and the time of a step.

    The path's suffix gives the format: .png, .svg or .pdf.

    Raises MissingPackage if matplotlib is not installed.
    """
    check_package("matplotlib", "a picture of a plan", extra="data")
    from matplotlib.figure import Figure

    plan, shown = report.plan, [way.estimate for way in report.ways[:_MAX_WAYS]]
    figure = Figure(figsize=(13, 2.2 + 0.42 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    memory = [{kind: size / 2**30 for kind, size in one.bytes.items()} for one in shown]
    for one in memory:
        one["activations"] += one.pop("reused", 0.0)
    _draw_bars(left, memory)
    left.axvline(plan.hardware.memory_bytes / 2**30, color="black", linestyle="--")
    left.set(xlabel=f"GiB on a device (dashed: the memory of {plan.hardware.name})")
    _draw_bars(right, [one.seconds for one in shown])
    right.set(xlabel="seconds of a step")
    left.set_yticks(range(len(shown)), [describe(one.candidate) for one in shown])
    left.invert_yaxis()
    figure.suptitle(f"{plan.name}: a prediction")
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Any, values: Sequence[dict[str, float]]) -> None:
    """Draws a stacked horizontal bar for each dict; its values above 0 are the bar's parts."""
    kinds = dict.fromkeys(kind for one in values for kind, value in one.items() if value > 0)
    ends = [0.0] * len(values)
    for kind in kinds:
        widths = [one.get(kind, 0.0) for one in values]
        axes.barh(range(len(values)), widths, left=ends, label=kind)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
