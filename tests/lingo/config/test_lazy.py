"""Lazy imports: nothing before the first use, nothing on the screen, a note if it fails."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

NOISY = "import os; os.write(2, b'noise\\n'); answer = 42"
BROKEN = "import os; os.write(2, b'the reason\\n'); raise OSError('no such library')"
SCRIPT = """
import sys
from lingo.config.lazy import _LazyModule, tf
assert "tensorflow" not in sys.modules, "imported too early"
noisy, broken = _LazyModule("noisy"), _LazyModule("broken")
assert "noisy" not in sys.modules, "imported before an attribute is read"
assert noisy.answer == 42
sys.stderr.write("between\\n")
try:
    broken.answer
except OSError as error:
    sys.stderr.write("".join([*error.__notes__, f"{error}\\n"]))
"""


ROOT = pathlib.Path(__file__).parents[3]


def run(code: str, folder: pathlib.Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Runs code beside some modules."""
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    code = f"import sys; sys.path += {[str(folder), str(ROOT)]}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_with_stderr_closed_there_is_nothing_to_hold_back(tmp_path: pathlib.Path) -> None:
    code = "sys.stderr = None\nfrom lingo.config.lazy import _LazyModule\n"
    code += "print(_LazyModule('quiet').answer)"
    assert run(code, tmp_path, quiet="answer = 42").stdout == "42\n"


def test_an_import_waits_for_its_first_use_and_notes_what_it_wrote_in_its_error(tmp_path):
    done = run(SCRIPT, tmp_path, noisy=NOISY, broken=BROKEN)
    assert done.stderr.splitlines() == ["between", "the reason", "no such library"]


def test_inside_quiet_an_import_by_anybody_is_quiet_and_only_that(tmp_path: pathlib.Path) -> None:
    code = """
from lingo.config.lazy import quiet
finders = list(sys.meta_path)
with quiet("noisy"), quiet("broken"), quiet("nowhere"):
    import user, noisy
    for name in ("broken", "nowhere"):
        try:
            __import__(name)
        except OSError as error:
            print(*error.__notes__, error, sep="", file=sys.stderr)
        except ImportError as error:
            print("none", file=sys.stderr)
assert noisy.answer == 42 and user.noisy is noisy and noisy.__spec__.name == "noisy"
assert sys.meta_path == finders
"""
    user = "import os; os.write(2, b'user\\n'); import noisy"
    done = run(code, tmp_path, noisy=NOISY, broken=BROKEN, user=user)
    assert done.stderr.splitlines() == ["user", "the reason", "no such library", "none"]


def test_what_an_import_wrote_is_not_shown_when_it_is_interrupted(tmp_path: pathlib.Path) -> None:
    code = """
from lingo.config.lazy import _LazyModule
try:
    _LazyModule("stopped").answer
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
"""
    stopped = "import os; os.write(2, b'noise\\n'); raise KeyboardInterrupt"
    assert run(code, tmp_path, stopped=stopped).stderr == "interrupted\n"


def test_tensorflow_is_imported_without_keras_and_jax_which_can_be_imported_later(tmp_path):
    code = """
from lingo.config.lazy import tf
assert tf.constant(1).numpy() == 1
assert not {"keras", "jax"} & {name.partition(".")[0] for name in sys.modules}
from tensorflow.keras import layers
assert tf.keras.layers.Dense(2) and layers.Dense is tf.keras.layers.Dense
import jax, keras
assert keras.src.optimizers and jax.jit
"""
    run(code, tmp_path)


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [("TF_FORCE_GPU_ALLOW_GROWTH", "true", "false"), ("TF_ENABLE_ONEDNN_OPTS", "1", "0")],
)
def test_tensorflow_has_defaults_unless_the_user_says_otherwise(tmp_path, name, default, other):
    code = f"""
import os
from lingo.config.lazy import _LazyModule
assert _LazyModule("first").answer == 42
print(os.environ["{name}"])
"""
    for before, found in (
        (f"import os; os.environ.pop({name!r}, None)", default),
        (f"import os; os.environ[{name!r}] = {other!r}", other),
    ):
        already = f"{before}\nimport first  # by the user\n"
        assert run(already + code, tmp_path, first="answer = 42").stdout == f"{found}\n"
