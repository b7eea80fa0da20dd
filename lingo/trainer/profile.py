"""Profiles of the devices' work in some steps, for TensorBoard's profile tab."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary

from lingo.config.lazy import tf
from lingo.storage.files import StorageError, describe_os_error, make_folder, write_bytes
from lingo.trainer.summaries.events import Events

_ITERATION, _RENAMED = b"iter_num", b"loop_num"  # equally long, so that the file stays valid

_log = logging.getLogger(__name__)


class Profile:
    """Profiles a range of steps, once.

    The steps that one call of the program does are a span (`loop.spans`). A span must end at each
    of `bounds`, so that the range consists of whole spans. The profile's overview shows a span as
    one step, whatever its number of steps.
    """

    def __init__(self, folder: Path, steps: range, *, enabled: bool = True) -> None:
        """Records nothing yet. If not `enabled`, it has the same `bounds` but never records.

        range(10, 15) begins after 10 steps and ends after 15 steps. An empty range: no profile.
        """
        self._folder, self._steps = folder, steps if enabled else range(0)
        self._is_running = self._was_running = False
        self.bounds = (steps.start, steps.stop) if steps else ()

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._stop()
        if self._steps and not self._was_running and error is None:
            _log.warning(
                "profile_steps=%s:%s: no such step was done, so there is no profile.",
                *(self._steps.start, self._steps.stop),
            )

    @contextlib.contextmanager
    def record(self, steps: range) -> Iterator[None]:
        """Profiles the body if its steps, which must be a whole span, are in the range."""
        if steps.start in self._steps and not self._was_running:
            self._start()
        with self._mark_step(steps):
            yield
        if steps.stop not in self._steps:
            self._stop()

    @contextlib.contextmanager
    def _mark_step(self, steps: range) -> Iterator[None]:
        """Marks the body, a span of steps, as one step for the overview.

        The mark has a second event inside, because the overview leaves out a step without events:
        on a mesh another profiler records the computations.
        """
        if not self._is_running:
            yield
            return
        trace = tf.profiler.experimental.Trace
        with trace("train", step_num=steps.start + 1, _r=1), trace("span"):
            yield

    def _start(self) -> None:
        self._was_running = True
        try:
            # TensorBoard looks for profiles only in folders that have event files
            Events(self._folder.parent).add(self._folder, self._steps.start, Summary())
            # the profiler writes here and follows links; `make_folder` refuses them
            make_folder(self._folder / "plugins" / "profile", root=self._folder.parent)
            tf.profiler.experimental.start(str(self._folder))
            self._is_running = True
        except (OSError, tf.errors.OpError) as error:  # a profiler is running, the disk is full
            _log.warning("no profile: %s", describe_os_error(error))

    def _stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        try:
            tf.profiler.experimental.stop()
            for file in (self._folder / "plugins" / "profile").glob("*/*.xplane.pb"):
                _hide_iterations(file, root=self._folder.parent)
        except (OSError, StorageError, tf.errors.OpError) as error:
            _log.warning("no profile: %s", describe_os_error(error))


def _hide_iterations(file: Path, *, root: Path) -> None:
    """Renames `iter_num`, the iteration number of a TensorFlow loop, in a profile.

    If TensorBoard's plugin finds it, it takes iterations for steps, even of a loop inside a step.
    It then ignores the marks of steps, and its overview has no times.
    """
    content = file.read_bytes()
    if _ITERATION in content:
        write_bytes(file, content.replace(_ITERATION, _RENAMED), root=root)
