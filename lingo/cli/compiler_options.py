"""The options that choose a compiler for the program of a mesh: CPU or TPU."""

from __future__ import annotations

from typing import Literal

from lingo.cli.command import UsageError, VerbOptions
from lingo.config.options import option, option_class
from lingo.runtimes.mesh import tpu_compiler


@option_class
class CompilerOptions(VerbOptions):
    """The options that choose the compiler of a program: `--compiler` and `--topology`."""

    compiler: Literal["cpu", "tpu"] = option(
        "The compiler: the processor's, or the TPUs', which needs no TPU.", default="cpu"
    )
    topology: str | None = option(
        "With --compiler=tpu: the chips, such as v5e:4x4; else as many as the mesh has."
    )

    def check_compiler(self, flag: str) -> None:
        """Raises UsageError if a flag of the compiler is given, but nothing is compiled.

        `flag` is the verb's flag that makes it compile a program.
        """
        if given := [f"--{name}" for name in ("compiler", "topology") if name in self.flag_names]:
            if not getattr(self, flag):
                raise UsageError(f"{given[0]} goes with --{flag}")
            if self.compiler == "cpu" and self.topology is not None:
                raise UsageError(f"--topology={self.topology} goes with --compiler=tpu")

    def find_topology(self, num_devices: int, generation: str | None = None) -> str | None:
        """Returns the TPU topology to compile for, such as "v5e:4x4"; None for the CPU.

        Without `--topology`, the topology has enough whole hosts (machines of four chips) of
        `generation`, which is by default v5e, or v5p if a v5e has too few chips. Raises UsageError
        if `--topology` is of another generation.
        """
        if self.compiler == "cpu":
            return None
        if self.topology is None:
            is_small = num_devices <= tpu_compiler.GENERATIONS["v5e"].max_devices
            name = generation or ("v5e" if is_small else "v5p")
            return tpu_compiler.topology_name(name, num_devices)
        tpu_compiler.generation(self.topology)  # raises an error for an unknown topology
        if generation is not None and not self.topology.startswith(f"{generation}:"):
            raise UsageError(f"--topology={self.topology} is not of a TPU {generation}")
        return self.topology
