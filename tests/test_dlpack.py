"""Memory shared with others: DLPack both ways, `np.asarray`, addresses."""

import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest

from tiny import Tensor, TinyJit, dtypes
from tiny._core.dlpack import Foreign, give
from tiny.uop.runtime import JitError

torch = pytest.importorskip("torch")

SHARED_WITH_NUMPY = [d.name for d in dtypes.all if d.fmt]


def numbers(dtype="float32", shape=(2, 3)):
    count = int(np.prod(shape))
    return (Tensor.arange(count).reshape(shape) % 3).cast(dtype).contiguous().realize()


def address(t):
    return Foreign(t.__dlpack__(copy=False)).address


# ---------------------------------------------------------------- giving


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.all])
def test_pytorch_takes_every_dtype(dtype):
    t = numbers(dtype)
    x = torch.from_dlpack(t)
    assert str(x.dtype).startswith("torch.")
    assert x.double().tolist() == t.double().tolist()
    assert x.data_ptr() == address(t)
    back = Tensor.from_dlpack(x)
    assert back.dtype is t.dtype
    assert back.tolist() == t.tolist()


@pytest.mark.parametrize("dtype", SHARED_WITH_NUMPY)
def test_numpy_takes_every_dtype_that_it_has(dtype):
    t = numbers(dtype)
    x = np.from_dlpack(t)
    assert x.dtype == t.numpy().dtype
    assert x.ctypes.data == address(t)
    np.testing.assert_array_equal(x, t.numpy())


VIEWS = {
    "all": lambda x: x,
    "transposed": lambda x: x.T,
    "columns": lambda x: x[:, 1:],
    "a column": lambda x: x[:, 2],
    "a row": lambda x: x[1],
    "an element": lambda x: x[1, 2],
    "steps": lambda x: x.reshape(6)[::4],
    "steps of columns": lambda x: x[:, ::2],
    "reshaped": lambda x: x.reshape(3, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_shared_as_they_lie(name):
    t = numbers()
    view = VIEWS[name](t)
    x = torch.from_dlpack(view)
    expected = VIEWS[name](torch.from_dlpack(t))
    assert x.data_ptr() == expected.data_ptr()
    assert x.tolist() == view.tolist() == expected.tolist()
    assert tuple(x.shape) == view.shape
    assert np.from_dlpack(view).tolist() == view.tolist()


COPIED = {
    "expanded": lambda x: x[:1].expand(4, 3),
    "flipped": lambda x: x.flip(0),
    "of no elements": lambda x: x[:0],
    "a number": lambda x: Tensor(5),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_is_no_plain_array_is_copied(name):
    view = COPIED[name](numbers())
    assert torch.from_dlpack(view).tolist() == view.tolist()
    with pytest.raises(BufferError, match="it can only be copied"):
        view.__dlpack__(copy=False)


def test_a_pending_value_is_computed_and_shared():
    t = numbers() + 1
    x = torch.from_dlpack(t)
    assert x.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert x.data_ptr() == address(t)


def test_copies_are_asked_for_and_marked():
    t = numbers()
    foreign = Foreign(t.__dlpack__(max_version=(1, 0), copy=True))
    assert foreign.copied
    assert foreign.address != address(t)
    foreign = Foreign(t.__dlpack__(max_version=(1, 0)))
    assert (foreign.copied, foreign.read_only) == (False, False)
    assert foreign.device == t.__dlpack_device__() == (1, 0)
    assert (foreign.shape, foreign.strides, foreign.dtype) == ((2, 3), (3, 1), (2, 32, 1))


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_capsules_of_all_versions(version):
    t = numbers()
    capsule = t.__dlpack__(max_version=version)
    named = "dltensor_versioned" if version is not None and version >= (1, 0) else "dltensor"
    assert f'"{named}"' in repr(capsule)
    assert Tensor.from_dlpack(capsule).tolist() == t.tolist()
    assert f'"used_{named}"' in repr(capsule)
    with pytest.raises(ValueError, match="each is taken once"):
        Tensor.from_dlpack(capsule)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"stream": 1}, ValueError, "memory of the host has no stream, got 1"),
        (
            {"dl_device": (2, 0)},
            BufferError,
            r"the memory is the host's, \(1, 0\), and not \(2, 0\)",
        ),
    ],
)
def test_what_can_not_be_given(arguments, error, message):
    with pytest.raises(error, match=message):
        numbers().__dlpack__(**arguments)


def test_memory_of_other_devices_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    for t in (Tensor(tmp_path / "x"), Tensor.empty(3, device="NULL")):
        with pytest.raises(BufferError, match="can not be shared; move the tensor"):
            t.__dlpack__()
        with pytest.raises(BufferError, match="can not be shared"):
            t.__dlpack_device__()


def test_a_capture_gives_nothing():
    @TinyJit
    def step(x):
        torch.from_dlpack(x)
        return x + 1

    x = numbers()
    step(x)
    with pytest.raises(JitError, match="a value was read"):
        step(x)


# ---------------------------------------------------------------- what both sides see


def test_both_sides_see_what_the_other_writes():
    t = numbers()
    x = torch.from_dlpack(t)
    x[0, 0] = 50
    assert t[0, 0].item() == 50
    t[1, 1] = 60
    t.realize()
    assert x[1, 1].item() == 60
    t += 1
    assert x[1, 1].item() == 60  # an assignment is seen when it is carried out
    t.realize()
    assert x[1, 1].item() == 61
    t.replace(Tensor.zeros(2, 3))  # this tensor is of other memory now
    x[0, 1] = 9
    assert t.tolist() == [[0] * 3] * 2


def test_what_was_built_before_keeps_the_values_of_then():
    t = numbers()
    before, view = t + 1, t[0].clone()
    x = torch.from_dlpack(t)
    x.fill_(100)
    assert before.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert view.tolist() == [0, 1, 2]
    assert (t + 1).tolist() == [[101] * 3] * 2


def test_equal_results_do_not_share_what_one_of_them_shares():
    t = numbers()
    a, b = t * 2, t * 2  # one node, so one BUFFER
    Tensor.realize(a, b)
    x = torch.from_dlpack(b)
    x.fill_(7)
    assert b.tolist() == [[7] * 3] * 2
    assert a.tolist() == [[0, 2, 4], [0, 2, 4]]
    torch.from_dlpack(a).fill_(8)
    assert b.tolist() == [[7] * 3] * 2


def test_memory_lives_as_long_as_who_looks_into_it():
    t = numbers(shape=(1000,))
    expected = t.tolist()
    x = torch.from_dlpack(t)
    del t
    gc.collect()
    others = [Tensor.full((1000,), float(k)).realize() for k in range(5)]
    assert x.tolist() == expected
    assert others[3][0].item() == 3.0


# ---------------------------------------------------------------- taking


def test_both_sides_see_writes_to_what_was_taken():
    a = np.zeros((2, 3), np.float32)
    t = Tensor.from_dlpack(a)
    a[0, 1] = 5
    assert t[0, 1].item() == 5
    t[1, 2] = 6
    t.realize()
    assert a[1, 2] == 6
    later = t + 1
    a[0, 0] = 10  # what is not computed yet reads the memory then
    assert later[0, 0].item() == 11


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[:1], (3, 4)),
        lambda a: a[1:1],
    ],
)
def test_arrays_with_gaps_are_copied(make):
    a = make(np.arange(12, dtype=np.int32).reshape(3, 4))
    t = Tensor.from_dlpack(a)
    np.testing.assert_array_equal(t.numpy(), a)
    assert t.shape == a.shape
    if a.size:
        with pytest.raises(BufferError, match="only by copying"):
            Tensor.from_dlpack(a, copy=False)


def test_parts_that_lie_side_by_side_are_shared():
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    t = Tensor.from_dlpack(x[1:], copy=False)
    x[1, 0] = 40
    assert t.tolist() == [[40, 5, 6, 7], [8, 9, 10, 11]]
    assert Tensor.from_dlpack(torch.tensor(3.5), copy=False).item() == 3.5


def test_memory_that_is_not_aligned_is_copied():
    raw = np.zeros(17, np.uint8)
    a = raw[1:].view(np.float32)
    with pytest.raises(BufferError, match="only by copying"):
        Tensor.from_dlpack(a, copy=False)
    assert Tensor.from_dlpack(a).tolist() == [0.0] * 4


def test_a_copy_is_a_snapshot():
    a = np.zeros(3, np.float32)
    t = Tensor.from_dlpack(a, copy=True)
    a[:] = 1
    assert t.tolist() == [0, 0, 0]


def test_what_may_only_be_read_is_copied_when_it_is_written():
    a = np.arange(4, dtype=np.float32)
    a.flags.writeable = False
    t = Tensor.from_dlpack(a, copy=False)
    view = t[:2]
    t[1] = 50
    assert t.tolist() == [0, 50, 2, 3]
    assert view.tolist() == [0, 50]
    assert a.tolist() == [0, 1, 2, 3]
    u = Tensor.from_dlpack(a)
    u += 1
    assert u.tolist() == [1, 2, 3, 4]
    assert a.tolist() == [0, 1, 2, 3]
    with pytest.raises((BufferError, ValueError)):
        torch.from_dlpack(Tensor.from_dlpack(a)).fill_(9)  # never through our hands either
        assert a.tolist() == [0, 1, 2, 3]
        raise ValueError("it was copied")


def test_an_array_lives_as_long_as_its_tensors():
    class Array(np.ndarray):
        pass

    a = np.arange(4, dtype=np.float32).view(Array)
    alive = weakref.ref(a)
    t = Tensor.from_dlpack(a)[1:3]
    later = t * 2
    del a, t
    gc.collect()
    assert alive() is not None
    assert later.tolist() == [2, 4]
    del later
    gc.collect()
    assert alive() is None


def test_old_exporters_without_versions_are_taken():
    class Old:
        def __dlpack__(self, stream=None):
            return torch.arange(3).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    assert Tensor.from_dlpack(Old()).tolist() == [0, 1, 2]


def test_arrays_of_other_devices_are_refused():
    class Far:
        def __dlpack__(self, **_):
            raise AssertionError("it is not asked")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(BufferError, match="on a device of DLPack's kind 2; move it to the host"):
        Tensor.from_dlpack(Far())


@pytest.mark.parametrize("versioned, at", [(False, 8), (True, 40)])
def test_capsules_alone_of_other_devices_are_refused(versioned, at):
    """What is there is not looked at, and its owner is let go once all the same."""
    owner = Owner()
    before = sys.getrefcount(owner)
    capsule = give(owner, 64, (4,), (1,), 2, 32, versioned)
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = b"dltensor_versioned" if versioned else b"dltensor"
    ctypes.c_int32.from_address(ctypes.pythonapi.PyCapsule_GetPointer(capsule, name) + at).value = 2
    with pytest.raises(BufferError, match="on a device of DLPack's kind 2; move it to the host"):
        Tensor.from_dlpack(capsule)
    assert sys.getrefcount(owner) == before
    del capsule
    assert sys.getrefcount(owner) == before


def test_dtypes_that_are_not_known_are_refused():
    with pytest.raises(BufferError, match="code 5 with 64 bits in 1 lanes is not known here"):
        Tensor.from_dlpack(np.zeros(3, np.complex64))


def test_what_is_no_capsule_is_refused():
    with pytest.raises(ValueError, match="3 is no DLPack capsule"):
        Tensor.from_dlpack(3)


def test_a_gradient_is_asked_for_by_the_user():
    with pytest.raises(BufferError):  # PyTorch's own
        Tensor.from_dlpack(torch.ones(3, requires_grad=True))


def test_a_tensor_of_pytorch_is_copied_by_the_constructor():
    x = torch.arange(6, dtype=torch.int16).reshape(2, 3).T
    t = Tensor(x)
    assert t.dtype is dtypes.int16
    x.fill_(0)
    assert t.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Tensor(torch.ones(2), dtype="int32").dtype is dtypes.int32
    assert Tensor(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1, 1]


# ---------------------------------------------------------------- capsules themselves


class Owner:
    """Something that can be seen to die."""


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("way", ["dropped", "taken", "taken by numpy"])
def test_an_owner_is_let_go_exactly_once(versioned, way):
    memory = (ctypes.c_float * 4)(1, 2, 3, 4)
    owner = Owner()
    before = sys.getrefcount(owner)
    capsule = give(owner, ctypes.addressof(memory), (4,), (1,), 2, 32, versioned)
    assert sys.getrefcount(owner) == before + 1
    if way == "taken":
        foreign = Foreign(capsule)
        assert memoryview(foreign).cast("f").tolist() == [1, 2, 3, 4]
        del capsule
        gc.collect()
        assert sys.getrefcount(owner) == before + 1
        del foreign
    elif way == "taken by numpy":

        class Once:
            def __dlpack__(self, **_):
                return capsule

            def __dlpack_device__(self):
                return (1, 0)

        array = np.from_dlpack(Once())
        assert array.tolist() == [1, 2, 3, 4]
        del capsule
        del array
    else:
        del capsule
    gc.collect()
    assert sys.getrefcount(owner) == before


def test_an_owner_is_let_go_once_whatever_becomes_of_its_capsule():
    """Taken to be shared or copied, refused for what it says, or not taken at all."""
    memory = (ctypes.c_float * 8)(*range(8))
    plain: dict = {"shape": (4,), "strides": (1,), "code": 2, "bits": 32}
    for change, arguments, outcome in [
        ({}, {}, [0, 1, 2, 3]),
        ({}, {"copy": True}, [0, 1, 2, 3]),
        ({"strides": (2,)}, {}, [0, 2, 4, 6]),
        ({"strides": (0,)}, {}, [0, 0, 0, 0]),
        ({"shape": (1, 4), "strides": (77, 1)}, {"copy": False}, [[0, 1, 2, 3]]),
        ({"shape": (), "strides": ()}, {}, 0),
        ({"shape": (0, 5), "strides": (5, 1)}, {}, []),
        ({"strides": (2,)}, {"copy": False}, BufferError),
        ({"code": 5, "bits": 64}, {}, BufferError),
        ({"shape": (-1,)}, {}, BufferError),
        ({"strides": (1 << 61,)}, {}, BufferError),
        ({"shape": (1 << 62,)}, {}, BufferError),
        ({"shape": (1 << 62, 1 << 62), "strides": (1 << 62, 1)}, {}, BufferError),
        ({}, {"device": "NOWHERE"}, ValueError),
    ]:
        owner = Owner()
        before = sys.getrefcount(owner)
        given = {**plain, **change}
        capsule = give(owner, ctypes.addressof(memory), versioned=True, **given)
        if isinstance(outcome, type):
            with pytest.raises(outcome):
                Tensor.from_dlpack(capsule, **arguments)
        else:
            assert Tensor.from_dlpack(capsule, **arguments).tolist() == outcome
        del capsule
        gc.collect()
        assert sys.getrefcount(owner) == before, (change, arguments)


def test_a_capsule_of_a_later_major_version_is_left_alone():
    memory = (ctypes.c_float * 4)()
    capsule = give(memory, ctypes.addressof(memory), (4,), (1,), 2, 32, True)
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    at = ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    ctypes.cast(at, ctypes.POINTER(ctypes.c_uint32))[0] = 2
    with pytest.raises(BufferError, match=r"DLPack 2\.0 is not known here"):
        Foreign(capsule)
    ctypes.cast(at, ctypes.POINTER(ctypes.c_uint32))[0] = 1
    assert Foreign(capsule).shape == (4,)


def test_a_read_only_mark_is_honoured():
    memory = (ctypes.c_float * 2)(1, 2)
    foreign = Foreign(give(memory, ctypes.addressof(memory), (2,), (1,), 2, 32, True, True))
    assert foreign.read_only
    assert memoryview(foreign).readonly
    capsule = give(memory, ctypes.addressof(memory), (2,), (1,), 2, 32, True, True)
    t = Tensor.from_dlpack(capsule, copy=False)
    t.assign([5.0, 6.0]).realize()
    assert list(memory) == [1, 2]


# ---------------------------------------------------------------- NumPy


def test_asarray_is_a_copy():
    t = numbers()
    a = np.asarray(t)
    a[:] = 9
    assert t.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert np.asarray(t, dtype=np.int64).dtype == np.int64
    assert np.array(t, copy=True).tolist() == t.tolist()
    assert np.asarray([t[0], t[1]]).shape == (2, 3)
    assert (np.ones(3, np.float32) * np.asarray(t)).tolist() == t.tolist()


def test_without_a_copy_it_is_the_memory_to_be_read():
    t = numbers()
    a = np.array(t.T, copy=False)
    assert a.tolist() == t.T.tolist()
    assert not a.flags.writeable
    t[0, 0] = 40
    t.realize()
    assert a[0, 0] == 40
    assert np.array(numbers("bfloat16"), copy=False).dtype == numbers("bfloat16").numpy().dtype


@pytest.mark.parametrize(
    "make, dtype, message",
    [
        (lambda: numbers(), np.float64, "is an array of .*float64.* only by copying"),
        (lambda: numbers().flip(0), None, "does not lie in memory as an array"),
        (lambda: Tensor(5), None, "does not lie in memory as an array"),
        (lambda: Tensor.empty(3, device="NULL"), None, "on NULL is an array only by copying"),
    ],
)
def test_what_is_no_array_without_a_copy(make, dtype, message):
    with pytest.raises(ValueError, match=message):
        make().__array__(dtype, copy=False)


# ---------------------------------------------------------------- addresses


def test_memory_at_an_address_is_shared():
    a = np.arange(6, dtype=np.int32)
    t = Tensor.from_blob(a.ctypes.data, (2, 3), dtype=dtypes.int32)
    a[5] = 50
    assert t.tolist() == [[0, 1, 2], [3, 4, 50]]
    t[0].assign([7, 8, 9]).realize()
    assert a.tolist() == [7, 8, 9, 3, 4, 50]
    assert (t * 2).sum().item() == 2 * a.sum()


def test_an_address_of_no_elements_is_not_looked_at():
    assert Tensor.from_blob(0, (0, 3)).tolist() == []


@pytest.mark.parametrize(
    "ptr, device, message",
    [
        (0, None, "0x0 is no address of elements of dtypes.float32"),
        (6, None, "0x6 is no address of elements of dtypes.float32; it is a multiple of 4"),
        (64, "NULL", "memory of the host is none of NULL's"),
    ],
)
def test_addresses_that_are_refused(ptr, device, message):
    with pytest.raises(ValueError, match=message):
        Tensor.from_blob(ptr, (2,), device=device)


@pytest.mark.parametrize("ptr, sizes", [(64, (1 << 62, 4)), (1 << 63, (2,)), (2**63 - 8, (3,))])
def test_memory_that_no_address_reaches_is_refused(ptr, sizes):
    with pytest.raises(ValueError, match=r"from_blob: no memory at 0x\w+ has the \d+ bytes of"):
        Tensor.from_blob(ptr, sizes)


def test_an_address_takes_part_in_captured_steps():
    a = np.zeros(3, np.float32)
    t = Tensor.from_blob(a.ctypes.data, (3,))

    @TinyJit
    def step(x):
        return x + t

    for k in range(4):
        a[:] = k
        assert step(Tensor([1.0, 2.0, 3.0]).realize()).tolist() == [1 + k, 2 + k, 3 + k]
