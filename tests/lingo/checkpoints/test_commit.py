"""A checkpoint of several processes: the same tensors however they are cut, all or nothing."""

import errno
import itertools
import os
import pathlib
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints import bundle, commit, store
from lingo.checkpoints.bundle import DTYPES
from lingo.checkpoints.checkpoint import open_checkpoint, open_sound
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.checkpoints.manifest import is_whole
from lingo.checkpoints.store import Retention
from lingo.checkpoints.writer import Writer
from lingo.config.base.errors import LingoError, NumericFailure
from lingo.processes.processes import LostWorker
from lingo.storage.bucket import cache, table
from lingo.storage.bucket import commit as bucket_commit
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.bucket.mirror import Mirror
from lingo.storage.bucket.parts import Parts
from lingo.storage.files import StorageError
from lingo.storage.shards import Shards
from tests.stand_ins.buckets import memory_bucket

# ---- cutting -----------------------------------------------------------------------------------


def cut(draw, whole, times):
    """Cuts a box at random places; what comes out fills it, and is no regular grid."""
    boxes = [whole]
    for _ in range(times):
        box = boxes.pop(draw.integers(len(boxes)))
        axes = [i for i, (start, stop) in enumerate(box) if stop - start > 1]
        if not axes:
            boxes.append(box)
            continue
        axis = draw.choice(axes)
        start, stop = box[axis]
        middle = int(draw.integers(start + 1, stop))
        boxes += [
            (*box[:axis], part, *box[axis + 1 :]) for part in ((start, middle), (middle, stop))
        ]
    return boxes


def split(draw, value, count):
    """Returns the parts of a tensor that each of some processes has, some of them none."""
    hands = [[] for _ in range(count)]
    for box in cut(draw, tuple((0, size) for size in value.shape), int(draw.integers(6))):
        index = tuple(slice(*along) for along in box)
        hands[draw.integers(count)].append((index, value[index]))
    return [Shards(value.shape, hand, value.dtype.name) for hand in hands]


def random_tensors(draw):
    def one():
        shape = draw.integers(0 if draw.random() < 0.1 else 1, 5, size=draw.integers(5))
        dtype = draw.choice(DTYPES)
        return np.asarray(draw.integers(0, 100, size=shape)).astype(
            getattr(ml_dtypes, dtype, dtype)
        )

    return {f"weights/{i}": one() for i in range(4)}


def together(crowd, directory, step, hands, **options):
    """Saves what each process has, and returns what each of them says."""
    given = {"metadata": {"seed": 1}, "retention": Retention(3)} | options

    def save(member):
        tensors = hands[member.index].items()
        return store.save(directory, step=step, tensors=tensors, processes=member, **given)

    return crowd.run(save)


GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


def halves(value=GRID):
    """Returns what two processes have of a tensor, and of one that both have."""
    index = (slice(0, 1), slice(None)), (slice(1, 3), slice(None))
    parts = [Shards(value.shape, [(i, value[i].copy())], value.dtype.name) for i in index]
    return [{"weights/w": part, "weights/both": GRID + 1} for part in parts]


# ---- what is written is what is read -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_tensors_cut_anyhow_are_those_that_one_process_saves(tmp_path, crowd, monkeypatch, seed):
    monkeypatch.setattr(bundle, "_GROUP_BYTES", 100)
    draw = np.random.default_rng(seed)
    tensors, count = random_tensors(draw), int(draw.integers(1, 5))
    shards = {name: split(draw, value, count) for name, value in tensors.items()}
    hands = [{name: parts[i] for name, parts in shards.items()} for i in range(count)]
    path = tmp_path / "many/step_00000001"
    assert together(crowd(count), tmp_path / "many", 1, hands) == [path] * count
    alone = store.save(
        tmp_path / "one", step=1, tensors=tensors.items(), metadata={}, retention=Retention(1)
    )

    found = open_sound(path)
    assert dict(found.digests()) == dict(open_sound(alone).digests())
    assert found.tensors == open_sound(alone).tensors
    for name, value in tensors.items():
        start = [int(draw.integers(size + 1)) for size in value.shape]
        index = tuple(
            slice(a, int(draw.integers(a, size + 1)))
            for a, size in zip(start, value.shape, strict=True)
        )
        np.testing.assert_array_equal(found.read_slices([name], index)[0], value[index])


def test_what_is_not_in_parts_is_written_by_the_leader(tmp_path, crowd):
    together(crowd(2), tmp_path, 1, halves())
    found = open_sound(tmp_path / "step_00000001")
    read = found.read(["weights/w", "weights/both"])
    np.testing.assert_array_equal(read["weights/w"], GRID)
    np.testing.assert_array_equal(read["weights/both"], GRID + 1)
    assert sorted(os.listdir(found.path)) == [
        "MANIFEST.json",
        "tensors.data-00000-of-00002",
        "tensors.data-00001-of-00002",
        "tensors.index",
    ]


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Two machines' directories, the leader's mirrored in a bucket, and their Parts."""
    address = f"memory://{memory_bucket()}/run"
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "copies"))
    folders = [cache.local_copy(address), tmp_path / "other"]
    for folder in folders:
        folder.mkdir(parents=True)
    parts = [Parts(address, wait_seconds=1.0) for _ in folders]
    mirror = Mirror(folders[0], address, check=is_whole)
    mirror.open()
    mirror.parts = parts[0].table
    yield SimpleNamespace(address=address, folders=folders, parts=parts, mirror=mirror)
    mirror.close(is_sound=True)


def save_apart(crowd, apart, hands, step=1):
    """Saves what each process has, in its own directory."""

    def save(member):
        directory, parts = apart.folders[member.index] / "checkpoints", apart.parts[member.index]
        own = {"step": step, "tensors": hands[member.index].items(), "metadata": {"seed": 1}}
        return store.save(directory, processes=member, parts=parts, **own)

    return crowd.run(save)


def test_processes_without_a_common_disk_commit_in_a_bucket(tmp_path, crowd, apart):
    save_apart(crowd(2), apart, halves())
    path = apart.folders[0] / "checkpoints/step_00000001"
    assert sorted(os.listdir(path)) == [
        "MANIFEST.json",
        "tensors.data-00000-of-00002",
        "tensors.index",
    ]
    assert os.listdir(apart.folders[1] / "checkpoints") == []
    with pytest.raises(DamagedCheckpoint, match="data-00001-of-00002: No such file"):
        open_sound(path)  # nothing is committed in the bucket yet
    apart.mirror.upload()
    apart.mirror.wait()
    found, bucket = open_sound(path), Bucket(apart.address)
    assert {*bucket.names(table.OBJECTS)} == bucket_commit.read_newest(bucket).objects
    np.testing.assert_array_equal(found.read(["weights/both"])["weights/both"], GRID + 1)
    assert not (path / "tensors.data-00001-of-00002").exists()  # nothing of it was needed
    together(crowd(2), tmp_path / "whole", 1, halves())
    whole = open_sound(tmp_path / "whole/step_00000001")
    assert dict(found.digests()) == dict(whole.digests())
    assert (path / "tensors.data-00001-of-00002").exists()


def test_a_process_without_the_leaders_copy_reads_the_manifest_from_the_bucket(crowd, apart):
    save_apart(crowd(2), apart, halves())
    apart.mirror.upload()
    apart.mirror.wait()
    leaders = apart.folders[0].rename(apart.folders[0].with_name("leader"))  # a copy of its own
    apart.folders[0].mkdir()

    def find():
        return open_checkpoint(leaders / "checkpoints/step_00000001")

    directory = apart.folders[0] / "checkpoints"
    both = crowd(2).run(lambda member: store.share_checkpoint(member, directory, find))
    assert both[1].path == directory / "step_00000001"
    np.testing.assert_array_equal(both[1].read(["weights/w"])["weights/w"], GRID)


def test_who_has_not_sent_its_part_in_time_is_named(crowd, apart, monkeypatch):
    monkeypatch.setattr(apart.parts[1], "send", lambda paths, report: None)
    errors = save_apart(crowd(2), apart, halves())
    for error in errors:
        with pytest.raises(StorageError, match=r"the parts of process 1 are not in .* 1 s"):
            raise error
    assert all(os.listdir(folder / "checkpoints") == [] for folder in apart.folders)


def test_an_error_of_a_process_without_the_disk_ends_the_save_in_all(crowd, apart):
    first, second = halves()
    second["weights/w"].shards[0][1][0, 0] = np.nan
    for error in save_apart(crowd(2), apart, [first, second]):
        with pytest.raises(NumericFailure, match="weights/w are not finite"):
            raise error
    assert all(os.listdir(folder / "checkpoints") == [] for folder in apart.folders)


def test_every_file_of_every_process_is_verified(tmp_path, crowd, flip):
    together(crowd(2), tmp_path, 1, halves())
    together(crowd(2), tmp_path, 2, halves())
    for file in sorted((tmp_path / "step_00000002").iterdir()):
        flip(file, 10)
        found = store.latest(tmp_path)
        assert found.step == 1
        assert file.name in str(found.later_errors[0])
        flip(file, 10)


def writer(directory, member, committed=id):
    return Writer(directory, asynchronous=True, on_commit=committed, processes=member)


def test_writers_of_several_processes_write_in_their_threads(tmp_path, crowd):
    def train(member):
        said = []
        with writer(tmp_path, member, said.append) as out:
            for step in (1, 2):
                out.save(step, halves()[member.index].items(), metadata={})
        return said

    assert crowd(2).run(train) == [[1, 2], [1, 2]]
    assert store.steps(tmp_path) == [1, 2]


def test_an_error_in_the_threads_is_raised_at_the_same_step_everywhere(tmp_path, crowd):
    hands = halves(np.full((3, 4), np.nan, np.float32))

    def train(member):
        with writer(tmp_path, member) as out:
            out.save(1, hands[member.index].items(), metadata={})
            for step in itertools.count():
                try:
                    out.check()
                except NumericFailure:
                    return step
        return -1

    first, other = crowd(2).run(train)
    assert first == other


# ---- all of it or nothing ----------------------------------------------------------------------


def with_parts(*parts):
    return [{"weights/w": part} for part in parts]


def part(*index, value=GRID):
    return Shards(value.shape, [(index, value[index])], value.dtype.name)


@pytest.mark.parametrize(
    ("hands", "said"),
    [
        (
            with_parts(part(slice(0, 2), slice(None)), part(slice(1, 3), slice(None))),
            r"weights/w: element \[1, 0\] of \[3, 4\] is in 2 shards",
        ),
        (
            with_parts(part(slice(0, 2), slice(None)), part(slice(2, 3), slice(0, 3))),
            r"weights/w: element \[2, 3\] of \[3, 4\] is in 0 shards",
        ),
        (
            with_parts(part(slice(0, 3), slice(None)), Shards((4, 4), [], "int8")),
            r"weights/w is .*\[4, 4\].*int8.* in process 1, not .*\[3, 4\].*float32.*",
        ),
    ],
)
def test_an_element_that_is_not_written_once_is_an_error_everywhere(tmp_path, crowd, hands, said):
    leader, other = together(crowd(2), tmp_path, 1, hands)
    assert isinstance(leader, ValueError)
    assert isinstance(other, LingoError)
    for error in (leader, other):
        with pytest.raises(type(error), match=said):
            raise error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failing", [0, 1])
def test_a_number_that_is_not_finite_fails_in_all_processes(tmp_path, crowd, failing):
    hands = halves()
    ((_, array),) = hands[failing]["weights/w"].shards
    array[0, 2] = np.nan
    errors = together(crowd(2), tmp_path, 1, hands)
    assert [type(error) for error in errors] == [NumericFailure] * 2
    assert all("1 of " in str(e) and "numbers in weights/w are not" in str(e) for e in errors)
    assert ("process 1: " in str(errors[0])) == bool(failing)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failing", [0, 1])
def test_a_disk_that_is_full_for_one_process_fails_in_all_and_the_next_save_succeeds(
    tmp_path, crowd, monkeypatch, failing
):
    sealed = commit.seal_file

    def full(path):
        if path.name.startswith(f"part-{failing}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return sealed(path)

    with monkeypatch.context() as patched:
        patched.setattr(commit, "seal_file", full)
        errors = together(crowd(2), tmp_path, 1, halves())
    assert [type(error) for error in errors] == [StorageError] * 2
    assert all("No space left on device" in str(e) and "96 bytes needed" in str(e) for e in errors)
    assert os.listdir(tmp_path) == []
    together(crowd(2), tmp_path, 1, halves())
    assert store.steps(tmp_path) == [1]


def test_an_error_of_any_kind_is_raised_as_it_is_and_told_to_the_others(tmp_path, crowd):
    def breaks():
        yield "weights/w", halves()[1]["weights/w"]
        raise KeyboardInterrupt

    def save(member):
        tensors = breaks() if member.index else halves()[0].items()
        try:
            store.save(
                tmp_path,
                step=1,
                tensors=tensors,
                metadata={},
                retention=Retention(1),
                processes=member,
            )
        except KeyboardInterrupt:
            return "interrupted"

    leader, other = crowd(2).run(save)
    assert other == "interrupted"
    assert isinstance(leader, LingoError)
    assert str(leader) == "process 1: KeyboardInterrupt"
    assert os.listdir(tmp_path) == []


def test_a_process_that_cannot_even_report_is_named(tmp_path, crowd, monkeypatch):
    def denied(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_text", denied)
    errors = together(crowd(2), tmp_path, 1, halves())
    assert [type(error) for error in errors] == [StorageError] * 2
    assert "the report of process 1: No such file or directory" in str(errors[0])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize("point", range(6))
def test_a_process_that_dies_at_any_point_leaves_the_old_checkpoints_and_nothing_else(
    tmp_path, crowd, dying, point
):
    together(crowd(2), tmp_path, 1, halves())
    members = crowd(2, deaths=[(dying, point)])
    members.look = lambda: store.steps(tmp_path)
    said = together(members, tmp_path, 2, halves(), retention=Retention(1))[1 - dying]
    if dying == 0 or point not in (3, 4):  # of another process the leader may hear in time
        assert members.seen[-1] == (2 if point >= 4 else 1)
    assert isinstance(said, LostWorker) or point == 5
    store.clear_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [f"step_{s:08d}" for s in members.seen]
    latest = store.latest(tmp_path)
    assert latest.later_errors == ()
