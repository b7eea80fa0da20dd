"""The items of a day on accelerators: questions, and the commands that answer them.

`GPU` and `TPU` are in order of importance. In arguments, {dir} is the item's own folder and {cores}
the number of cores of the TPU; each run is a folder in {dir}.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LINGO = ("-m", "lingo.cli.main")
EXACT = ("-m", "tools.day.exact")  # float32 products in full precision

TINY, SMALL, BASE = "lm.source.tiny", "lm.source.small", "lm.source.base"
MOE = "lm.source.tiny_moe"
RESNET = "image.resnet.resnet50(batch_size=128)"  # of enlarged digits: no file is needed
VIT = "image.vit.s16(batch_size=128)"
BFLOAT16 = "task.dtype=bfloat16"
XLA = "Local(xla=True)"

Command = tuple[str, ...]
"""The arguments of Python."""


class Same(NamedTuple):
    """Two runs of an item whose losses are compared at each step."""

    run: str
    reference: str
    tolerance: float  # of the relative difference


class Item(NamedTuple):
    """A question and the commands that answer it, one after the other."""

    name: str
    question: str
    commands: tuple[Command, ...]
    minutes: float = 3.0  # the limit for all commands
    same: Same | None = None
    num_devices: int | None = 1  # that it needs; None: all cores of the TPU
    in_small: bool = False  # whether the small form has it, too


def train(
    experiment: str,
    runtime: str,
    *settings: str,
    run: str = "run",
    steps: int = 60,
    program: Command = LINGO,
    options: Command = (),
) -> Command:
    """Returns the command that trains an experiment in a folder of the item."""
    every = max(1, steps // 20)  # reports: of each step if there are few
    fixed = ("eval_inputs={}", "summary.histograms=False", f"summary.every_steps={every}")
    values = (f"runtime={runtime}", f"max_steps={steps}", *fixed, *settings)
    flags = (f"--exp={experiment}", f"--logdir={{dir}}/{run}", *(f"--set={v}" for v in values))
    return (*program, "train", *flags, *options)


def _resume(runtime: str, *, steps: int, run: str = "run") -> Command:
    flags = (f"--run={{dir}}/{run}", f"--set=runtime={runtime}", f"--set=max_steps={steps}")
    return (*LINGO, "train", *flags)


def _evaluate(runtime: str, run: str = "run") -> Command:
    heldout = (
        "--set=eval_inputs="
        + "{'heldout': TextInput(source=InstalledSource("
        + (
            "package='tensorflow', split='heldout'), batch_size=16, length=256, repeat=False,"
            " max_batches=4)}"
        )
    )
    return (*LINGO, "eval", f"--run={{dir}}/{run}", f"--set=runtime={runtime}", heldout)


def _decode(runtime: str, run: str = "run") -> Command:
    flags = ("--prompt=def ", "--max_tokens=16", "--temperature=0")
    return (*LINGO, "decode", f"--run={{dir}}/{run}", f"--set=runtime={runtime}", *flags)


def _on_processor(experiment: str, steps: int = 20) -> Command:
    return train(experiment, "Local", run="processor", steps=steps, options=("--devices=1",))


def _equal(name: str, question: str, runtime: str, *settings: str, **fields: object) -> Item:
    """Returns an item that compares a runtime's losses with `Local`'s on the processor."""
    commands = (
        _on_processor(TINY),
        train(TINY, runtime, *settings, steps=20, program=EXACT),
    )
    return Item(name, question, commands, 5.0, Same("run", "processor", 1e-4))._replace(**fields)


# ---- GPUs


def _speed(name: str, experiment: str, runtime: str, dtype: str) -> Item:
    label = f"{name}, {runtime}, {dtype}"
    command = train(experiment, runtime, f"task.dtype={dtype}")
    return Item(label, f"does {label} train, and how fast?", (command,))


_MODELS = {
    "base": (BASE, ("Local", XLA, "Mesh(data=1)")),
    "resnet50": (RESNET, ("Local", XLA)),
    "vit_s16": (VIT, ("Local", XLA)),
    "tiny_moe": (MOE, ("Local", XLA, "Mesh(data=1)")),
    "tiny": (TINY, ("Local", XLA, "Mesh(data=1)")),
    "small": (SMALL, ("Local", XLA, "Mesh(data=1)")),
}

_LONG = ("TextInput.length=8192", "TextInput.batch_size=1", BFLOAT16)
_TWICE = ("Local(deterministic=True)", BFLOAT16)

GPU = (
    _equal("float32", "does Local have the processor's losses?", "Local", in_small=True),
    Item(
        "resume bfloat16",
        "does a bfloat16 run resume?",
        (train(TINY, "Local", BFLOAT16, steps=20), _resume("Local", steps=40)),
    ),
    Item(
        "mesh",
        "does Mesh evaluate and decode?",
        (
            train(TINY, "Mesh(data=1)", steps=20),
            _evaluate("Mesh(data=1)"),
            _decode("Mesh(data=1)"),
        ),
        5.0,
        in_small=True,
    ),
    Item(
        "local",
        "does Local evaluate and decode?",
        (train(TINY, "Local", steps=20), _evaluate("Local"), _decode("Local")),
        5.0,
    ),
    Item(
        "deterministic",
        "are two runs of Local(deterministic=True) equal bit for bit?",
        (train(TINY, *_TWICE, steps=20), train(TINY, *_TWICE, steps=20, run="again")),
        same=Same("run", "again", 0.0),
    ),
    Item("replicated", "does Replicated train on one GPU?", (train(TINY, "Replicated"),)),
    *(
        _speed(name, experiment, runtime, dtype)
        for name, (experiment, runtimes) in _MODELS.items()
        for dtype in ("bfloat16", "float32")
        for runtime in runtimes
    ),
    *(
        Item(
            f"attention, blockwise={blockwise}",
            f"what do rows of 8192 cost with blockwise={blockwise}?",
            (train(SMALL, "Local", *_LONG, f"Attention.blockwise={blockwise}", steps=20),),
        )
        for blockwise in (True, False)
    ),
    _equal("replicas", "do two replicas train alike?", "Replicated", num_devices=2, in_small=True),
    _equal("mesh of two", "does Mesh(data=2) train alike?", "Mesh(data=2)", num_devices=2),
    Item(
        "workers",
        "do two workers of Replicated, which share the GPUs, train?",
        ((*LINGO, "launch", "--workers=2", "--", *train(TINY, "Replicated")[len(LINGO) :]),),
        num_devices=2,
    ),
)

# ---- TPUs

_CONNECT = """
from lingo.runtimes.tpu.cores import initialize
resolver, torus = initialize("local")
places = torus.device_coordinates.reshape(-1, torus.mesh_rank).tolist()
print(len(places), "cores of a torus", torus.mesh_shape.tolist(), "at", places)
"""
_MESH = "TpuMesh(data={cores})"
_REPLICAS = "Replicated(tpu=local)"


def _on_tpu(name: str, question: str, *commands: Command, minutes: float = 5.0) -> Item:
    return Item(name, question, commands, minutes, num_devices=None)


TPU = (
    _on_tpu(
        "connect",
        "does TPUClusterResolver find the TPU, and where are its cores?",
        ("-c", _CONNECT),
    )._replace(in_small=True),
    Item(
        "processor",
        "does the reference train on the processor?",
        (_on_processor(TINY),),
        in_small=True,
    ),
    _equal(
        "replicas",
        "does Replicated(tpu=local) have the processor's losses?",
        _REPLICAS,
        num_devices=None,
    ),
    _equal(
        "mesh",
        "does TpuMesh have the processor's losses, in the order of cores that it takes?",
        _MESH,
        num_devices=None,
        in_small=True,
    ),
    *(
        _on_tpu(
            name,
            f"does {kind} evaluate, decode, save and resume?",
            train(TINY, runtime, steps=20),
            _evaluate(runtime),
            _decode(runtime),
            _resume(runtime, steps=40),
        )
        for name, kind, runtime in (
            ("use", "TpuMesh", _MESH),
            ("use replicas", _REPLICAS, _REPLICAS),
        )
    ),
    _equal(
        "sharded update",
        "does shard_update have the processor's losses?",
        "TpuMesh(data={cores},shard_update=True)",
        num_devices=None,
    ),
    *(
        _on_tpu(
            f"{name}, {dtype}",
            f"does {name} train on TpuMesh in {dtype}, how fast, and does its input keep up?",
            train(experiment, _MESH, f"task.dtype={dtype}"),
        )
        for name, experiment in (("base", BASE), ("tiny_moe", MOE), ("resnet50", RESNET))
        for dtype in ("bfloat16", "float32")
    ),
    _on_tpu(
        "pipeline",
        "does a pipeline of one stage per core train?",
        train(
            f"{TINY}(num_layers={{cores}})",
            "TpuMesh(stage={cores})",
            "Stack=Pipeline(num_stages={cores}, num_micro_batches=2)",
        ),
    ),
    _on_tpu(
        "loop",
        "do ten steps by one call of the program overlap with their input?",
        train(BASE, _MESH, BFLOAT16, "steps_per_loop=10"),
    ),
)

ITEMS = {"gpu": GPU, "tpu": TPU}


# ---- the small form


def shrink(item: Item) -> Item:
    """Returns an item with a tenth of its steps, a tiny model and virtual devices."""
    commands = tuple(_shrink(command, item.num_devices or 1) for command in item.commands)
    return item._replace(commands=commands)


def _shrink(command: Command, num_devices: int) -> Command:
    if command[0] != "-m":
        return command
    small = [
        re.sub(r"max_steps=(\d+)", lambda match: f"max_steps={int(match[1]) // 10 + 1}", one)
        for one in command
        if not one.startswith("--devices=")
    ]
    small = [f"--exp={TINY}(model_dim=16, num_layers=1)" if "--exp=" in x else x for x in small]
    if any("tpu" in one.lower() for one in small):
        return tuple(small)  # its cores cannot be made
    of_processor = any("--logdir={dir}/processor" in one for one in small)
    return (*small, f"--devices={1 if of_processor else num_devices}")
