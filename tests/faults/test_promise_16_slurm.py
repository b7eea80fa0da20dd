"""Promise 16: on Slurm, a job saves at its time limit and goes on; sweeps are arrays; stop saves.

The Slurm is real: Debian's `slurm-wlm` with one node of this machine, which root starts here.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import time

import pytest

from tests.faults.conftest import Runs

TIMEOUT = 400.0  # seconds for anything that a job does
START_TIMEOUT = 60.0  # seconds for a daemon to start
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def until(condition, what):
    """Waits for something that a job brings about."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"nothing after {TIMEOUT} seconds: {what}"
        time.sleep(0.2)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def free_ports():
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    """Starts a controller and a node, and yields the path of their configuration."""
    if os.geteuid() != 0:
        pytest.skip("only root may start slurmd")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    folder = pathlib.Path(tmp_path_factory.mktemp("slurm"))
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    for parent in (folder, *folder.parents):
        parent.chmod(parent.stat().st_mode | 0o055)  # munge wants to be reached by all
        if parent == pathlib.Path("/tmp") or parent.parent == pathlib.Path("/"):
            break
    key = folder / "munge/key"
    key.touch(0o400)
    key.write_bytes(os.urandom(128))
    host, (controller, node) = socket.gethostname(), free_ports()
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(host=host, folder=folder, controller=controller, node=node))
    munge = folder / "munge"
    places = ("socket", "pid-file", "log-file", "seed-file")
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}"]
        + [f"--{place}={munge / place.partition('-')[0]}" for place in places],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf), "-N", host],
    ]
    with open(folder / "log", "wb") as log, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        started = []
        try:
            for command in commands:
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
                start(munge.joinpath("socket").exists, folder / "log")
            start(lambda: "idle" in node_state(), folder / "log")
            yield conf
        finally:
            subprocess.run(["scancel", "--user=root"], capture_output=True)
            for process in reversed(started):
                process.terminate()
                process.wait()


def start(is_up, log):
    """Waits for a daemon; skips the tests where none starts, as in some containers."""
    end = time.monotonic() + START_TIMEOUT
    while not is_up():
        if time.monotonic() > end:
            pytest.skip(f"Slurm does not start here: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.2)


def node_state():
    done = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def runs(daemons, tmp_path):
    """A folder, with a space in its name, with an experiment of two files."""
    folder = tmp_path / "my runs"
    folder.mkdir()
    return Runs(folder, "")


def launch(runs, cluster, *command):
    """Launches a command on Slurm; returns the job's id."""
    (runs.folder / "cluster.toml").write_text(cluster)
    flags = ("--on=slurm", "--cluster=cluster.toml")
    done = runs.lingo("launch", *flags, "--", *command, own_imports=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[2].rstrip(",")


def state(job):
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job}", "--format=%T"], capture_output=True, text=True
    )
    return done.stdout.strip()


# A run that only a signal ends, and that saves only then.
LONG = (
    *("max_steps=1000000", "checkpoint.every_steps=1000000", "eval_inputs={}"),
    "summary.every_steps=10",
)


def test_a_job_saves_at_its_time_limit_is_requeued_and_is_stopped(runs):
    training = runs.training("run", *(f"--set={text}" for text in LONG))
    job = launch(runs, 'time = "01:00:00"\nsave_seconds = 60\nmax_requeues = 1\n', *training)
    pathlib.Path(runs.experiment.partition(":")[0]).write_text("an error(")  # it has its copy
    until(lambda: last_report(runs) > 0, "the job trains")
    minutes = sum(60**n * int(t) for n, t in enumerate(elapsed(job).split(":")[-2::-1]))
    output("scontrol", "update", f"jobid={job}", f"timelimit={minutes + 2}")
    until(lambda: stopped_step(runs), "the signal before the time limit")
    saved = stopped_step(runs)
    assert runs.last_step("run") == saved
    until(lambda: state(job) == "PENDING", "the job is requeued")
    output("scontrol", "update", f"jobid={job}", "timelimit=60")
    # Slurm waits two minutes: a job that starts earlier may meet its own revoked credential
    until(lambda: last_report(runs) > saved, "the job goes on")
    listed = runs.lingo("launch", "list", "--run=.", own_imports=True).stdout
    assert f"slurm  {job}" in listed
    assert "RUNNING" in listed

    assert runs.lingo("launch", "stop", "--run=run", own_imports=True).returncode == 0
    until(lambda: state(job) in ("", "COMPLETED", "FAILED"), "the job ends")
    assert stopped_step(runs) > saved
    assert runs.last_step("run") == stopped_step(runs)
    shown = runs.lingo("launch", "logs", "--run=run", own_imports=True).stdout
    assert f"step_{saved:08d}" in shown, shown


def last_report(runs):
    """Returns the last step that the run has reported, or 0."""
    file = runs.folder / "run/metrics.jsonl"
    return max(runs.losses("run"), default=0) if file.exists() else 0


def elapsed(job):
    """Returns how long a job has run, as HOURS:MINUTES:SECONDS or MINUTES:SECONDS."""
    return output("squeue", "--noheader", f"--jobs={job}", "--format=%M")


def stopped_step(runs):
    """Returns the step at which the run has saved after a signal, or 0."""
    file = runs.folder / "run/STATUS"
    words = file.read_text().split() if file.exists() else [""]
    return int(words[-1]) if words[0] == "stopped" else 0


def test_two_workers_of_a_node_meet(runs):
    flags = ("--set=max_steps=2", "--set=eval_inputs={}", "--set=runtime=Mesh(data=2)")
    job = launch(runs, "workers_per_node = 2\n", *runs.training("run", *flags))
    until(lambda: state(job) in ("", "COMPLETED", "FAILED"), "the job ends")
    shown = runs.lingo("launch", "logs", "--run=run", own_imports=True).stdout
    assert runs.status("run") == "done at step 2", shown


def test_a_sweep_is_an_array_whose_results_the_same_sweep_shows(runs):
    sweep = ("sweep", f"--exp={runs.experiment}", f"--logdir={runs.folder / 'sweep'}")
    flags = ("--sweep=optimizer.learning_rate=1e-3,1e-2", "--set=max_steps=2")
    job = launch(runs, "max_requeues = 0\n", *sweep, *flags, "--set=eval_inputs={}")
    until(lambda: set(state(job).split()) <= {"COMPLETED", "FAILED"}, "the jobs end")
    logs = runs.lingo("launch", "logs", "--run=sweep", own_imports=True).stdout
    assert f"==> slurm-{job}_0.log <==" in logs
    assert f"==> slurm-{job}_1.log <==" in logs
    shown = runs.lingo(*sweep, *flags, "--set=eval_inputs={}", own_imports=True)
    assert shown.returncode == 0
    assert shown.stdout.count("done before") == 2, logs
