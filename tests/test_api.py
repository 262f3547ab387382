"""Every public name of `Tensor` beside NumPy or PyTorch: values and gradients, by tables."""

from __future__ import annotations

import numpy as np
import pytest

from api.case import Case, Spoil, Weak, array, check, integers, values
from api.collect import all_cases, quick_cases
from tiny import Context, Tensor

CASES = all_cases()


def _named(pairs: list[tuple[Case, str]]) -> list[object]:
    return [pytest.param(case, dtype, id=f"{case}-{dtype}") for case, dtype in pairs]


def _run(case: Case, dtype: str) -> None:
    if not case.runs_here:
        pytest.skip("PyTorch is not installed")
    try:
        check(case, dtype)
    except AssertionError as e:
        e.add_note(f"the case stands in tests/api/{case.at}")
        raise


@pytest.mark.parametrize(
    "case, dtype", _named([(case, dtype) for case in CASES for dtype in case.dtypes])
)
def test_results_and_gradients_are_right(case, dtype):
    _run(case, dtype)


@pytest.mark.parametrize(
    "case, dtype", _named([(case, case.dtypes[0]) for case in quick_cases(CASES)])
)
def test_the_reference_interpreter_agrees(case, dtype):
    with Context(DEV="PYTHON"):
        _run(case, dtype)


# ---------------------------------------------------------------- the harness itself

GOOD = Case("square", lambda x: x.square(), lambda x: x**2, [array(3)], peer="numpy")


def test_a_right_case_counts_forward_and_backward():
    outcome = check(GOOD, "float32")
    assert outcome.compared == {0}
    assert outcome.backward


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_a_spoilt_value_is_noticed(dtype):
    with pytest.raises(AssertionError, match="the result"):
        check(GOOD, dtype, Spoil())


def test_a_spoilt_gradient_is_noticed():
    with pytest.raises(AssertionError, match="the gradient of input 0"):
        check(GOOD, "float32", Spoil(gradient=True))


@pytest.mark.parametrize(
    "case, message",
    [
        (Case("exp", lambda x: x * x, np.square, [array(2)], peer="numpy"), "does not call it"),
        (Case("exp", Tensor.exp, lambda x: np.exp(x)[:1], [array(2)], peer="numpy"), "shape"),
        (Case("exp", Tensor.exp, lambda x: x > 0, [array(2)], peer="numpy"), "reference of bool"),
        (Case("exp", Tensor.exp, lambda x: [x, x], [array(2)], peer="numpy"), "1 results"),
    ],
)
def test_wrong_cases_are_found(case, message):
    with pytest.raises(AssertionError, match=message):
        check(case, "float32")


def test_exact_cases_see_signs_of_zero():
    case = Case("neg", Tensor.neg, np.positive, [values([0.0])], peer="numpy", exact=True)
    with pytest.raises(AssertionError, match="signs"):
        check(case, "float32")


def test_a_case_that_compares_nothing_says_so():
    case = Case("square", lambda x: x.square(), np.square, [integers(0)], peer="numpy")
    assert check(case, "float32").compared == set()
    with pytest.raises(Weak):
        check(Case("exp", lambda x: x, lambda x: x, [array(1)], peer="numpy"), "float32")
