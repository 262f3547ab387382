"""Random numbers: whose they are, how they are distributed, and that no draw comes twice."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import examples
from numpy_draws import Draws
from tiny import Device, Tensor, TinyJit, random
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.randomness import RandomMixin

FLOATS = [d for d in dtypes.floats if d not in dtypes.fp8_fnuz]

# ---------------------------------------------------------------- the numbers of tinygrad

# One call after the other, and what tinygrad 0.14.0 printed for them on its CPU after a seed of 0
# and one of 2**32 - 1.
PRINTED = [
    ("Tensor.rand(3)", [0.82807267, 0.6228509, 0.55728984], [0.25323427, 0.40000534, 0.88832664]),
    (
        'Tensor.rand(2, 3, dtype="float16")',
        [[0.5341797, 0.7675781, 0.8828125], [0.35351562, 0.5517578, 0.8925781]],
        [[0.5048828, 0.89746094, 0.20019531], [0.48535156, 0.56152344, 0.20605469]],
    ),
    (
        'Tensor.rand(5, dtype="float64")',
        [
            0.6450251879853153,
            0.8359383782859993,
            0.3328772774576174,
            0.8010479050601877,
            0.15001234585175482,
        ],
        [
            0.18889483053123768,
            0.40039877447187644,
            0.5725520097242207,
            0.7583990311236388,
            0.2093835500335688,
        ],
    ),
    (
        'Tensor.rand(7, dtype="float16")',
        [0.31640625, 0.9560547, 0.3173828, 0.6923828, 0.8623047, 0.81640625, 0.15332031],
        [0.13378906, 0.8964844, 0.08886719, 0.3984375, 0.34765625, 0.3408203, 0.91308594],
    ),
    ('Tensor.rand(4, dtype="fp8e5m2")', [0.0, 0.5, 0.75, 0.25], [0.0, 0.5, 0.75, 0.5]),
    ("Tensor.rand(1)", [0.9012041], [0.23302329]),
    (
        "Tensor.randn(4)",
        [-0.8209391, -0.45748276, 0.51996726, 0.57490027],
        [-0.41458857, 1.7626846, -0.6722237, 1.1942716],
    ),
    ("Tensor.randint(5, low=-3, high=1000)", [952, 850, 70, 574, 617], [822, 370, 854, 767, 14]),
    (
        "Tensor.uniform(3, low=-2, high=0.5)",
        [-0.41288358, -1.786402, -0.53885204],
        [0.3957765, -0.49021047, -0.5587868],
    ),
    (
        "Tensor.normal(3, mean=3, std=0.5)",
        [3.3995376, 2.4812675, 2.950513],
        [2.5292523, 4.2621603, 2.3983457],
    ),
    (
        "Tensor.scaled_uniform(2, 3)",
        [[-0.15251271, -0.3292754, 0.26332393], [0.25350246, 0.35867542, 0.101808816]],
        [[-0.01151899, -0.2177551, 0.024091328], [0.27962038, -0.24508598, 0.16547488]],
    ),
    (
        "Tensor.glorot_uniform(2, 3)",
        [[0.00031549876, 0.34174055, 0.23871347], [0.6322172, 0.3340137, 0.13319193]],
        [[-0.0031176398, 0.5834411, -0.046264708], [-0.5870549, 0.34382445, -0.6207394]],
    ),
    (
        "Tensor.kaiming_uniform(2, 3)",
        [[1.1329517, -1.0064723, -0.39370438], [0.21941192, 1.1570977, -0.77380675]],
        [[0.43439224, -0.8934115, -0.54463446], [-1.292564, -0.9793443, 0.3833479]],
    ),
    (
        "Tensor.kaiming_normal(2, 3)",
        [[-1.0883765, -1.0156316, -0.8166824], [1.6597978, 0.28990278, -0.45419586]],
        [[-0.84039515, 1.0969062, -0.47314855], [0.78934956, 0.23538287, 0.27573514]],
    ),
    ("Tensor.randperm(9)", [7, 0, 8, 6, 3, 1, 4, 2, 5], [6, 4, 0, 8, 5, 2, 3, 7, 1]),
    (
        "Tensor([0.1, 0.0, 2.0, 0.5]).multinomial(6, replacement=True)",
        [2, 2, 2, 2, 2, 3],
        [3, 0, 2, 2, 2, 3],
    ),
    (
        "Tensor([[0.1, 1.0, 2.0, 0.5], [4.0, 1.0, 3.0, 0.0]]).multinomial(3)",
        [[2, 1, 3], [1, 0, 2]],
        [[1, 2, 3], [2, 0, 1]],
    ),
    ("Tensor([[1.0, 2.0]]).rand_like()", [[0.41563797, 0.70583105]], [[0.020045638, 0.6558647]]),
    (
        'Tensor([[1.0, 2.0]]).randn_like(dtype="float64")',
        [[-0.90663826, 0.59465075]],
        [[-1.2542535, 0.9682919]],
    ),
    ("Tensor.rand(0)", [], []),
    ("Tensor.rand(3)", [0.011686206, 0.7958027, 0.16174328], [0.510049, 0.32462215, 0.9797219]),
]
# whole numbers and what comes from bits alone is equal; the rest rounds elsewhere: there a product
# and a sum may be one operation, and logarithm and cosine are other polynomials
EXACT = ("Tensor.rand(", "Tensor.randint(", "Tensor.randperm(", "multinomial(", "rand_like()")


@pytest.mark.parametrize("seed, column", [(0, 1), (2**32 - 1, 2)])
def test_the_numbers_are_those_of_tinygrad_call_after_call(seed, column):
    Tensor.manual_seed(seed)
    for row in PRINTED:
        call, printed = row[0], np.array(row[column], dtype=np.float64)
        ours = eval(call, {"Tensor": Tensor}).cast("float64").numpy()
        assert ours.shape == printed.shape, call
        if any(name in call for name in EXACT):
            np.testing.assert_array_equal(ours.astype(np.float32), printed.astype(np.float32), call)
        else:
            np.testing.assert_allclose(ours, printed, rtol=3e-6, atol=6e-7, err_msg=call)


@pytest.mark.parametrize("seed", [-1, 2**32 + 5, np.int64(12)])
def test_a_seed_counts_with_its_lowest_32_bits(seed):
    Tensor.manual_seed(seed)
    np.testing.assert_array_equal(Tensor.rand(3).numpy(), Draws(int(seed)).rand(3))


def test_devices_have_keys_in_the_order_in_which_they_draw():
    Tensor.manual_seed(9)
    there, here = Tensor.rand(5, device="PYTHON"), Tensor.rand(5, device="CPU")
    again = Tensor.rand(5, device="PYTHON")
    first, second = Draws(9, 0), Draws(9, 1)
    np.testing.assert_array_equal(there.numpy(), first.rand(5))
    np.testing.assert_array_equal(again.numpy(), first.rand(5))
    np.testing.assert_array_equal(here.numpy(), second.rand(5))


# ---------------------------------------------------------------- draws

DRAWS: list[Callable[[], Tensor]] = [
    lambda: Tensor.rand(6),
    lambda: Tensor.rand(6, contiguous=False),
    lambda: Tensor.rand(12, dtype="half"),
    lambda: Tensor.randn(6),
    lambda: Tensor.randint(6, high=2**31),
    lambda: Tensor.randint(3, high=2**60, dtype="int64"),
    lambda: Tensor.randperm(12),
    lambda: Tensor.ones(1, 40).multinomial(8),
    lambda: Tensor.ones(1, 10**6).multinomial(6, replacement=True),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_two_draws_are_never_alike_whatever_is_read_first(draw):
    def values(order: list[int] | None) -> list[list[float]]:
        Tensor.manual_seed(11)
        made = [draw() for _ in range(4)]
        if order is None:
            Tensor.realize(*made)
        else:
            for k in order:
                made[k].realize()
        return [x.flatten().tolist() for x in made]

    in_order = values([0, 1, 2, 3])
    assert all(a != b for a, b in itertools.combinations(in_order, 2))
    assert in_order == values([3, 1, 0, 2]) == values(None)


def test_threads_never_draw_alike():
    """Each takes words of its own, and all together those that one thread would have taken."""

    def keys(count: int) -> list[int]:
        return [random.draw_key("CPU", 3).src[1].arg for _ in range(count)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        Tensor.manual_seed(30)
        with ThreadPoolExecutor(8) as pool:
            found = [key for part in pool.map(keys, [100] * 8) for key in part]
    finally:
        sys.setswitchinterval(before)
    Tensor.manual_seed(30)
    assert sorted(found) == sorted(keys(800)) and len(set(found)) == 800


def test_a_draw_that_is_not_stored_is_the_same_wherever_it_is_used():
    x = Tensor.rand(5, contiguous=False)
    assert (x + 0).tolist() == (x * 1).tolist() == x.tolist()


def test_the_numbers_do_not_depend_on_the_device():
    Tensor.manual_seed(5)
    here = [d().numpy() for d in DRAWS[:6]]
    with Context(DEV="PYTHON"):
        Tensor.manual_seed(5)
        for draw, expected in zip(DRAWS[:6], here, strict=True):
            # logarithms and cosines may differ in the last bit
            np.testing.assert_allclose(draw().numpy(), expected, rtol=3e-7 * (draw is DRAWS[3]))


@pytest.mark.parametrize("draw", DRAWS)
def test_replays_go_on_drawing(draw):
    Tensor.manual_seed(21)
    plain = [draw().flatten().tolist() for _ in range(6)]
    step = TinyJit(lambda: draw().realize())
    Tensor.manual_seed(21)
    assert [step().flatten().tolist() for _ in range(6)] == plain


def test_replays_of_dropout_go_on_drawing():
    x = Tensor.ones(32)
    step = TinyJit(lambda x: x.dropout(0.5).realize())
    with Tensor.train():
        masks = [tuple(step(x).tolist()) for _ in range(6)]
    assert len(set(masks)) == 6


# ---------------------------------------------------------------- ends of the range


@pytest.mark.parametrize("dtype", dtypes.floats)
@pytest.mark.parametrize("word", [0, 0xFFFFFFFF])
def test_no_bits_give_one_or_infinity(monkeypatch, dtype, word):
    def same(cls: type[Tensor], device: str, words: int) -> Tensor:
        return Tensor.full((words,), word, dtype="uint32")

    monkeypatch.setattr(RandomMixin, "_random_words", classmethod(same))
    number = Tensor.rand(3, dtype=dtype).cast("float64").numpy()
    steps = 2.0 ** dtypes.finfo(dtype)[1]
    assert (number == (0 if word == 0 else 1 - 1 / steps)).all()
    normal = Tensor.randn(3, dtype=dtype).cast("float64").numpy()
    assert np.isfinite(normal).all() and np.abs(normal).max() < 6.1  # 5.65, rounded
    assert (Tensor.randint(3, low=-7, high=2**31 - 7).numpy() < 2**31 - 7).all()
    assert np.isfinite(Tensor.normal(3, mean=1, std=2, dtype=dtype).cast("float64").numpy()).all()
    assert Tensor([0.0, 1.0, 0.0]).multinomial(5, replacement=True).tolist() == [1] * 5
    assert Tensor([0.0, 1.0, 2.0]).multinomial(2).min().item() == 1


# ---------------------------------------------------------------- distributions

N = examples(400_000, 20_000)


def distance(numbers: np.ndarray, cdf: Callable[[float], float]) -> float:
    """Kolmogorov's and Smirnov's distance; one of a thousand exceeds 1.95."""
    x = np.sort(numbers.ravel().astype(np.float64))
    expected = np.array([cdf(v) for v in x])
    above, below = np.arange(1, len(x) + 1) / len(x), np.arange(len(x)) / len(x)
    return float(max((above - expected).max(), (expected - below).max())) * math.sqrt(len(x))


def normal_cdf(mean: float, std: float) -> Callable[[float], float]:
    return lambda v: 0.5 * math.erfc((mean - v) / std / math.sqrt(2))


def even_cdf(low: float, high: float) -> Callable[[float], float]:
    return lambda v: (v - low) / (high - low)


@pytest.mark.parametrize(
    "make, cdf",
    [
        (lambda: Tensor.rand(N), even_cdf(0, 1)),
        (lambda: Tensor.rand(N, dtype="float64"), even_cdf(0, 1)),
        (lambda: Tensor.uniform(N, low=-3, high=7), even_cdf(-3, 7)),
        (lambda: Tensor.scaled_uniform(N), even_cdf(-(N**-0.5), N**-0.5)),
        (lambda: Tensor.glorot_uniform(N // 50, 50), even_cdf(*[s * (6 / (N // 50 + 50)) ** 0.5
                                                                for s in (-1, 1)])),
        (lambda: Tensor.kaiming_uniform(N // 50, 50, a=1), even_cdf(*[s * (6 / 2 / 50) ** 0.5
                                                                      for s in (-1, 1)])),
        (lambda: Tensor.randn(N), normal_cdf(0, 1)),
        (lambda: Tensor.randn(N, dtype="float64"), normal_cdf(0, 1)),
        (lambda: Tensor.normal(N, mean=-4, std=0.1), normal_cdf(-4, 0.1)),
        (lambda: Tensor.kaiming_normal(N // 50, 50, a=0), normal_cdf(0, (2 / 50) ** 0.5)),
        (lambda: Tensor.randint(N, low=-(2**30), high=2**30), even_cdf(-(2**30), 2**30)),
        (lambda: Tensor.randint(N, low=-(2**63), high=2**63, dtype="int64"),
         even_cdf(-(2**63), 2**63)),
        (lambda: Tensor.randint(N, low=0, high=3 * 2**60, dtype="int64"), even_cdf(0, 3 * 2**60)),
    ],
)  # fmt: skip
def test_distributions_are_as_promised(make, cdf):
    Tensor.manual_seed(2024)
    assert distance(make().numpy(), cdf) < 1.95


def test_the_distance_notices_another_distribution():
    Tensor.manual_seed(2024)
    assert distance(Tensor.rand(N).numpy() * 0.97, even_cdf(0, 1)) > 1.95
    assert distance(Tensor.randn(N).numpy() * 1.08, normal_cdf(0, 1)) > 1.95


def chi_square(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether counts are likelier than one in a thousand (Wilson & Hilferty, 1931)."""
    assert expected.min() > 5
    found, k = float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1
    return found < k * (1 - 2 / (9 * k) + 3.09 * math.sqrt(2 / (9 * k))) ** 3


def test_normal_numbers_are_right_to_the_last_two_bits():
    """The angle is exact until it is multiplied by 2π: also where the cosine is nearly 0."""
    Tensor.manual_seed(3)
    found, exact = Tensor.randn(N).numpy().astype(np.float64), Draws(3).randn(N)
    steps = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert steps[np.abs(exact) > 1e-12].max() < 4.5


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_step_of_the_mantissa_is_drawn_as_often(dtype):
    Tensor.manual_seed(7)
    bits = min(dtypes.finfo(dtype)[1], 7)
    steps = (Tensor.rand(N, dtype=dtype).cast("float32").numpy() * 2**bits).astype(int)
    assert chi_square(np.bincount(steps, minlength=2**bits), np.full(2**bits, N / 2**bits))


@pytest.mark.parametrize("low, high", [(0, 2), (-5, 6), (100, 117)])
def test_each_integer_is_drawn_as_often(low, high):
    Tensor.manual_seed(3)
    counts = np.bincount(Tensor.randint(N, low=low, high=high).numpy() - low)
    assert chi_square(counts, np.full(high - low, N / (high - low)))


def test_numbers_do_not_follow_from_those_before():
    Tensor.manual_seed(17)
    draws = [Tensor.randn(N).numpy().astype(np.float64) for _ in range(3)]
    pairs = [(x[lag:], x[:-lag]) for x in draws for lag in (1, 2, 3, N // 2)]
    pairs += list(itertools.combinations(draws, 2))
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(len(a))


# ---------------------------------------------------------------- choices


@pytest.mark.parametrize("weights", [[1.0, 2, 3, 4], [0.0, 5, 0, 1, 0.5, 0], [7.0]])
def test_multinomial_with_replacement_draws_in_proportion(weights):
    Tensor.manual_seed(1)
    drawn = Tensor(weights).multinomial(N, replacement=True).numpy()
    counts, share = np.bincount(drawn, minlength=len(weights)), np.array(weights) / sum(weights)
    assert (counts[share == 0] == 0).all()
    if (share > 0).sum() > 1:
        assert chi_square(counts[share > 0], N * share[share > 0])


def test_multinomial_without_replacement_draws_in_proportion_to_what_is_left():
    Tensor.manual_seed(1)
    weights = np.array([1.0, 2, 0, 4])
    rows = N // 2
    drawn = Tensor(weights).reshape(1, 4).expand(rows, 4).multinomial(2).numpy()
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and weights[a] * weights[b]]
    left = [weights[a] / 7 * weights[b] / (7 - weights[a]) for a, b in pairs]
    counts = np.array([((drawn == p).all(1)).sum() for p in pairs])
    assert counts.sum() == rows  # neither a place twice nor one of no weight
    assert chi_square(counts, rows * np.array(left))


def test_orders_are_drawn_as_often():
    Tensor.manual_seed(4)
    rows = N // 2
    drawn = Tensor.ones(rows, 4).multinomial(4).numpy()
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert chi_square(counts, np.full(24, rows / 24))


def test_a_weight_of_zero_is_not_drawn_among_many():
    rng = np.random.default_rng(0)
    weights = np.where(rng.random((3, 5000)) < 0.5, 0, rng.random((3, 5000))).astype(np.float32)
    weights[:, -40:] = weights[:, :40] = 0
    for x in (Tensor(weights), Tensor(weights * 1e-30), Tensor(weights * 1e30)):
        assert (np.take_along_axis(weights, x.multinomial(400, True).numpy(), 1) > 0).all()
    kept = Tensor(weights).multinomial(400).numpy()
    assert (np.take_along_axis(weights, kept, 1) > 0).all()
    assert all(len(set(row)) == 400 for row in kept.tolist())


@pytest.mark.parametrize("n", [2, 33, 3001])
def test_randperm_is_a_permutation(n):
    first, second = Tensor.randperm(n).numpy(), Tensor.randperm(n, dtype="int64").numpy()
    assert sorted(first) == sorted(second) == list(range(n))
    assert n == 2 or first.tolist() != second.tolist()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_where_a_draw_is_at_least_p(p):
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    Tensor.manual_seed(8)
    with Tensor.train():
        kept = Tensor(x).dropout(p).numpy()
    expected = np.where(Draws(8).rand(5, 37) >= np.float32(p), x, 0) / (1 - p)
    np.testing.assert_allclose(kept, expected, rtol=1e-6)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: Tensor.rand(2, dtype="int32"), ValueError, "rand: the dtype must be a float"),
        (lambda: Tensor.rand(2**31, 2, dtype="float64"), ValueError, "draw in parts"),
        (lambda: Tensor.rand(2, device=("CPU", "PYTHON")), NotImplementedError, "name one device"),
        (lambda: Tensor.rand(2.5), ValueError, "rand: sizes are ints"),
        (lambda: Tensor([1]).rand_like(), ValueError, "int32"),
        (lambda: Tensor.uniform(2, low=3, high=1), ValueError, "uniform: low must be less"),
        (lambda: Tensor.uniform(2, low=math.nan), ValueError, "uniform: low must be less"),
        (lambda: Tensor.normal(2, std=-1), ValueError, "normal: std must be at least 0"),
        (lambda: Tensor.randint(2, low=3, high=3), ValueError, "randint: low must be less"),
        (lambda: Tensor.randint(2, high=2.5), TypeError, "randint: low and high are ints"),
        (lambda: Tensor.randint(2, dtype="float32"), TypeError, "one of integers"),
        (lambda: Tensor.randint(2, high=300, dtype="uint8"), ValueError, "0 to 299 does not fit"),
        (lambda: Tensor.randint(2, low=-1, dtype="uint8"), ValueError, "does not fit"),
        (lambda: Tensor.glorot_uniform(), ValueError, "glorot_uniform: the shape"),
        (lambda: Tensor.kaiming_uniform(), ValueError, "kaiming_uniform: the shape"),
        (lambda: Tensor.kaiming_normal(), ValueError, "kaiming_normal: the shape"),
        (lambda: Tensor.randperm(-1), ValueError, "randperm: n is an int of at least 0"),
        (lambda: Tensor.randperm(2.5), ValueError, "randperm: n is an int"),
        (lambda: Tensor.randperm(300, dtype="uint8"), ValueError, "299 does not fit"),
        (lambda: Tensor(1.0).multinomial(), ValueError, r"\(n,\) or \(rows, n\)"),
        (lambda: Tensor.zeros(2, 0).multinomial(), ValueError, r"\(2, 0\)"),
        (lambda: Tensor([1.0]).multinomial(0), ValueError, "num_samples is an int of at least 1"),
        (lambda: Tensor([1.0]).multinomial(2), ValueError, "replacement=True"),
        (lambda: Tensor.random_bits([1], [0, 0], 2), ValueError, "the key is two words"),
        (lambda: Tensor.random_bits([1, 2], Tensor([0.0, 0.0]), 2), ValueError, "the counter is"),
        (lambda: Tensor.random_bits([1, 2], [0, 0], -1), ValueError, "num is an int"),
        (lambda: Tensor([1]).threefry(5), TypeError, "uint64, got dtypes.int32"),
        (lambda: Tensor([1], dtype="uint64").threefry(-5), TypeError, "weakint"),
        (lambda: Tensor.manual_seed(1.5), TypeError, "the seed is an int, got 1.5"),
    ],
)
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("name", ["scaled_uniform", "kaiming_uniform", "kaiming_normal"])
def test_weights_of_no_elements(name):
    assert getattr(Tensor, name)(3, 0).tolist() == [[], [], []]


def test_what_is_drawn_lives_where_it_was_asked_for_and_wants_a_gradient():
    for name in ("rand", "randn", "uniform", "normal", "scaled_uniform", "kaiming_normal"):
        x = getattr(Tensor, name)(2, 3, device="PYTHON", requires_grad=True, dtype="float16")
        assert (x.device, x.requires_grad, x.dtype) == ("PYTHON", True, dtypes.float16), name
    assert Tensor.randint(2, device="PYTHON").device == "PYTHON"
    assert Tensor.randperm(2, device="PYTHON").device == "PYTHON"
    assert Tensor.randint(2, high=2**40, dtype="int64").device == Device.DEFAULT
