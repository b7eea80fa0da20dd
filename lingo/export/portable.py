"""Writes a trained model as a program that runs without lingo, checks it, and describes it.

    signatures  = the functions of the model                  lingo/export/signature.py
    files       = the signatures in a format                  lingo/export/formats.py
    report      = comparison of the files with the run        lingo/export/check.py
    export.json = description of run, signatures, report      lingo/export/manifest.py

All is written into a temporary folder, which gets its final name at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from lingo.config.options import option, option_class
from lingo.config.params import ParamError
from lingo.config.versions import find_versions
from lingo.contract import Experiment
from lingo.export import check
from lingo.export.exported_model import Arrays, ExportedModel
from lingo.export.formats import (
    BFLOAT16_BOUND,
    BOUNDS,
    FORMATS,
    Export,
    Format,
    Functions,
    Quantize,
)
from lingo.export.hugging_face import FloatType
from lingo.export.manifest import write_manifest
from lingo.export.signature import Run, Signature, find_signatures
from lingo.export.text_signature import model_signatures
from lingo.storage.files import new_folder

PROMPT_LENGTH = 64
"""Default number of tokens per prompt in formats with static shapes, for models without sources."""

_PACKAGES = ("lingo-tf", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", "jax", "jaxlib")
"""Packages whose versions the manifest records."""


@option_class
class ExportOptions:
    """The options that `lingo export` and `Trained.export` share."""

    format: Literal["huggingface"] | Format = option(
        "The layout of the folder: a model as on Hugging Face's hub, or a program.",
        default="huggingface",
    )
    config: str | Path | None = option(
        "For huggingface: folder whose config.json describes the model; else the imported one.",
        default=None,
    )
    dtype: FloatType = option(
        "For huggingface: the dtype of the weights in the file.", default="float32"
    )
    batch_size: int = option("For stablehlo and tflite: examples per call.", default=1, minimum=1)
    quantize: Quantize = option(
        "The number types of a tflite, or of the weights of a savedmodel.", default="none"
    )
    prompt_length: int | None = option(
        "For stablehlo and tflite: most tokens per prompt; else 64, or the length of sources.",
        default=None,
        minimum=1,
    )


@option_class
class Settings(ExportOptions):
    """How a model is exported: the command's options, and the signatures."""

    signatures: Sequence[str] = ()  # names of the signatures; empty: all that the task can compute

    def check(self) -> None:
        """Raises ParamError for unknown values, and for settings that do not fit together."""
        hub, programs = ("huggingface",), tuple(FORMATS)
        static = tuple(name for name, form in FORMATS.items() if form.is_static)
        if self.format not in (known := hub + programs):
            raise ParamError(f"format={self.format!r} is not one of {', '.join(known)}")
        if self.quantize not in (kinds := get_args(Quantize)):
            raise ParamError(f"quantize={self.quantize!r} is not one of {', '.join(kinds)}")
        quantized = tuple(n for n, form in FORMATS.items() if self.quantize in form.numbers)
        for name, value, default, formats in (
            ("config", self.config, None, hub),
            ("dtype", self.dtype, "float32", hub),
            ("signatures", tuple(self.signatures), (), programs),
            ("batch_size", self.batch_size, 1, static),
            ("quantize", self.quantize, "none", quantized),
            ("prompt_length", self.prompt_length or 0, 0, static),
        ):
            if value != default and self.format not in formats:
                words = " or ".join(formats)
                raise ParamError(f"{name}={value!r} is for format={words}, not for {self.format}")
        if self.batch_size < 1:
            raise ParamError(f"batch_size={self.batch_size} is not positive")
        if (self.prompt_length or 0) < 0:
            raise ParamError(f"prompt_length={self.prompt_length} is negative")


def export_portable(
    experiment: Experiment,
    weights: Arrays,
    state: Arrays,
    folder: Path,
    settings: Settings,
    *,
    run: Run,
    description: Mapping[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> check.ExportCheck:
    """Writes a model into a new folder as a program that runs without lingo, and checks it.

    If an error occurs, nothing is written.

    Args:
        experiment: the trained model's experiment.
        weights: path -> array, with stacked layers as one array [*stacked axes, ...]. `fold_state`
            or `quantize_state` returns them.
        state: moving statistics in the same form, float32.
        folder: the new folder, whose parent must exist.
        settings: the format and its options, which have been checked.
        run: the trained model, with which the export is compared.
        description: the manifest's fields about the run; `step` is one of them.
        progress: called with a description of each part of the work that takes seconds, before the
            part begins.

    Returns:
        The outcome of the comparison.

    Raises:
        ParamError: if the folder exists, or the format cannot hold the model.
        ExportError: if the export does not compute what the run computes.
        StorageError: if the folder cannot be written.
    """
    if experiment.task.parts():
        raise ParamError(
            "an export is of one task, and this run has several: begin a run of one of them from"
            " these weights, by `init_from` with `rename`, and export that run"
        )
    form = FORMATS[settings.format]
    is_static = form.is_static
    name, data = next(iter(experiment.eval_inputs.items()), ("train_input", experiment.train_input))
    examples = check.read_examples(data)
    specs = {n: ((len(a), *a.shape[1:]), str(a.dtype)) for n, a in examples.items()}
    constant_ranges = settings.quantize == "int8"
    model = ExportedModel(
        experiment,
        weights,
        state,
        compiled=is_static,
        constant_ranges=constant_ranges,
        class_names=() if is_static else description.get("class_names", ()),  # texts vary in length
    )
    signatures = _signatures(model, specs, settings)
    batch_size = settings.batch_size if is_static else data.num_rows(0)
    batches = check.split_examples(examples, batch_size=batch_size, is_static=is_static)
    cases = check.make_cases(signatures, list(batches), is_static=is_static)
    bound = BOUNDS[settings.quantize]
    if experiment.task.p.dtype != "float32":
        bound = check.Bound(*map(max, bound, BFLOAT16_BOUND))
    with new_folder(folder) as partial:
        progress(f"write {', '.join(s.name for s in signatures)} as {settings.format}")
        export = Export(model, signatures, cases, description["step"], settings.quantize)
        functions = form.write(partial, export)
        number = len(examples["weights"])
        progress(f"compare {number} examples of {name} in a process without lingo")
        report = check.check_export(partial, form.loader, cases, run, bound)
        content = dict(description) | {
            "format": settings.format,
            "quantize": settings.quantize,
            "weights_sha256": _digest({**weights, **state}),
            "signatures": _describe(cases, functions, is_static=is_static),
            "check": {"input": name, "examples": number, **_describe_check(report, bound)},
            "evaluation": {"before": report.run_metrics, "after": report.export_metrics},
            "versions": find_versions(_PACKAGES),
        }
        write_manifest(partial, content)
    return report


def _describe_check(report: check.ExportCheck, bound: check.Bound) -> dict[str, Any]:
    """Returns the manifest's fields about the differences of an export and its run."""
    differences = {
        name: {"floats": found.floats, "others": found.others}
        for name, found in report.differences.items()
    }
    return {"bound": bound._asdict(), "differences": differences}


def _signatures(model: ExportedModel, specs: Any, settings: Settings) -> list[Signature]:
    names = settings.signatures
    if not FORMATS[settings.format].is_static:
        return model_signatures(model, names, specs)
    length = specs["source_tokens"][0][1] if "source_tokens" in specs else PROMPT_LENGTH
    return find_signatures(model, names, specs, num_columns=settings.prompt_length or length)


def _describe(
    cases: Sequence[check.Case], functions: Functions, *, is_static: bool
) -> dict[str, dict[str, Any]]:
    """Describes signatures: {signature: {"inputs" or "outputs": {name: [shape, dtype]}}}.

    A size in a shape is None if it may vary.
    """
    described = {}
    for case in cases:
        outputs = functions[case.signature.name].structured_outputs
        described[case.signature.name] = {
            "inputs": {
                name: [case.inputs[name].shape if is_static else shape, dtype]
                for name, (shape, dtype) in case.signature.inputs.items()
            },
            "outputs": {
                name: [spec.shape.as_list(), spec.dtype.name] for name, spec in outputs.items()
            },
        }
    return described


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 digest of arrays' names and values, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
