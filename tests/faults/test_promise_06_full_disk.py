"""Promise 6: on a full or read-only disk the old checkpoint stays good, and nothing is pretended.

What is left of a run is trained on when there is room, and ends as one that was never disturbed.
"""

import os
import re
import shutil
import subprocess

import pytest

STORAGE = 10
SLEEP = "step:sleep=8@4"  # the state of step 3 is saved, that of step 6 is not


def fill(disk, *, leave=0):
    """Fills a disk, but for some bytes."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - leave)


@pytest.fixture
def disk(runs, mounts):
    """The directory `run`, a disk of its own."""
    mounts.tmpfs(runs.folder / "run", "size=20m")
    return runs.folder / "run"


def size(folder):
    """Returns how much of a disk the files in a folder take."""
    return sum(-(-f.stat().st_size // 4096) * 4096 for f in folder.rglob("*") if f.is_file())


def started(runs, inject=SLEEP, **options):
    """Returns a process that has saved step 3 and sleeps before it does step 5."""
    process = runs.start(*runs.training("run"), inject=inject, **options)
    runs.reach_save("run", 3, process)
    return process


def assert_goes_on(runs, reference, *, losses=True):
    """Trains what is left, and compares with the run that was not disturbed."""
    assert runs.assert_resumes(reference, losses=losses).stderr == ""
    assert runs.status("run") == "done at step 12"


def assert_nothing_is_pretended(runs, done, kept):
    """Checks that a process ended by its storage, and which checkpoints are there and sound."""
    assert done.returncode == STORAGE, done.stderr
    assert "Traceback" not in done.stderr
    assert "done at step" not in done.stdout
    assert runs.checkpoints("run") == kept
    assert all(runs.is_sound("run", step) for step in kept)


def warnings_of(done, path):
    return len(re.findall(rf"^cannot write \S*{path}", done.stderr, re.MULTILINE))


# ---- full ----------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_last_save(runs, reference, disk):
    fill(disk, leave=size(reference.folder / "whole") - 40_000)  # less than a checkpoint missing
    done = runs.train("run")
    assert_nothing_is_pretended(runs, done, [3, 6, 9])
    said = r"cannot write \S*/step_00000012: No space left on device \(.* bytes free, .* needed\)"
    assert re.search(said, done.stderr)
    (disk / "ballast").unlink()
    assert_goes_on(runs, reference)


@pytest.mark.parametrize("part", [0.1, 0.8])
def test_a_disk_that_is_full_at_any_time(runs, reference, disk, part):
    fill(disk, leave=int(part * size(reference.folder / "whole")))
    done = runs.train("run")
    if done.returncode == 0:  # there was no room for the picture of the graph, so for the rest
        assert warnings_of(done, "train/events") == 1
    else:
        assert_nothing_is_pretended(runs, done, runs.checkpoints("run"))
    assert runs.leftovers("run") == []
    (disk / "ballast").unlink()
    assert_goes_on(runs, reference)


def test_a_disk_that_something_else_fills_between_saves(runs, reference, disk):
    process = started(runs)
    fill(disk)
    done = runs.finish(process)
    assert_nothing_is_pretended(runs, done, [3])
    for path in ("metrics.jsonl", "train/events"):
        assert warnings_of(done, path) <= 1
    (disk / "ballast").unlink()
    assert_goes_on(runs, reference)


def test_a_disk_without_room_for_another_file(runs, reference, mounts):
    disk = runs.folder / "run"
    mounts.tmpfs(disk, "size=20m,nr_inodes=20")
    done = runs.train("run")
    assert_nothing_is_pretended(runs, done, runs.checkpoints("run"))
    assert "no inode is free" in done.stderr
    mounts.change(disk, "nr_inodes=1000")
    assert_goes_on(runs, reference)


def test_output_that_goes_to_the_full_disk_as_well(runs, reference, disk):
    fill(disk, leave=size(reference.folder / "whole") - 100_000)
    command = f'exec "$@" > {disk}/log.txt 2>&1'
    done = runs.train("run", prefix=("bash", "-c", command, "bash"))
    assert_nothing_is_pretended(runs, done, runs.checkpoints("run"))
    (disk / "ballast").unlink()
    assert_goes_on(runs, reference)


def test_output_that_goes_nowhere_ends_no_training(runs, reference):
    done = runs.train("run", prefix=("bash", "-c", 'exec "$@" > /dev/full 2>&1', "bash"))
    assert done.returncode == 0
    assert runs.digests("run") == reference.digests("whole")
    assert runs.losses("run") == reference.losses("whole")


# ---- read-only -----------------------------------------------------------------------------------


def test_a_directory_that_is_read_only_at_the_start(runs, mounts):
    (runs.folder / "run").mkdir()
    mounts.read_only(runs.folder)
    for name in ("run", "new"):
        done = runs.train(name)
        assert done.returncode == STORAGE
        path = runs.folder / name
        assert f"cannot write {path}" in done.stderr
        assert "Read-only file system" in done.stderr
    assert sorted(os.listdir(runs.folder)) == ["probe", "run", "small.py", "texts"]
    assert os.listdir(runs.folder / "run") == []


def test_a_disk_that_becomes_read_only(runs, reference, mounts):
    process = started(runs)
    mounts.read_only(runs.folder / "run")
    done = runs.finish(process)
    assert_nothing_is_pretended(runs, done, [3])
    mounts.unmount(runs.folder / "run")
    assert_goes_on(runs, reference)


def test_events_that_cannot_be_written_are_a_warning(runs, reference, mounts):
    process = started(runs)
    mounts.read_only(runs.folder / "run" / "train")
    done = runs.finish(process)
    assert done.returncode == 0, done.stderr
    assert warnings_of(done, "train/events") == 1
    assert len(done.stderr.splitlines()) == 1
    mounts.unmount(runs.folder / "run" / "train")
    assert_goes_on(runs, reference)


def test_reports_wait_until_they_can_be_written(runs, reference, mounts):
    metrics = runs.folder / "run" / "metrics.jsonl"
    process = started(runs, f"{SLEEP} step:sleep=8@10")
    mounts.read_only(metrics)
    runs.reach_save("run", 9, process)
    mounts.unmount(metrics)
    done = runs.finish(process)
    assert done.returncode == 0, done.stderr
    assert warnings_of(done, "metrics.jsonl") == 1
    assert runs.losses("run") == reference.losses("whole")
    assert_goes_on(runs, reference)


def test_a_run_whose_last_reports_are_lost_is_evaluated_again(runs, reference, mounts):
    metrics = runs.folder / "run" / "metrics.jsonl"
    process = started(runs)
    mounts.read_only(metrics)
    done = runs.finish(process)
    assert done.returncode == 0, done.stderr
    assert re.search(r"metrics.jsonl lacks the last \d reports", done.stderr)
    mounts.unmount(metrics)
    assert_goes_on(runs, reference, losses=False)
    assert '"eval/loss"' in metrics.read_text().splitlines()[-1]


# ---- other errors of the system ------------------------------------------------------------------


def test_a_run_directory_that_is_moved_is_not_written_to_any_more(runs):
    process = started(runs)
    (runs.folder / "run").rename(runs.folder / "elsewhere")
    done = runs.finish(process)
    assert done.returncode == STORAGE, done.stderr
    assert "was moved or deleted" in done.stderr
    assert not (runs.folder / "run").exists()
    assert runs.checkpoints("elsewhere") == [3]


def test_too_many_open_files(runs, reference):
    process = started(runs)
    runs.reach_sleep(process)
    limit = len(os.listdir(f"/proc/{process.pid}/fd"))
    subprocess.run(["prlimit", f"--pid={process.pid}", f"--nofile={limit}:{limit}"], check=True)
    done = runs.finish(process)
    assert done.returncode in (STORAGE, 5), done.stderr  # 5: a text could not be opened
    assert "Too many open files" in done.stderr
    assert_goes_on(runs, reference, losses=False)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    "fault",
    [
        "write:error=EDQUOT:when=60+",
        "fsync:error=EIO:when=20",
        "rename:error=EIO:when=5+",
        "mkdir:error=EACCES:when=3+",
    ],
)
def test_a_system_call_that_fails(runs, reference, fault):
    call = fault.partition(":")[0]
    strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}")
    strace += ("-e", f"inject={fault}")
    done = runs.train("run", prefix=strace, PYTHONDONTWRITEBYTECODE="1")  # it is lingo's that fails
    assert done.returncode in (0, STORAGE), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert runs.digests("run") == reference.digests("whole")
    assert_goes_on(runs, reference, losses=False)


# ---- exports -------------------------------------------------------------------------------------


def test_an_export_to_a_full_disk_leaves_nothing(runs, reference, mounts):
    shutil.copytree(reference.folder / "whole", runs.folder / "whole")
    disk = runs.folder / "disk"
    mounts.tmpfs(disk, "size=200k")
    done = runs.lingo("export", "--run=whole", "--format=savedmodel", "--output=disk/out")
    assert (done.returncode, "Traceback" in done.stderr) == (STORAGE, False), done.stderr
    assert re.search(r"cannot write disk/out: No space left on device \(", done.stderr)
    assert [*disk.iterdir()] == []


def test_an_export_to_a_read_only_directory_leaves_nothing(runs, reference, mounts):
    shutil.copytree(reference.folder / "whole", runs.folder / "whole")
    (runs.folder / "kept").mkdir()
    mounts.read_only(runs.folder / "kept")
    done = runs.lingo("export", "--run=whole", "--format=savedmodel", "--output=kept/out")
    assert done.returncode == STORAGE
    assert "cannot write kept/out: Read-only file system" in done.stderr
    assert [*(runs.folder / "kept").iterdir()] == []
