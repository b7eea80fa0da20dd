"""A run whose directory is the local copy of a bucket's folder is trained as any, and is there."""

import pathlib

import numpy as np
import pytest

from lingo.storage.bucket import cache, commit, results, table
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.lease import LEASES
from lingo.storage.bucket.mirror import pull
from lingo.storage.files import DirectoryLocked
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import watch
from tests.stand_ins.buckets import memory_bucket

pytestmark = pytest.mark.usefixtures("once_compiled")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Goes to another machine, which has local copies of its own."""

    def machine(name):
        monkeypatch.setenv(cache.FOLDER, str(tmp_path / name))

    machine("one")
    return machine


@pytest.fixture
def address(machine):
    return f"memory://{memory_bucket()}/run"


@pytest.fixture
def often(small):
    """Makes the experiment, which uploads every checkpoint that it can."""

    def often(max_steps=6):
        params = small(max_steps)
        params.checkpoint.upload_minutes = 0
        return params

    return often


def test_another_machine_goes_on_as_if_nothing_had_been(
    often, run, losses, weights, directory, address, machine
):
    run(often(), directory)
    run(often(4), address)
    machine("two")
    run(often(), address)
    copy = cache.local_copy(address)
    assert losses(copy) == losses(directory)
    wanted, got = weights(directory), weights(copy)
    assert {*wanted} == {*got}
    assert all(np.array_equal(wanted[name], got[name]) for name in wanted)
    assert (copy / "STATUS").read_text() == "done at step 6\n"


def test_the_bucket_has_the_end_of_a_run_and_nothing_else(often, run, address):
    run(often(), address)
    bucket, copy = Bucket(address), cache.local_copy(address)
    last = commit.read_newest(bucket)
    assert set(bucket.names(table.OBJECTS)) == last.objects
    assert "checkpoints/step_00000006/MANIFEST.json" in last.table
    sizes = {path: sum(s.size for s in segments) for path, segments in last.table.items()}
    assert sizes == {path: (copy / path).stat().st_size for path in sizes}
    assert {"STATUS", "metrics.jsonl", "config.json", "weights.txt"} <= {*sizes}


def test_checkpoints_that_only_the_bucket_has_stay_there(often, run, address, machine):
    params = often(4)
    params.checkpoint.set(keep=1, every_steps=2, keep_every_steps=2)
    run(params, address)
    machine("two")
    params.max_steps = 6
    run(params, address)
    last = commit.read_newest(Bucket(address))
    wanted = [f"step_{step:08d}" for step in (2, 4, 6)]
    assert {*wanted} <= {*table.checkpoint_names(last.table)}
    assert table.local_checkpoints(cache.local_copy(address)) == wanted[1:]


def test_a_checkpoint_that_is_damaged_here_stays_good_there(often, run, address, machine):
    run(often(4), address)
    name = "checkpoints/step_00000004"
    before = table.checkpoint_files(commit.read_newest(Bucket(address)).table, "step_00000004")
    data = next((cache.local_copy(address) / name).glob("*.data-*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with RunDirectory(address).lock():
        pass  # as a start does that another error ends: the end of the block is uploaded
    after = table.checkpoint_files(commit.read_newest(Bucket(address)).table, "step_00000004")
    assert after == before
    machine("two")
    assert run(often(), address).step == 6


def test_a_checkpoint_stays_here_until_it_was_sent(often, run, address, monkeypatch):
    """Of two that the run keeps, an earlier one is still being read when a later one is saved."""
    params = often(8)
    params.checkpoint.set(keep=1, every_steps=2)
    monkeypatch.setattr("lingo.trainer.saver.steps_in_upload", lambda directory: [2])
    run(params, address)
    saved = table.local_checkpoints(cache.local_copy(address))
    assert saved == ["step_00000002", "step_00000008"]


def test_a_run_that_is_done_there_is_not_trained_again(often, run, address, machine):
    run(often(), address)
    machine("two")
    assert run(often(), address).state == "done"
    assert commit.read_newest(Bucket(address)).number > 0


def test_between_uploads_steps_are_saved_here_only(small, run, address, tmp_path):
    params = small()  # an upload every ten minutes
    numbers = []

    class Counts(Bucket):
        def put_if_absent(self, name, data):
            numbers.append(name)
            return super().put_if_absent(name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lingo.storage.bucket.mirror.Bucket", Counts)
        run(params, address)
    commits = [name for name in numbers if name.startswith(commit.COMMITS)]
    assert len(commits) == 2  # at the start and at the end


def test_a_second_trainer_is_refused_with_the_name_of_the_first(often, run, address, machine):
    directory = RunDirectory(address)
    with directory.lock():
        machine("two")
        with pytest.raises(DirectoryLocked, match=r"memory://.* is in use by host .*, process"):
            run(often(), address)
    run(often(), address)


def test_an_upload_that_fails_ends_the_run_with_its_cause(often, run, address, monkeypatch):
    def refuse(bucket, name, file, *, start, stop):
        if "checkpoints/" in name:
            raise BucketError("cannot write memory://...: no room")
        return upload(bucket, name, file, start=start, stop=stop)

    upload = Bucket.upload
    monkeypatch.setattr(Bucket, "upload", refuse)
    with pytest.raises(BucketError, match="no room"):
        run(often(200), address)
    copy = cache.local_copy(address)
    assert (copy / "STATUS").read_text().startswith("failed at step ")
    assert Bucket(address).names(table.OBJECTS)
    monkeypatch.undo()


def test_a_trainer_that_lost_its_lease_stops_and_writes_nothing_more(
    often, run, address, monkeypatch
):
    bucket = Bucket(address)

    def overtaken(lease):
        if bucket.names(commit.COMMITS):
            bucket.put(commit.name_of(LEASES, 99), b'{"owner": "host other, process 1"}')
            lease._lost_to = "host other, process 1"
        return check(lease)

    from lingo.storage.bucket.lease import Lease

    check = Lease.check
    monkeypatch.setattr(Lease, "check", overtaken)
    with pytest.raises(DirectoryLocked, match="taken over by host other, process 1"):
        run(often(200), address)
    assert commit.read_newest(bucket).number == 1


def test_the_flags_of_a_run_name_its_address(often, address):
    from lingo.trainer.directory.run_directory import flags_text

    text = flags_text(cache.local_copy(address), "{}", exp="tiny")
    assert text == f"--exp=tiny\n--logdir={address}\n"


def test_paths_that_are_no_copies_have_no_address(tmp_path):
    assert RunDirectory(tmp_path).address is None
    assert cache.address_of(pathlib.Path("runs/tiny")) is None


# ---- results of evaluations ----------------------------------------------------------------------


def test_the_results_of_an_evaluation_elsewhere_are_equal_in_all_copies(
    often, run, address, machine, tmp_path
):
    run(often(2), address)
    machine("two")
    directory = RunDirectory(address)
    pull(address, directory.path)
    watch.write_evaluations(directory, 2, {"same": {"eval/loss": float("nan")}})
    sent = {path.name: path.read_bytes() for path in directory.evaluation("same").iterdir()}
    assert sent.keys() > {"metrics.jsonl"}
    assert b'"eval/loss": null' in sent["metrics.jsonl"]
    machine("three")
    pull(address, cache.local_copy(address))
    copy = RunDirectory(address).evaluation("same")
    assert {name: (copy / name).read_bytes() for name in sent} == sent


def test_a_run_that_goes_back_drops_results_of_later_steps_that_only_the_bucket_has(
    often, run, address
):
    run(often(2), address)
    with RunDirectory(address).lock() as directory:
        for step in (2, 4):
            row = f'{{"step": {step}, "time": 1.0}}\n'
            results.send(address, {"eval_same/metrics.jsonl": row.encode()})
        directory.cut(3)
    last = commit.read_newest(Bucket(address))
    (segment,) = last.table["eval_same/metrics.jsonl"]
    assert Bucket(address).read(segment.name) == b'{"step": 2, "time": 1.0}\n'
    assert Bucket(address).names(results.RESULTS) == []


def test_results_that_cannot_be_sent_stay_in_the_copy_with_a_warning(
    often, run, address, machine, monkeypatch, caplog
):
    run(often(2), address)
    machine("two")
    directory = RunDirectory(address)
    pull(address, directory.path)

    def refuse(self, name, data):
        raise BucketError(f"cannot write {name}")

    monkeypatch.setattr(Bucket, "put", refuse)
    watch.write_evaluations(directory, 2, {"same": {"eval/loss": 1.0}})
    assert "the results are only in the copy on this machine" in caplog.text
    assert watch.evaluated_steps(directory, ["same"]) == {2}
