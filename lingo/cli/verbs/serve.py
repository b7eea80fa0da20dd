"""Serves a trained model over HTTP on this machine, by the paths of TensorFlow Serving.

    lingo serve --run=runs/tiny
    lingo serve --run=runs/tiny --step=best --weights=ema --port=8502
    lingo serve --export=served --name=tiny
    lingo serve --export=served --max_batch_size=64 --max_delay_ms=2 --max_requests=1000
    lingo serve --export=served --host=0.0.0.0 --api_key_file=key.txt

    curl localhost:8501/v1/models/tiny:predict \\
        -d '{"signature_name": "score_text", "instances": ["import numpy"]}'

A run is served from one checkpoint, an export of --format=savedmodel from its newest version; what
is written later is not served. Requests that arrive together are computed together. Metrics are at
/metrics, health at /healthz. Only programs of this machine reach the server, unless --host says
otherwise. With --api_key_file it answers those that send the header "Authorization: Bearer KEY";
/healthz and /metrics need no key. It has no encryption.

At SIGTERM or Ctrl+C requests in progress are answered, others refused (503); then the server ends,
with 143 or 130. A second signal ends it at once.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.config import regular_file
from lingo.config.errors import MissingPackage
from lingo.config.printable import escape_controls
from lingo.contract import build_experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

if TYPE_CHECKING:
    from lingo.serving.model import ServedModel

WORD = ""  # it takes no word beside its flags

_PACKAGES = ("prometheus_client", "starlette", "uvicorn")  # of the extra
_HOST, _PORT = "127.0.0.1", 8501  # the port of TensorFlow Serving
_BYTES_PER_MB = 1_000_000
_MAX_KEY_BYTES = 4096
_DEFAULTS = {
    "max_batch_size": 32,
    "max_positions": 1024,
    "max_delay_ms": 5,
    "max_requests": 512,
    "max_body_mb": 8,
    "timeout": 60,
    "read_timeout": 10,
}
"""Of the limits, by flag."""


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    experiment_flags.define_step(values)
    experiment_flags.define_weights(values)
    command.string("export", "A folder of lingo export, instead of a run.", values)
    command.string("name", "The model's name in paths (default: the folder's).", values)
    command.string("host", f"The address to listen at (default: {_HOST}).", values)
    command.integer(
        "port",
        f"The port; 0: any that is free (default: {_PORT}).",
        values,
        lower_bound=0,
        upper_bound=65535,
    )
    _define_limit("max_batch_size", "Examples of a batch, and of a request", values)
    command.number(
        "max_delay_ms",
        f"How long a request waits for others (default: {_DEFAULTS['max_delay_ms']}).",
        values,
        lower_bound=0,
    )
    _define_limit("max_positions", "Tokens, or bytes of a text, of an example, else 413", values)
    _define_limit("max_requests", "Requests in progress at a time, else 429", values)
    _define_limit("max_body_mb", "Size of a request, else 413", values)
    _define_limit("timeout", "Seconds for a request, else 504", values)
    _define_limit("read_timeout", "Seconds for a client to send, else 408", values)
    command.string("api_key_file", "A file with the key that requests give, else 401.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Serves until a signal."""
    del word
    if (values.run is None) == (values.export is None):
        both = ", not both" if values.run is not None else ""
        raise UsageError(f"give either --run=DIR or --export=FOLDER{both}")
    _check_packages()
    from lingo.serving.app import Limits
    from lingo.serving.batcher import BatchLimits
    from lingo.serving.server import bind, serve

    given = {name: values[name].value for name in _DEFAULTS}
    most = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
    limits = Limits(
        batch=BatchLimits(
            max_examples=most["max_batch_size"],
            max_delay_seconds=most["max_delay_ms"] / 1000,
            max_positions=most["max_positions"],
        ),
        max_requests=most["max_requests"],
        max_body_bytes=most["max_body_mb"] * _BYTES_PER_MB,
        timeout_seconds=most["timeout"],
        read_timeout_seconds=most["read_timeout"],
        api_key=b"" if values.api_key_file is None else _read_key(Path(values.api_key_file)),
    )
    host, port = values.host or _HOST, _PORT if values.port is None else values.port
    with bind(host, port) as bound:
        model = _load(values)
        print(f"{model.name}, version {model.version}: {', '.join(model.signatures)}")

        def print_address() -> None:
            place = f"[{host}]" if ":" in host else host
            path = f"{place}:{bound.getsockname()[1]}/v1/models/{model.name}"
            print(f"serving at http://{path}", flush=True)

        serve(model, limits, bound, report=_print_error, on_ready=print_address)
    return 0


def _load(values: flags.FlagValues) -> ServedModel:
    from lingo.serving.model import load_export, load_run

    if values.export is not None:
        given = ["set", "step", "weights", "devices"]
        if stray := next((flag for flag in given if values[flag].value), None):
            raise UsageError(
                f"--{stray} applies to --run only: an export's weights and settings are fixed"
            )
        print("note: an export's operations run as code: serve only those that you trust")
        return load_export(Path(values.export), name=values.name)
    step = experiment_flags.read_step(values.step)
    resolved = experiment_flags.resolve_run_with_weights(values)
    experiment_flags.make_devices(values, resolved.params)
    with build_experiment(resolved).runtime.join():
        trained = Trained(resolved.params, RunDirectory(values.run), step=step)
        experiment_flags.print_later_errors(trained.checkpoint)
        return load_run(trained, Path(values.run), name=values.name)


def _read_key(file: Path) -> bytes:
    """Returns the key in a file; raises UsageError unless the file holds one."""
    try:
        key = regular_file.read(file, max_bytes=_MAX_KEY_BYTES).strip()
    except OSError as error:
        raise UsageError(f"--api_key_file={file} cannot be read: {error.strerror}") from None
    if not key or len(key) > _MAX_KEY_BYTES or len(key.split()) > 1 or not key.isascii():
        raise UsageError(
            f"--api_key_file={file} holds no key: one word of up to {_MAX_KEY_BYTES:,} ASCII"
            " characters is wanted"
        )
    return key


def _check_packages() -> None:
    """Raises MissingPackage without the packages of the extra."""
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        raise MissingPackage(
            "serving needs packages that are not installed: pip install 'lingo-tf[serve]'"
        )


def _define_limit(name: str, help: str, values: flags.FlagValues) -> None:
    command.integer(name, f"{help} (default: {_DEFAULTS[name]}).", values, lower_bound=1)


def _print_error(line: str) -> None:
    print(f"lingo serve: {escape_controls(line)}", file=sys.stderr, flush=True)
