"""Short tracebacks in notebooks: the user's own lines, and the error as the command line prints it.

IPython shows an exception by its method `_render_traceback_`, if it has one. Here it shows the
short form first. `%tb` shows the last exception once more, and then gets the whole traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, TypeAlias

from lingo.config.base.errors import LingoError
from lingo.config.cells import find_shell
from lingo.config.roots.user_line import causes, error_prefix, first_line, is_user_file

_Entry: TypeAlias = "tuple[FrameType, int, int]"
"""A frame of a traceback, the index of its instruction, and its line."""

_RENDER = "_render_traceback_"


def shorten_traceback(error: BaseException) -> None:
    """Makes a notebook show an error in the short form; does nothing outside a notebook."""
    shell = find_shell()
    if shell is not None and _RENDER not in vars(error):
        vars(error)[_RENDER] = _Renderer(shell, error)


class _Renderer:
    """Returns the lines that IPython prints for an error: the short form, and then the whole."""

    def __init__(self, shell: Any, error: BaseException) -> None:
        self._shell, self._error, self._is_first = shell, error, True

    def __call__(self) -> list[str]:
        error, render = self._error, self._shell.InteractiveTB.structured_traceback
        if not self._is_first:
            return render(type(error), error, error.__traceback__)
        self._is_first = False
        kind, _, text = first_line(error).partition(": ")
        text = str(error) if isinstance(error, LingoError) else text
        text = f"{error_prefix(error)}{text}\n(%tb shows the whole traceback)"
        shown = type(kind, (Exception,), {})(text)  # without causes and notes
        own = _chain(_user_frames(error, self._shell.user_ns))
        return render(type(shown), shown, own)


def _user_frames(error: BaseException, cells: dict[str, Any]) -> Iterator[_Entry]:
    """Yields the entries of the user's files and cells in an error's traceback, outermost first.

    `cells` are the variables of the notebook.
    """
    seen = set[tuple[str, int]]()
    for cause in causes(error):
        entry = cause.__traceback__
        while entry is not None:
            frame, line = entry.tb_frame, entry.tb_lineno
            place = frame.f_code.co_filename, line
            if place not in seen and (frame.f_globals is cells or is_user_file(place[0])):
                seen.add(place)
                yield frame, entry.tb_lasti, line
            entry = entry.tb_next


def _chain(frames: Iterator[_Entry]) -> TracebackType | None:
    """Returns a traceback of some frames."""
    chain: TracebackType | None = None
    for frame, index, line in reversed([*frames]):
        chain = TracebackType(chain, frame, index, line)
    return chain
