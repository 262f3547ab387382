"""Lowering: kernels under many lists of Opts compute what NumPy computes."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import CASES, TARGET, Case, legal_opts
from tiny.codegen import LinearProgram, lower
from tiny.runtime.python import interpret


def run(case: Case, program: LinearProgram) -> list[np.ndarray]:
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    interpret(program, memory, case.variables or {})
    return memory


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_numpy_does_under_all_opts(name):
    case = CASES[name]()
    for opts in legal_opts(case.sink, TARGET, 12, seed=len(name)):
        memory = run(case, lower(case.sink, TARGET, opts))
        for found, expected in zip(memory, case.after, strict=True):
            expected = np.asarray(expected).reshape(-1)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                found.astype(np.float64),
                expected.astype(np.float64),
                rtol=case.rtol,
                atol=0,
                err_msg=f"{name} {opts}",
            )
