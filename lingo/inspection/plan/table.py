"""A plan as text and as JSON: the fastest ways to run an experiment, and why others lose.

rank   step  utilization     bytes  loses by     how
   1  6.1 s        57.3%  3.06 GiB               data=16, model=32, 2d_finalized
   2  6.2 s        56.5%  12.3 GiB  arithmetic   data=16, model=32, 2d_attempt_2
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from lingo.inspection.memory import size
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimate
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.search import Ranking
from lingo.inspection.plan.workload import Workload
from lingo.inspection.weight_table import Columns, align_columns

IS_PREDICTION = (
    "A prediction, not a measurement: arithmetic at the peak of padded matrices or of the memory,"
    " exchanges by latency and bandwidth, none beside arithmetic."
)


class Plan(NamedTuple):
    """The result of a search, and what it was about."""

    name: str  # of the experiment
    workload: Workload
    hardware: Hardware
    ranking: Ranking
    price: float | None = None  # of a device for an hour
    rules: Mapping[str, object] = MappingProxyType({})  # of the runtime, as `settings` take them
    own: Sequence[str] = ()  # overrides that the experiment has already, as `--set` takes them

    def flags(self, estimate: Estimate) -> str:
        """Returns the flags that run the experiment in this way, as a shell takes them."""
        texts = [*self.own, *estimate.candidate.settings(self.workload, self.rules)]
        return " ".join(
            [f"--exp={shlex.quote(self.name)}", *(f"--set={shlex.quote(t)}" for t in texts)]
        )


def text(plan: Plan, *, top: int) -> str:
    """Returns the plan as text: the `top` fastest ways, then the bytes and seconds of the first."""
    feasible, too_large, refusals = plan.ranking
    hardware, load = plan.hardware, plan.workload
    first = (feasible or too_large)[0]
    num = first.candidate.mesh.num_devices
    lines = [
        f"{plan.name}: {load.batch_size:,} examples a step, {3 * load.flops:.4g} FLOPs, on {num:,}"
        f" x {hardware.name} of {size(hardware.memory_bytes)}",
        *textwrap.wrap(IS_PREDICTION, 100),
        "",
    ]
    if (total := len(feasible) + len(too_large) + sum(refusals.values())) > 1:
        lines += [
            f"{total:,} ways: {len(feasible):,} fit, {len(too_large):,} are too large"
            + "".join(f"; {number:,} refused: {reason}" for reason, number in refusals.items())
            + ("; the fastest of each mesh:" if feasible else ""),
            "",
        ]
        lines += [_ranks(plan.ranking.best[:top], first), *_too_large(plan)] if feasible else []
    lines += [f"{describe(first.candidate)}:", "", details(plan, first)]
    lines += [plan.flags(first)] if total > 1 and feasible else []
    return "".join(f"{line}\n" for line in lines)


def _too_large(plan: Plan) -> list[str]:
    """Returns lines on a way that would be faster, but does not fit."""
    faster = min(plan.ranking.too_large, key=lambda one: one.step_seconds, default=None)
    if faster is None or faster.step_seconds >= plan.ranking.feasible[0].step_seconds:
        return []
    kind = max(faster.bytes, key=lambda name: faster.bytes[name])
    return [
        f"faster, but too large: {duration(faster.step_seconds)}, {size(faster.total_bytes)}, most"
        f" of it {kind}: {describe(faster.candidate)}",
        "",
    ]


def _ranks(estimates: Sequence[Estimate], first: Estimate) -> str:
    words = {
        "loses by": [_loss(one, first) for one in estimates],
        "how": [describe(one.candidate) for one in estimates],
    }
    numbers = {
        "rank": [str(n) for n in range(1, len(estimates) + 1)],
        "step": [duration(one.step_seconds) for one in estimates],
        "utilization": [f"{one.utilization:.1%}" for one in estimates],
        "bytes": [size(one.total_bytes) for one in estimates],
    }
    return align_columns(Columns({}, numbers), words)


def _loss(one: Estimate, first: Estimate) -> str:
    """Returns which part of the step takes most longer than in the first."""
    more = {kind: n - first.seconds.get(kind, 0.0) for kind, n in one.seconds.items()}
    kind = max(more, key=lambda name: more[name])
    return f"{kind} +{duration(more[kind])}" if one.step_seconds > first.step_seconds else ""


def describe(candidate: Candidate) -> str:
    """Returns a way to run an experiment in words."""
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


def details(plan: Plan, estimate: Estimate) -> str:
    """Returns the bytes, seconds and exchanges of one way, and what else it needs."""
    parts = [
        _shares("bytes on a device", estimate.bytes, size),
        _shares("time of a step", estimate.seconds, duration),
    ]
    if estimate.exchanges:
        rows = sorted(estimate.exchanges, key=lambda one: -one.seconds)
        words = {
            "exchange": [row.exchange.kind for row in rows],
            "of": [row.exchange.purpose for row in rows],
            "along": ["+".join(row.exchange.axes) for row in rows],
        }
        numbers = {
            "tensors": [f"{row.exchange.tensors:,.0f}" for row in rows],
            "bytes": [size(row.exchange.bytes) for row in rows],
            "seconds": [duration(row.seconds) for row in rows],
        }
        parts.append(align_columns(Columns(words, numbers)))
    parts.append("".join(f"{line}\n" for line in _needs(plan, estimate)))
    return "\n".join(parts)


def _shares(title: str, values: dict[str, float], show: Any) -> str:
    """Returns a table of a sum and its parts, the largest first."""
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


def _needs(plan: Plan, estimate: Estimate) -> list[str]:
    """Returns lines on the bubble, the input and the price."""
    load, num = plan.workload, estimate.candidate.mesh.num_devices
    rate = load.batch_size / estimate.step_seconds
    hosts = -(-num // plan.hardware.devices_per_host)
    lines = [f"bubble {estimate.bubble:.1%}"] if estimate.bubble else []
    lines.append(
        f"input {rate:,.0f} examples/s, {size(rate * load.input_bytes / load.batch_size)}/s, from"
        f" {hosts:,} hosts: {rate / hosts:,.1f} examples/s of each"
    )
    if plan.price is not None:
        cost = plan.price * num * estimate.step_seconds / 3600
        lines.append(
            f"price {cost:.4g} a step, {1e6 * cost / load.batch_size:,.4g} a million examples"
        )
    return lines


def as_json(plan: Plan, *, top: int) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    feasible, too_large, refusals = plan.ranking
    return {
        "experiment": plan.name,
        "is_prediction": True,
        "hardware": plan.hardware.name,
        "memory_bytes": plan.hardware.memory_bytes,
        "batch_size": plan.workload.batch_size,
        "model_flops": 3 * plan.workload.flops,
        "num_fitting": len(feasible),
        "num_too_large": len(too_large),
        "refused": refusals,
        "ways": [_way(plan, one, fits=bool(feasible)) for one in plan.ranking.best[:top]],
    }


def _way(plan: Plan, estimate: Estimate, *, fits: bool) -> dict[str, Any]:
    candidate = estimate.candidate
    return {
        "settings": candidate.settings(plan.workload, plan.rules),
        "mesh": {axis: n for axis, n in candidate.mesh.sizes if n > 1},
        **{k: v for k, v in candidate._asdict().items() if k != "mesh"},
        "fits": fits,
        "step_seconds": estimate.step_seconds,
        "utilization": estimate.utilization,
        "bubble": estimate.bubble,
        "bytes": estimate.bytes,
        "seconds": estimate.seconds,
        "exchanges": [
            one.exchange._asdict() | {"seconds": one.seconds} for one in estimate.exchanges
        ],
    }


def describe_hardware(hardware: Hardware) -> str:
    """Returns rates and sizes of hardware as text."""
    rates = hardware.flops_per_second.items()
    lines = {f"products of {dtype}": f"{rate:.3g} FLOPs/s" for dtype, rate in rates}
    lines["memory"] = f"{size(hardware.memory_bytes)}, {size(hardware.memory_bandwidth)}/s"
    for dimension in hardware.dimensions:
        lines[f"{dimension.kind} of {dimension.size}"] = (
            f"{size(dimension.bandwidth)}/s, {duration(dimension.latency)}"
        )
    width = max(map(len, lines))
    return "".join(f"{name.ljust(width)}  {text}\n" for name, text in lines.items())


def duration(seconds: float) -> str:
    """Returns a time as text with a unit, in three digits: "6.1 s", "20.4 ms", "3.5 us"."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
