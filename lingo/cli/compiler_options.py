"""The options that choose the compiler of a mesh's program."""

from __future__ import annotations

from typing import Literal

from lingo.cli.command import UsageError, VerbOptions
from lingo.config.options import option, option_class
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS, topology_name


@option_class
class CompilerOptions(VerbOptions):
    """The options that choose who compiles a program."""

    compiler: Literal["cpu", "tpu"] = option(
        "Whose compiler: the processor's, or a TPU's, which needs no TPU.", default="cpu"
    )
    topology: str | None = option(
        "With --compiler=tpu: the chips, such as v5e:4x4; left out: as many as the mesh has."
    )

    def find_topology(self, num_devices: int, default: str = "") -> str | None:
        """Returns the TPUs to compile for, by default of a generation; None for the processor.

        Raises UsageError for a topology without `--compiler=tpu`.
        """
        if self.compiler == "cpu":
            if self.topology is not None:
                raise UsageError(f"--topology={self.topology} goes with --compiler=tpu")
            return None
        if self.topology is not None:
            return self.topology
        small = GENERATIONS["v5e"].max_devices
        return topology_name(default or ("v5e" if num_devices <= small else "v5p"), num_devices)
