"""Files as tensors: what is read, what is written, and what happens to files that change."""

import contextlib
import copy
import os
import pickle
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from tiny import Context, Device, Tensor, TinyJit, dtypes, nn
from tiny.nn.state import safe_load
from tiny.runtime.disk import DiskFile
from tiny.uop.runtime import JitError


@pytest.fixture
def file(tmp_path):
    """A file of 64 bytes, 0 to 63."""
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(64)))
    return path


def on_disk(path, *shape, dtype="uint8"):
    return Tensor.empty(*shape, dtype=dtype, device=f"disk:{path}")


# ---------------------------------------------------------------- reading


def test_a_path_is_the_bytes_of_its_file(file):
    t = Tensor(file)
    assert (t.shape, t.dtype, t.device) == ((64,), dtypes.uint8, f"DISK:{file}")
    assert t.tolist() == list(range(64))
    assert t.data().tolist() == list(range(64))
    assert t[7].item() == 7


def test_a_dtype_says_what_the_bytes_are(file):
    t = Tensor(file, dtype="int32")
    assert t.shape == (16,)
    np.testing.assert_array_equal(t.numpy(), np.arange(64, dtype=np.uint8).view(np.int32))


def test_a_device_says_where_the_bytes_go(file):
    t = Tensor(file, device="CPU", dtype="int16")
    assert t.device == "CPU"
    np.testing.assert_array_equal(t.numpy(), np.arange(64, dtype=np.uint8).view(np.int16))


def test_an_empty_file_is_a_tensor_of_no_elements(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    t = Tensor(path)
    assert t.shape == (0,)
    assert t.tolist() == []
    assert t.to("CPU").tolist() == []
    assert t.bitcast("int32").shape == (0,)


VIEWS = {
    "slice": lambda x: x[3:11],
    "row": lambda x: x.reshape(8, 8)[5],
    "rows": lambda x: x.reshape(8, 8)[2:4],
    "columns": lambda x: x.reshape(8, 8)[:, 2:5],
    "block": lambda x: x.reshape(4, 4, 4)[1:3, :, 2],
    "transposed": lambda x: x.reshape(4, 16).T,
    "steps": lambda x: x[5::7],
    "backwards": lambda x: x[::-1],
    "backwards in steps": lambda x: x[60:3:-5],
    "transposed and reshaped": lambda x: x.reshape(4, 16).T.reshape(64),
    "of no elements": lambda x: x[5:5],
    "of no dimensions": lambda x: x[9],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_views_of_a_file_are_those_of_an_array(tmp_path, name, dtype):
    array = np.arange(64).astype(dtype)
    path = tmp_path / "x"
    path.write_bytes(array.tobytes())
    t = VIEWS[name](Tensor(path).bitcast(dtype))
    assert t.device.startswith("DISK:")
    np.testing.assert_array_equal(t.numpy(), VIEWS[name](array))
    np.testing.assert_array_equal((t.to("CPU") + 1).numpy(), VIEWS[name](array) + 1)


def test_expanded_and_padded_views_are_read(file):
    t, array = Tensor(file).reshape(8, 8), np.arange(64, dtype=np.uint8).reshape(8, 8)
    np.testing.assert_array_equal(t[:1].expand(3, 8).numpy(), array[:1].repeat(3, 0))
    flat = t.reshape(64)[:3].expand(3)
    np.testing.assert_array_equal(flat.numpy(), [0, 1, 2])


@pytest.mark.parametrize("offset", [0, 1, 3, 5])
@pytest.mark.parametrize("dtype", [d for d in dtypes.all if d.itemsize > 1])
def test_bitcast_at_any_offset(file, offset, dtype):
    count = 3 * dtype.itemsize
    t = Tensor(file)[offset : offset + count].bitcast(dtype)
    assert t.shape == (3,)
    assert t.to("CPU").bitcast("uint8").tolist() == list(range(offset, offset + count))


def test_bitcast_to_narrower_and_of_rows(file):
    t = Tensor(file).bitcast("int32").reshape(2, 8)[1]
    assert t.bitcast("uint8").tolist() == list(range(32, 64))
    rows = Tensor(file).reshape(4, 16).bitcast("int64")
    np.testing.assert_array_equal(
        rows.numpy(), np.arange(64, dtype=np.uint8).view(np.int64).reshape(4, 2)
    )


def test_bitcast_of_what_does_not_lie_side_by_side_is_refused(file):
    with pytest.raises(ValueError, match="do not lie side by side in the file; move it first"):
        Tensor(file).reshape(8, 8)[:, 0:4].bitcast("int32")
    with pytest.raises(ValueError, match=r"\(63,\) of dtypes.uint8 is no whole number of elements"):
        Tensor(file)[1:].bitcast("int32")


def test_any_byte_but_0_is_true(file):
    t = Tensor(file)[:4].bitcast("bool")
    assert t.device.startswith("DISK:")
    assert t.numpy().view(np.uint8).tolist() == [0, 1, 1, 1]
    assert t.bitcast("uint8").tolist() == [0, 1, 2, 3]


def test_bytes_that_are_no_whole_number_of_items_are_refused(tmp_path):
    path = tmp_path / "odd"
    path.write_bytes(bytes(65))
    with pytest.raises(ValueError, match=r"the 65 bytes of .*odd are no whole number of items"):
        Tensor(path, dtype="int32")


def test_only_what_is_wanted_is_read(tmp_path):
    """Sixteen bytes at the end of eight gigabytes that are nowhere."""
    path = tmp_path / "large"
    with path.open("wb") as f:
        f.seek((8 << 30) - 16)
        f.write(bytes(range(16)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    t = Tensor(path)
    assert t.shape == (8 << 30,)
    assert t[-16:].tolist() == list(range(16))
    assert t[-13:-1].bitcast("int32").to("CPU").bitcast("uint8").tolist() == list(range(3, 15))
    columns = t.reshape(1 << 13, 1 << 20)[-3:, -2:]  # parts that lie far apart
    assert columns.tolist() == [[0, 0], [0, 0], [14, 15]]
    assert t.reshape(1 << 20, 1 << 13).T[-1, -2:].tolist() == [0, 15]
    assert t[(1 << 31) + 3 :: 3 << 30].tolist() == [0, 0]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10  # KiB


def test_what_was_read_is_of_the_moment_in_which_it_was_computed(file):
    t = Tensor(file)[:4].to("CPU")
    twice = (t + t).realize()
    file.write_bytes(bytes([9] * 64))
    assert twice.tolist() == [0, 2, 4, 6]
    assert t.tolist() == [0, 1, 2, 3]
    assert Tensor(file)[:4].tolist() == [9] * 4


def test_a_file_of_the_same_name_is_another_one(file):
    t = Tensor(file)
    other = file.with_name("new")
    other.write_bytes(bytes([7] * 64))
    other.replace(file)
    assert t[:3].tolist() == [0, 1, 2]
    assert Tensor(file)[:3].tolist() == [7, 7, 7]


def test_relative_paths_stay_where_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here").write_bytes(b"abc")
    t, d = Tensor(Path("here")), Tensor.empty(3, dtype="uint8", device="disk:here")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    assert bytes(t.tolist()) == bytes(d.tolist()) == b"abc"


def test_names_of_files_keep_their_case(tmp_path):
    path = tmp_path / "MiXed"
    path.write_bytes(b"abc")
    t = on_disk(path, 3)
    assert t.device == f"DISK:{path}"
    assert Device.canonicalize(f"disk:{path}") == f"DISK:{path}"
    assert bytes(t.tolist()) == b"abc"


# ---------------------------------------------------------------- files that are not as they should


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        Tensor(tmp_path / "nothing")
    t = on_disk(tmp_path / "nothing", 4)
    with pytest.raises(FileNotFoundError, match="nothing"):
        t.numpy()
    assert not (tmp_path / "nothing").exists()  # reading makes none


def test_a_folder_and_a_pipe_are_no_files(tmp_path):
    with pytest.raises(OSError, match="is no regular file"):
        Tensor(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="is no regular file"):  # and does not wait for a writer
            Tensor(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes by name")
@pytest.mark.parametrize("writes", [False, True])
def test_a_pipe_that_takes_the_name_is_no_file(tmp_path, monkeypatch, writes):
    """Between the look at the name and the opening; neither waits for somebody."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    with pytest.raises(OSError, match="is no regular file"):
        if writes:
            Tensor([1, 2], device=f"disk:{tmp_path}/pipe")
        else:
            Tensor(tmp_path / "pipe")


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for use in (Tensor, safe_load, lambda path: Tensor([1], device=f"disk:{path}")):
        with pytest.raises(OSError, match="symbolic links"):
            use(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match=r"large|space|argument"):
        on_disk(tmp_path / "link", 1 << 62)[:1].assign(1)
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "made").exists()
    Tensor([1, 2], dtype="uint8", device=f"disk:{tmp_path}/link")
    assert (tmp_path / "made").read_bytes() == b"\1\2"


def test_a_file_that_is_cut_short_is_an_error_and_no_signal(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 20))
    t = Tensor(path)
    moved = t.to("CPU")
    os.truncate(path, 1000)
    with pytest.raises(OSError, match="x has 1000 bytes; 0 to 1048576 were to be read"):
        moved.realize()
    with pytest.raises(OSError, match="cut short while it was in use"):
        t[-8:].numpy()
    assert t[:8].tolist() == [0] * 8
    os.truncate(path, 1 << 20)
    assert moved.sum().item() == 0  # nothing was spoilt by the error


def test_a_file_that_is_too_short_is_named_with_its_size(file):
    with pytest.raises(OSError, match=r"a.bin has 64 bytes; 0 to 100 were to be read"):
        on_disk(file, 100).numpy()
    assert file.stat().st_size == 64


def test_a_device_without_a_path(file):
    for name in ("disk", "DISK:"):
        with pytest.raises(ValueError, match="a file has a path; name it"):
            Tensor.empty(3, device=name)


def test_a_file_is_no_default_device(file):
    with Context(DEV=f"disk:{file}"), pytest.raises(ValueError, match="set DEV to a device"):
        Tensor([1, 2, 3])
    assert file.read_bytes() == bytes(range(64))


def test_a_string_is_no_path(file):
    with pytest.raises(TypeError, match="bytes or a Path are expected, got str"):
        Tensor(str(file))


# ---------------------------------------------------------------- writing


def test_data_is_written_to_a_new_file(tmp_path):
    path = tmp_path / "new"
    t = Tensor([[1, 2], [3, 4]], device=f"disk:{path}")
    assert t.shape == (2, 2)
    assert path.read_bytes() == np.array([1, 2, 3, 4], np.int32).tobytes()
    assert t.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.all])
def test_a_tensor_is_moved_to_a_file_and_back(tmp_path, dtype):
    x = (Tensor.arange(6) % 2).cast(dtype).reshape(2, 3)
    t = x.to(f"disk:{tmp_path}/x")
    assert (t.shape, t.dtype) == (x.shape, x.dtype)
    assert (tmp_path / "x").stat().st_size == 6 * x.element_size()
    assert t.tolist() == x.tolist()
    assert t.to("CPU").tolist() == x.tolist()


def test_parts_of_a_file_are_written(file):
    t = on_disk(file, 64)
    t[2:4].assign(Tensor([100, 101], dtype="uint8"))
    t[4:6] = 9
    t[6] = Tensor(8, dtype="uint8")
    t.reshape(8, 8)[2:4, 1:3] = Tensor([[1, 2], [3, 4]], dtype="uint8")
    t[::-1][:2] = [70, 71]
    expected = bytearray(range(64))
    expected[2:7] = [100, 101, 9, 9, 8]
    expected[17:19], expected[25:27] = [1, 2], [3, 4]
    expected[63], expected[62] = 70, 71
    assert file.read_bytes() == expected
    assert t.tolist() == list(expected)
    t.assign(bytes(64))
    assert file.read_bytes() == bytes(64)


def test_a_file_becomes_longer_and_never_shorter(file):
    on_disk(file, 100)[70:72].assign([1, 2])
    assert file.stat().st_size == 100
    assert file.read_bytes()[:64] == bytes(range(64))
    assert file.read_bytes()[64:] == bytes(6) + bytes([1, 2]) + bytes(28)
    on_disk(file, 8).assign(0)
    assert file.read_bytes()[8:64] == bytes(range(8, 64))
    assert file.stat().st_size == 100


def test_offsets_past_two_gigabytes_are_written(tmp_path):
    path = tmp_path / "large"
    t = on_disk(path, 3 << 30, dtype="int32")
    t[-2:].assign([5, 6])
    t[(5 << 28) : (5 << 28) + 1].assign([7])
    assert path.stat().st_size == 12 << 30
    with path.open("rb") as f:
        f.seek(5 << 30)
        assert f.read(4) == b"\7\0\0\0"
    assert Tensor(path)[-8:].bitcast("int32").tolist() == [5, 6]


def test_what_was_built_before_a_write_has_the_old_values(file):
    t = on_disk(file, 64)
    old = t[:4].to("CPU")
    both = old + t[2:6].to("CPU")
    t[:8] = 50
    new = t[:4].to("CPU")
    assert old.tolist() == [0, 1, 2, 3]
    assert both.tolist() == [2, 4, 6, 8]
    assert new.tolist() == [50] * 4


def test_a_file_is_written_with_its_own_values(file):
    t = on_disk(file, 64)
    t[0:4].assign(t[2:6])
    t[10:14] = t[10:14].to("CPU") + 1
    assert list(file.read_bytes()[:14]) == [2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14]


def test_a_value_that_fails_leaves_the_file_alone(file):
    short = Tensor(file)[:8].to("CPU")
    t = on_disk(file, 64)
    os.truncate(file, 4)
    with pytest.raises(OSError, match="has 4 bytes"):
        t[:8].assign(short + 1)
    assert file.read_bytes() == bytes(range(4))


@pytest.mark.parametrize("way", ["pwritev", "write"])
def test_a_write_that_fails_leaves_no_new_file_and_no_longer_one(tmp_path, file, monkeypatch, way):
    if way == "write":
        monkeypatch.delattr(os, "pwritev")
    plain = getattr(os, way)

    def full(handle, data, *offset):
        plain(handle, [b"xy"] if way == "pwritev" else b"xy", *offset)
        raise OSError("no space left")

    monkeypatch.setattr(os, way, full)
    with pytest.raises(OSError, match="no space left"):
        Tensor([1, 2], device=f"disk:{tmp_path}/new")
    with pytest.raises(OSError, match="no space left"):
        on_disk(file, 100)[80:].assign(1)
    monkeypatch.undo()
    assert not (tmp_path / "new").exists()
    assert file.read_bytes() == bytes(range(64))
    Tensor([1, 2], device=f"disk:{tmp_path}/new")
    assert (tmp_path / "new").stat().st_size == 8


@pytest.mark.parametrize(
    "write, error, message",
    [
        (lambda t: t[:1].expand(4).assign([1, 2, 3, 4]), ValueError, "a place of its own in the"),
        (lambda t: t.assign(Tensor([1.0] * 64)), TypeError, "float32 can not be written to"),
        (lambda t: t.__setitem__([1, 5], 3), ValueError, "places that are computed can not be"),
        (lambda t: t.assign([1, 2]), ValueError, "does not broadcast"),
    ],
)
def test_what_can_not_be_written(file, write, error, message):
    with pytest.raises(error, match=message):
        write(on_disk(file, 64))
    assert file.read_bytes() == bytes(range(64))


def test_a_path_is_not_written(file):
    with pytest.raises(PermissionError, match=r'opened to be read; .* device="disk:'):
        Tensor(file)[:2].assign([1, 2])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_file_without_permission_is_read_and_not_written(file):
    file.chmod(0o400)
    t = on_disk(file, 64)
    assert t[3].item() == 3
    with pytest.raises(PermissionError, match="may not be written"):
        t[3] = 0


def test_a_file_that_can_not_be_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        Tensor([1], device=f"disk:{tmp_path}/no/such/folder")


# ---------------------------------------------------------------- what a file is not


COMPUTED = {
    "add": lambda t: t + 1,
    "cast": lambda t: t.float(),
    "sum": lambda t: t.sum(),
    "cat": lambda t: t.cat(t),
    "where": lambda t: (Tensor([True] * 64)).where(t, 0),
    "pad": lambda t: t.pad(((1, 1),)),
    "contiguous": lambda t: t.reshape(8, 8).T.contiguous(),
    "constant": lambda t: Tensor(5, dtype="uint8") + t,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_nothing_is_computed_on_a_file(file, name):
    with pytest.raises(ValueError, match=r"move (it first|one), with \.to\("):
        COMPUTED[name](Tensor(file))


def test_operands_on_two_files_are_refused(file):
    with pytest.raises(ValueError, match=r"one operand is on \w+ and one on DISK"):
        Tensor([1] * 64, dtype="uint8") + Tensor(file)


def test_a_file_gets_no_gradient(tmp_path):
    Tensor([1.0, 2.0], device=f"disk:{tmp_path}/w")
    w, x = on_disk(tmp_path / "w", 2, dtype="float32"), Tensor([3.0, 4.0])
    (x * w.to(x.device)).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]
    assert w.grad is None


def test_an_optimizer_does_not_write_to_a_file(tmp_path):
    w = Tensor([1.0, 2.0], device=f"disk:{tmp_path}/w")
    with pytest.raises(ValueError, match="an optimizer writes to memory, and a tensor of shape"):
        nn.optim.SGD([w], lr=0.1)
    assert (tmp_path / "w").read_bytes() == np.array([1, 2], np.float32).tobytes()


def test_results_that_are_like_a_file_are_in_memory(file):
    t = Tensor(file)
    for made in (t.zeros_like(), t.full_like(3), t.empty_like(), t.const_like(1)):
        assert not str(made.device).startswith("DISK")
    with pytest.raises(ValueError, match="one operand is on DISK"):
        t[np.array([1, 2])]
    assert file.read_bytes() == bytes(range(64))


def test_random_numbers_are_made_elsewhere(tmp_path):
    with pytest.raises(ValueError, match="a file computes nothing"):
        Tensor.rand(3, device=f"disk:{tmp_path}/x")
    t = Tensor.ones(3, device=f"disk:{tmp_path}/ones")
    assert (tmp_path / "ones").read_bytes() == np.ones(3, np.float32).tobytes()
    assert t.tolist() == [1.0] * 3


def test_a_step_that_reads_or_writes_a_file_is_not_captured(file):
    read, write = Tensor(file), on_disk(file, 64)

    @TinyJit
    def reads(x):
        return x + read[:2].to(None)

    @TinyJit
    def writes(x):
        write[:2].assign(x)
        return x + 1

    @TinyJit
    def takes(x):
        return x[: read.shape[0]]

    with pytest.raises(JitError, match=r"an argument is on DISK:.*a replay would not read the"):
        for _ in range(3):
            takes(read)

    for step, message in ((reads, "a file was read"), (writes, "a file was written")):
        x = Tensor([1, 2], dtype="uint8").realize()
        step(x)
        with pytest.raises(JitError, match=message):
            step(x)


def test_copies_and_pickles_have_the_values(file):
    t = Tensor(file)[4:8]
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t)), t.clone()):
        assert other.device == Device.DEFAULT
        assert other.tolist() == [4, 5, 6, 7]
    assert file.read_bytes() == bytes(range(64))


def test_a_file_is_closed_with_its_last_tensor(file):
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not list what is open")
    t = Tensor(file)
    view = t[3:5]
    del t

    def is_open():
        links = []
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(os.readlink(link))
        return str(file) in links

    assert is_open()
    assert view.tolist() == [3, 4]
    del view
    assert not is_open()


def test_reads_of_several_threads_do_not_meet(tmp_path):
    path = tmp_path / "x"
    array = np.arange(1 << 14, dtype=np.int32)
    path.write_bytes(array.tobytes())
    t = Tensor(path, dtype="int32")
    wrong = []

    def read(k):
        for n in range(20):
            at = (k * 999 + n * 77) % 16000
            if t[at : at + 50].tolist() != list(range(at, at + 50)):
                wrong.append((k, n))

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_files_are_read_where_there_are_no_positioned_reads(file, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "pwritev")
    t = on_disk(file, 64)
    t[3:5].assign([7, 7])
    assert t[2:6].tolist() == [2, 7, 7, 5]
    with pytest.raises(OSError, match="has 64 bytes"):
        on_disk(file, 65).numpy()


def test_many_files_leave_nothing_behind(tmp_path):
    for k in range(20):
        Tensor([k], device=f"disk:{tmp_path}/{k}")
    assert [d.name for d in Device.opened()].count("DISK") <= 1
    assert DiskFile(tmp_path / "3", is_read_only=True).nbytes == 4
