"""Copies a run from a directory to a bucket, or from a bucket to a directory.

    lingo copy --from=runs/tiny --to=s3://bucket/tiny
    lingo copy --from=gs://bucket/tiny --to=runs/tiny
    lingo train --run=s3://bucket/tiny                  resumes the copy
    tensorboard --logdir=runs/tiny

A copy has all checkpoints, reports and texts of the run, and resumes as the run does. Nothing is
overwritten. While a run in a bucket trains, the copy has its last upload.
"""

from __future__ import annotations

from pathlib import Path

from lingo.cli.command import UsageError, VerbOptions
from lingo.config.options import option, option_class
from lingo.storage.bucket import cache, copy
from lingo.trainer.directory.run_directory import RunDirectory


@option_class
class Options(VerbOptions):
    """The options of `lingo copy`."""

    source: str | None = option("The run: its directory, or its address in a bucket.", flag="from")
    to: str | None = option("The copy: a new directory, or an address in a bucket.")


def run(options: Options) -> int:
    """Copies the run; prints where the copy is."""
    if options.source is None or options.to is None:
        name = "from" if options.source is None else "to"
        raise UsageError(f"no {name} given: lingo copy --from=RUN --to=PLACE")
    source, target = cache.address_of(options.source), cache.address_of(options.to)
    if source is not None and target is None:
        copy.fetch(source, Path(options.to))
    elif source is None and target is not None:
        directory = RunDirectory(options.source)
        if not directory.exists:
            raise UsageError(f"{options.source} is not a run directory")
        with directory.lock():
            copy.send(directory.path, target)
    else:
        what = "directories: cp -a copies them" if source is None else "buckets: copy to a folder"
        raise UsageError(f"--from and --to are both {what}, or name one address, gs:// or s3://")
    print(f"copied to {target or options.to}")
    return 0
