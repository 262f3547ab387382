"""What calls of a TinyJit are told apart by, and what they are not."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import types
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

from tiny import Tensor, TinyJit, Variable, dtypes
from tiny.engine.jit import JitError
from tiny.engine.signature import MOST_LAYOUTS, Reader
from tiny.helpers import Context

NAN = float("nan")


def signatures(f: TinyJit, calls: list[Any]) -> int:
    """How many captures calls have, after each ran three times; values are those of the first."""
    values = [[np.asarray(t.numpy()) for t in call()] for call in calls]
    for _ in range(3):
        for call, right in zip(calls, values, strict=True):
            for got, expected in zip(call(), right, strict=True):
                np.testing.assert_array_equal(got.numpy(), expected)
    return len(f.captures)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: Any
    b: Any


class Other(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Config:
    n: Any
    name: str = "a"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    n: Any = 1


x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.0, True, np.int32(1), np.float32(1), np.float64(1), 1 + 0j, "1", b"1", Level.LOW],
        [0.0, -0.0, 0, False, None, ..., (), [], {}],
        [np.float32(0.0), np.float32(-0.0), np.int64(0), np.bool_(False)],
        [NAN, np.float32(NAN), float("inf")],
        [Colour.RED, Colour.BLUE, Level.LOW],
        [(1, 2), [1, 2], (2, 1), (1, (2,)), ((1,), 2), (1.0, 2), Pair(1, 2), Other(1, 2)],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}, collections.OrderedDict(a=1, b=2)],
        [{1: 2}, {True: 2}, {1.0: 2}, {"1": 2}],
        [{1, 2}, {1, 3}, frozenset({1, 2}), {1.0, 2.0}, {True, 2}],
        [slice(0, 2), slice(0, 2, 1), slice(1, 2), range(2), range(3)],
        [Config(1), Config(1.0), Config(2), Config(1, "b"), Frozen(1)],
        [dtypes.float32, dtypes.int32, Tensor, int, len, np.add],
        [2**70, 2**70 + 1, -(2**70)],
    ],
)
def test_other_values_are_other_signatures(values):
    f = TinyJit(lambda x, value: (x + 1, x * 2))
    assert signatures(f, [lambda v=v: f(x, v) for v in values]) == len(values)
    before = len(f.captures)
    for v in values:
        f(x, v)
    assert len(f.captures) == before


def test_equal_values_are_one_signature():
    f = TinyJit(lambda x, value: (x + 1,))
    pairs = [
        lambda: [1, {"a": (None, 2.5)}],
        lambda: Config(3, "n"),
        lambda: NAN,
        lambda: np.float32(NAN),
        lambda: "te" + "xt"[0:2],
        lambda: slice(1, 3),
        lambda: 2**70,
        lambda: Frozen((1, 2)),
    ]
    for make in pairs:
        for _ in range(3):
            f(x, make())
    assert len(f.captures) == len(pairs)


def test_tensors_are_told_apart_by_shape_dtype_device_and_requires_grad():
    f = TinyJit(lambda x: (x * 1,))
    calls = [
        lambda: f(Tensor([1, 2])),
        lambda: f(Tensor([1, 2, 3])),
        lambda: f(Tensor([[1, 2]])),
        lambda: f(Tensor([1.0, 2.0])),
        lambda: f(Tensor([1.0, 2.0], dtype="float64")),
        lambda: f(Tensor([1.0, 2.0], device="CPU:1")),
        lambda: f(Tensor([1.0, 2.0], requires_grad=True)),
        lambda: f(Tensor([1.0, 2.0], requires_grad=False)),
        lambda: f(Tensor.empty(0, 2)),
        lambda: f(Tensor.empty(2, 0)),
    ]
    for _ in range(3):
        for call in calls:
            call()
    assert len(f.captures) == len(calls)
    assert f(Tensor.empty(2, 0))[0].shape == (2, 0)


def test_numbers_as_tensors_are_one_signature_and_told_apart_by_kind():
    f = TinyJit(lambda x, n: (x * n,))
    for k in range(6):
        np.testing.assert_array_equal(f(x, Tensor(k + 0.5))[0].numpy(), x.numpy() * (k + 0.5))
        np.testing.assert_array_equal(f(x, Tensor(k))[0].numpy(), x.numpy() * k)
        np.testing.assert_array_equal(f(x, [Tensor(k), Tensor(7)][0])[0].numpy(), x.numpy() * k)
    assert len(f.captures) == 2


# ---------------------------------------------------------------- how a function is called


def test_how_arguments_are_given_does_not_matter():
    def f(x, n=2, *more, scale=1.0, **names):
        return (x * n * scale + sum(more) + sum(names.values()),)

    jitted = TinyJit(f)
    same = [
        lambda: jitted(x),
        lambda: jitted(x, 2),
        lambda: jitted(x, n=2),
        lambda: jitted(n=2, x=x),
        lambda: jitted(x, scale=1.0, n=2),
        lambda: jitted(scale=1.0, x=x),
    ]
    assert signatures(jitted, same) == 1
    other = [
        lambda: jitted(x, 2.0),
        lambda: jitted(x, scale=2.0),
        lambda: jitted(x, 2, 3),
        lambda: jitted(x, 2, 3, 4),
        lambda: jitted(x, 2, 4, 3),
        lambda: jitted(x, a=1),
        lambda: jitted(x, b=1),
        lambda: jitted(x, a=1, b=2),
    ]
    assert signatures(jitted, other) == 1 + len(other)


def test_tensors_come_in_the_order_of_the_parameters():
    def f(a, b, *, c):
        return (a * 2 + b * 3 + c * 5, a - c)

    jitted = TinyJit(f)
    for k in range(5):
        a, b, c = (Tensor([k + n, n * 1.0]).realize() for n in (1.0, 10.0, 100.0))
        for got in (jitted(a, b, c=c), jitted(c=c, b=b, a=a), jitted(a, c=c, b=b)):
            for part, right in zip(got, f(a, b, c=c), strict=True):
                np.testing.assert_array_equal(part.numpy(), right.numpy())
    assert len(jitted.captures) == 1


def test_wrong_arguments_raise_as_without_a_jit():
    f = TinyJit(lambda x, y: x + y)
    for call in (lambda: f(x), lambda: f(x, x, x), lambda: f(x, z=x)):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_partials_callables_and_builtins():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x, n=1):
            return x * self.by + n

        def method(self, x):
            return x - self.by

    scale = Scale(3)
    jits = [
        TinyJit(functools.partial(lambda a, x, b=1: x * a + b, 2, b=4)),
        TinyJit(scale),
        TinyJit(scale.method),
        TinyJit(Tensor.exp2),
    ]
    rights = [x.numpy() * 2 + 4, x.numpy() * 3 + 1, x.numpy() - 3, np.exp2(x.numpy())]
    for _ in range(4):
        for f, right in zip(jits, rights, strict=True):
            np.testing.assert_array_equal(f(x).numpy(), right)
    assert [len(f.captures) for f in jits] == [1, 1, 1, 1]
    assert not hasattr(jits[1], "by")  # attributes of what is called stay with it


# ---------------------------------------------------------------- structures with tensors


def test_dataclasses_are_taken_apart_and_come_back():
    @TinyJit
    def f(state: Frozen, config: Config):
        return Frozen(state.x * config.n["by"] + state.n, (config.name, state.x.sum()))

    for k in range(5):
        state = Frozen(Tensor([k, 2.0]), Tensor([1.0, k]))
        result = f(state, Config({"by": Tensor(float(k))}))
        assert type(result) is Frozen and result.n[0] == "a"
        assert result.x.tolist() == [k * k + 1.0, 3.0 * k]
        assert result.n[1].item() == k + 2.0
    assert len(f.captures) == 1
    f(state, Config({"by": Tensor(2.0)}, name="b"))
    assert result.x.tolist() == [17.0, 12.0]


def test_tensors_in_dataclasses_may_be_written():
    @TinyJit
    def f(state):
        state.n.assign(state.n + state.name_of())
        return state.n * 2

    @dataclasses.dataclass
    class State:
        n: Tensor

        def name_of(self):
            return 1

    state = State(Tensor([0.0]).realize())
    for k in range(5):
        assert f(state).tolist() == [2.0 * (k + 1)]
        assert state.n.tolist() == [k + 1.0]


@pytest.mark.parametrize("what", ["list", "dict", "dataclass", "deep", "keyword"])
def test_changing_what_was_given_is_refused(what):
    state = {
        "list": [Tensor([1.0]), 2],
        "dict": {"a": Tensor([1.0])},
        "dataclass": Config(Tensor([1.0])),
        "deep": ([{"a": Tensor([1.0])}],),
        "keyword": [Tensor([1.0]), 2],
    }[what]

    def f(state):
        new = x * 2
        if what in ("list", "keyword"):
            state[0] = new
        elif what == "dict":
            state["b"] = new
        elif what == "dataclass":
            state.n = new
        else:
            state[0][0]["a"] = new
        return new + 1

    jitted = TinyJit(f)
    call = (lambda: jitted(state=state)) if what == "keyword" else (lambda: jitted(state))
    call()
    with pytest.raises(JitError, match=r"changes a list, a dict or an object that it was given"):
        call()
        call()  # the first call changed the structure: another signature


# ---------------------------------------------------------------- objects


class Box:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def test_objects_are_told_apart_by_identity_and_may_die():
    f = TinyJit(lambda x, box: x * box.scale)
    boxes = [Box(2.0), Box(3.0)]
    for _ in range(3):
        for box in boxes:
            assert f(x, box).tolist() == (x.numpy() * box.scale).tolist()
    assert len(f.captures) == 2
    captures, watched = [weakref.ref(c) for c in f.captures], [weakref.ref(b) for b in boxes]
    boxes.clear()
    del box
    gc.collect()
    assert [w() for w in watched] == [None, None]
    for k in range(30):  # objects that come and go are captured while they are there
        box = Box(float(k))
        for _ in range(3):
            assert f(x, box).tolist() == (x.numpy() * k).tolist()
    assert len(f.captures) == 1 and captures[0]() is None
    box.scale = 100.0  # an attribute is not seen
    assert f(x, box).tolist() == (x.numpy() * 29).tolist()


@pytest.mark.parametrize(
    "given",
    [
        np.zeros(3),
        bytearray(b"a"),
        collections.deque([1]),
        types.SimpleNamespace(n=1),
        {1: [np.ones(1)]},
    ],
)
def test_what_can_not_be_compared_is_refused(given):
    f = TinyJit(lambda x, more: x + 1)
    with pytest.raises(JitError, match=r"the argument more.* is a .*what is in it would be frozen"):
        f(x, more=given)


def test_the_error_says_where_it_is():
    f = TinyJit(lambda x, **more: x + 1)
    with pytest.raises(JitError, match=r"the argument a\[1\]\['b'\] is a ndarray"):
        f(x, a=[1, {"b": np.ones(2)}])


# ---------------------------------------------------------------- variables


def test_variables_in_containers_and_expressions_are_inputs():
    f = TinyJit(lambda x, i, more: (x * i + more["j"][0] * 10 + more["k"],))
    for k in range(1, 6):
        i, j = Variable("i", 1, 10).bind(k), Variable("j", 0, 100).bind(k * 7)
        got = f(x, i, {"j": [j], "k": i * 3 + j})[0].numpy()
        np.testing.assert_array_equal(got, x.numpy() * k + k * 70 + k * 3 + k * 7)
    assert len(f.captures) == 1


def test_equal_values_of_two_variables_are_two():
    f = TinyJit(lambda x, i, j: (x * i - j,))
    for i, j in [(3, 3), (3, 3), (3, 3), (3, 5), (2, 9)]:
        got = f(x, Variable("i", 1, 10).bind(i), Variable("j", 1, 10).bind(j))[0].numpy()
        np.testing.assert_array_equal(got, x.numpy() * i - j)
    assert len(f.captures) == 1


def test_other_ranges_and_names_are_other_signatures():
    f = TinyJit(lambda x, i: (x * i,))
    variables = [Variable("i", 1, 10), Variable("i", 0, 10), Variable("j", 1, 10)]
    assert signatures(f, [lambda v=v: f(x, v.bind(4)) for v in variables]) == 3


# ---------------------------------------------------------------- which tensors are one


def test_overlapping_views_are_told_apart_from_disjoint_ones():
    f = TinyJit(lambda a, b: (a * 10 + b,))
    base, other = Tensor(np.arange(12.0)).realize(), Tensor(np.arange(12.0) * 7).realize()
    calls = [
        lambda: f(base[0:4], other[0:4]),
        lambda: f(base[0:4], base[4:8]),  # disjoint: as above
        lambda: f(base[1:5], base[8:12]),
        lambda: f(base[0:4], base[2:6]),
        lambda: f(base[4:8], base[4:8]),
    ]
    assert signatures(f, calls[:3]) == 2  # of one memory, and of two
    assert signatures(f, calls) == 3


def test_disjoint_parts_of_one_tensor_may_be_written():
    @TinyJit
    def f(a, b):
        a += b
        return b * 2

    base = Tensor(np.arange(12.0)).realize()
    right = np.arange(12.0)
    for k in range(5):
        a, b = (0, 6) if k % 2 else (6, 0)
        f(base[a : a + 4], base[b : b + 4])
        right[a : a + 4] += right[b : b + 4]
        np.testing.assert_array_equal(base.numpy(), right)


# ---------------------------------------------------------------- what the code names

number: Any = 1


def test_ways_of_giving_arguments_are_forgotten():
    reader = Reader(lambda **numbers: None)
    for k in range(3 * MOST_LAYOUTS):
        reader.layout((), {f"x{k}": 1})
        assert len(reader.layouts) <= MOST_LAYOUTS
    assert reader.layout((), {"x0": 1}) == Reader(lambda **numbers: None).layout((), {"x0": 1})


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 1.0, True, "a", None, b"a", 1 + 2j],
        [np.float32(1), np.float32(2), np.float64(1)],
        [Colour.RED, Colour.BLUE],
        [(1, 2), (1, 3), (1, (2, "a")), ()],
        [0.0, -0.0, NAN],
    ],
)
def test_values_that_the_code_names(values):
    global number
    cell = None

    @TinyJit
    def f(x):
        return (x + 1, number, cell)

    for _ in range(3):
        for value in values:
            number, cell = value, 0
            assert f(x)[1] is value or f(x)[1] == value or value != value
            number, cell = 0, value
            assert f(x)[2] is value or f(x)[2] == value or value != value
    number = 1
    assert len(f.captures) >= len(values)


def test_names_in_nested_functions_and_comprehensions():
    global number

    @TinyJit
    def f(x):
        def inner(y):
            return sum(y * number for _ in range(2))

        return inner(x)

    for number in (1, 2, 1, 2, 1, 2):
        assert f(x).tolist() == (x.numpy() * 2 * number).tolist()
    number = 1


# ---------------------------------------------------------------- how many


def test_the_warning_names_the_argument_and_two_values():
    def f(x, *, options, rate=0.1):
        return x * options["n"] + rate

    jitted = TinyJit(f)
    with pytest.warns(UserWarning) as caught:
        for n in range(18):
            for _ in range(2):
                jitted(x, options={"n": n / 2})
    assert [str(w.message) for w in caught] == [
        "TinyJit: test_the_warning_names_the_argument_and_two_values.<locals>.f was captured for "
        "16 signatures, and calls still differ: options['n'] was float 7.5, then float 8.0; "
        "further calls run plainly"
    ]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (lambda f, k: f(Tensor.ones(k + 1), 1), r"x was a dtypes.float32 tensor of shape \(16,\)"),
        (lambda f, k: f([x] * (k + 1), 1), r"x was a list of 16, then a list of 17"),
        (lambda f, k: f(x, "a" * k), r"n was str 'aaaaaaaaaaaaaaa', then str 'aaaa"),
        (lambda f, k: f({str(k): x}, 1), r"x was a dict of 15, then a dict of 16"),
    ],
)
def test_what_varies_is_said(calls, message):
    f = TinyJit(lambda x, n: x + 1 if isinstance(x, Tensor) else Tensor([1.0]) + 1)
    with pytest.warns(UserWarning, match=message):
        for k in range(17):
            for _ in range(2):
                calls(f, k)


def test_settings_are_named_in_the_warning():
    f = TinyJit(lambda x, n: x + n)
    for n in range(15):
        for _ in range(2):
            f(x, n)
    for _ in range(2):
        f(x, 20)
    with Context(TRAINING=1), pytest.warns(UserWarning, match="TRAINING was 0, then 1"):
        f(x, 20)


def test_signatures_that_never_come_twice_are_said():
    f = TinyJit(lambda x, rate: x * rate)
    with pytest.warns(UserWarning, match="64 signatures, and none came twice: rate was float 63.0"):
        for k in range(200):
            assert f(x, float(k)).tolist() == (x.numpy() * k).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            f(x, 1e9)
    assert len(f.captures) == 1  # and what does come twice is captured


# ---------------------------------------------------------------- what is no function of tensors


def test_generators_coroutines_and_classes_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    async def both(x):
        yield x

    class Layer:
        def __call__(self, x):
            yield x

    for f in (generator, functools.partial(generator), Layer(), Layer().__call__):
        with pytest.raises(TypeError, match="is a generator function"):
            TinyJit(f)
    with pytest.raises(TypeError, match=r"is a coroutine function \(async def\)"):
        TinyJit(coroutine)
    with pytest.raises(TypeError, match="asynchronous generator"):
        TinyJit(both)
    with pytest.raises(TypeError, match="Layer is a class; decorate its __call__"):
        TinyJit(Layer)
    with pytest.raises(TypeError, match="a function is needed, got int"):
        TinyJit(3)


def test_class_and_static_methods():
    class Layer:
        scale = Tensor([2.0]).realize()

        @classmethod
        @TinyJit
        def of_class(cls, x):
            return x * cls.scale

        @staticmethod
        @TinyJit
        def of_none(x, by):
            return x * by

    class Sub(Layer):
        scale = Tensor([3.0]).realize()

    for _ in range(4):
        assert Layer.of_class(x).tolist() == Layer().of_class(x).tolist() == [2.0, 4.0, 6.0, 8.0]
        assert Sub.of_class(x).tolist() == [3.0, 6.0, 9.0, 12.0]
        assert Layer.of_none(x, 2).tolist() == Sub().of_none(x, by=2).tolist()
    for wrong, name in ((classmethod, "@classmethod"), (staticmethod, "@staticmethod")):
        with pytest.raises(TypeError, match=f"write {name} above @TinyJit"):
            TinyJit(wrong(lambda x: x))


def test_methods_of_subclasses_and_through_the_class():
    class Layer:
        def __init__(self, scale):
            self.scale = Tensor([scale]).realize()

        @TinyJit
        def run(self, x):
            return x * self.scale

    class Sub(Layer):
        @TinyJit
        def run(self, x):
            return super().run(x) + 1

    a, b = Layer(2.0), Sub(3.0)
    for _ in range(4):
        assert a.run(x).tolist() == Layer.run(a, x).tolist() == (x.numpy() * 2).tolist()
        assert b.run(x).tolist() == Sub.run(b, x).tolist() == (x.numpy() * 3 + 1).tolist()
    assert len(a.run.captures) == len(b.run.captures) == 1


def test_objects_that_can_not_be_watched_are_forgotten_in_turn():
    class Slots:
        __slots__ = ("scale",)

        @TinyJit
        def run(self, x):
            return x * self.scale

    for k in range(200):
        slots = Slots()
        slots.scale = float(k)
        assert slots.run(x).tolist() == (x.numpy() * k).tolist()
    assert len(Slots.__dict__["run"]._tables) <= 64
