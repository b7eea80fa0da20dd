"""Serves a trained model over HTTP on this machine, by the paths of TensorFlow Serving.

    lingo serve --run=runs/tiny
    lingo serve --run=runs/tiny --step=best --weights=ema --port=8502
    lingo serve --export=served --name=tiny
    lingo serve --export=served --max_batch_size=64 --max_delay_ms=2 --max_requests=1000
    lingo serve --export=served --host=0.0.0.0 --api_key_file=key.txt

    curl localhost:8501/v1/models/tiny:predict \\
        -d '{"signature_name": "score_text", "instances": ["import numpy"]}'

The server uses one checkpoint of a run, or the newest version of an export with
--format=savedmodel; it does not serve later ones. Requests that arrive together are computed
together. Metrics are at /metrics, health at /healthz. Only programs of this machine reach the
server, unless --host says otherwise. With --api_key_file it answers only requests with the header
"Authorization: Bearer KEY"; /healthz and /metrics need no key. It has no encryption.

At SIGTERM or Ctrl+C requests in progress are answered, new ones refused (503); then the server
ends, with 143 or 130. A second signal ends it at once.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lingo.cli import experiment_options
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import DeviceOptions, WeightOptions
from lingo.cli.options import StepOptions
from lingo.config.base import regular_file
from lingo.config.base.errors import MissingPackage
from lingo.config.options import option, option_class
from lingo.config.printable import escape_controls
from lingo.contract import build_experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.trained import Trained

if TYPE_CHECKING:
    from lingo.serving.model import ServedModel


_PACKAGES = ("prometheus_client", "starlette", "uvicorn")  # of the extra `serve`
_BYTES_PER_MB = 1_000_000
_MAX_KEY_BYTES = 4096


@option_class
class Options(StepOptions, WeightOptions, DeviceOptions):
    """The options of `lingo serve`."""

    export: str | None = option("A folder of lingo export, instead of a run.")
    name: str | None = option("The model's name in paths; else the folder's.")
    host: str = option("The address to listen at.", default="127.0.0.1")
    port: int = option(
        "The port, by default TensorFlow Serving's; 0: any free port.",
        default=8501,
        minimum=0,
        maximum=65535,
    )
    max_batch_size: int = option("Most examples of a batch or a request.", default=32, minimum=1)
    max_delay_ms: float = option("How long a request waits for a batch.", default=5, minimum=0)
    max_positions: int = option(
        "Most tokens, or bytes of text, of an example, else 413.", default=1024, minimum=1
    )
    max_requests: int = option("Most requests in progress, else 429.", default=512, minimum=1)
    max_body_mb: int = option("Largest size of a request, else 413.", default=8, minimum=1)
    timeout: int = option("Seconds for a request, else 504.", default=60, minimum=1)
    read_timeout: int = option("Seconds for a client to send, else 408.", default=10, minimum=1)
    api_key_file: str | None = option("A file with the key that requests give, else 401.")


def run(options: Options) -> int:
    """Serves the model until a signal ends the server."""
    if (options.run is None) == (options.export is None):
        both = ", not both" if options.run is not None else ""
        raise UsageError(f"give either --run=DIR or --export=FOLDER{both}")
    _check_packages()
    from lingo.serving.app import Limits
    from lingo.serving.batcher import BatchLimits
    from lingo.serving.server import bind, serve

    limits = Limits(
        batch=BatchLimits(
            max_examples=options.max_batch_size,
            max_delay_seconds=options.max_delay_ms / 1000,
            max_positions=options.max_positions,
        ),
        max_requests=options.max_requests,
        max_body_bytes=options.max_body_mb * _BYTES_PER_MB,
        timeout_seconds=options.timeout,
        read_timeout_seconds=options.read_timeout,
        api_key=b"" if options.api_key_file is None else _read_key(Path(options.api_key_file)),
    )
    host = options.host
    with bind(host, options.port) as bound:
        model = _load(options)
        print(f"{model.name}, version {model.version}: {', '.join(model.signatures)}")

        def print_address() -> None:
            place = f"[{host}]" if ":" in host else host
            path = f"{place}:{bound.getsockname()[1]}/v1/models/{model.name}"
            print(f"serving at http://{path}", flush=True)

        serve(model, limits, bound, report=_print_error, on_ready=print_address)
    return 0


def _load(options: Options) -> ServedModel:
    from lingo.serving.model import load_export, load_run

    if options.export is not None:
        given = ["set", "step", "weights", "devices"]
        if stray := next((flag for flag in given if getattr(options, flag)), None):
            raise UsageError(
                f"--{stray} applies to --run only: an export's weights and settings are fixed"
            )
        print("note: an export's operations run as code: serve only those that you trust")
        return load_export(Path(options.export), name=options.name)
    resolved = options.resolve_with_weights()
    options.make_devices(resolved.params)
    with build_experiment(resolved).runtime.join():
        run = RunDirectory(options.require_run())
        trained = Trained(resolved.params, run, step=options.step)
        experiment_options.print_later_errors(trained.checkpoint)
        return load_run(trained, run.path, name=options.name)


def _read_key(file: Path) -> bytes:
    """Returns the API key in a file; raises UsageError if the file does not hold just a key."""
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
    """Raises MissingPackage unless the packages of the extra `serve` are installed."""
    if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
        raise MissingPackage(
            "serving needs packages that are not installed: pip install 'lingo-tf[serve]'"
        )


def _print_error(line: str) -> None:
    print(f"lingo serve: {escape_controls(line)}", file=sys.stderr, flush=True)
