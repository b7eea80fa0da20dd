import signal
import subprocess
import sys

# in processes of their own: one with threads, as that of these tests, had better not fork
CHILD = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
received = signal.sigtimedwait([signal.SIGTERM], 30)
print(received and received.si_signo, flush=True)
"""
PARENT = f"""
import signal, subprocess, sys
from lingo.processes.parent import prepare_die_with_parent
settle = prepare_die_with_parent(signal.SIGTERM)
subprocess.run([sys.executable, "-c", {CHILD!r}], preexec_fn=settle)
"""
GRANDPARENT = """
import os, signal
from lingo.processes.parent import prepare_die_with_parent
settle = prepare_die_with_parent(signal.SIGKILL)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
settle()
os._exit(0)
"""


def test_a_child_gets_the_signal_when_its_parent_is_killed():
    program = [sys.executable, "-c", PARENT]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.stdout.read() == f"{int(signal.SIGTERM)}\n"


def test_a_child_that_another_process_has_taken_over_ends_at_once():
    assert subprocess.run([sys.executable, "-c", GRANDPARENT]).returncode == 1
