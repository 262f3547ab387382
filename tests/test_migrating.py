"""The table of PyTorch's names in docs/migrating.md: both sides of a row have the same values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.case import torch
from tiny import Tensor, dtypes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migrating.md"
_ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
_BEGIN, _END = "\n### Making", "\n### Training"


def rows() -> list[tuple[str, str]]:
    """(PyTorch's expression, ours) of each row that is run."""
    if not PAGE.exists():
        return []
    text = PAGE.read_text()
    return _ROW.findall(text[text.index(_BEGIN) : text.index(_END)])


def world() -> dict[str, Any]:
    """The values that the rows name."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.uniform(-2, 2, (4, 4)).astype(np.float32),
        "y": rng.uniform(-2, 2, (4, 4)).astype(np.float32),
        "v": rng.uniform(-2, 2, 5).astype(np.float32),
        "i": np.array([3, 0, 2, 0], np.int32),
        "m": rng.uniform(0, 1, (4, 4)) < 0.5,
        "img": rng.uniform(-2, 2, (2, 3, 6, 6)).astype(np.float32),
    }


def plain(value: Any) -> list[Any]:
    """The values of a result as arrays of NumPy."""
    if isinstance(value, tuple | list):
        return [array for part in value for array in plain(part)]
    return [np.asarray(value.numpy() if hasattr(value, "numpy") else value)]


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("theirs, ours", rows())
def test_both_sides_of_a_row_have_the_same_values(theirs, ours):
    arrays = world()
    peer = {k: torch.from_numpy(a.copy()) for k, a in arrays.items()}
    if "scatter" in theirs or "gather" in theirs:
        peer["i"] = peer["i"].long()  # they take no other
    expected = eval(theirs, {"torch": torch, "F": torch.nn.functional, **peer})
    mine = {k: Tensor(a) for k, a in arrays.items()}
    got = eval(ours, {"Tensor": Tensor, "dtypes": dtypes, **mine})
    pairs = list(zip(plain(got), plain(expected), strict=True))
    for a, b in pairs:
        assert a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), 1e-4, 1e-5)
    assert any(a.size for a, _ in pairs)


def test_the_page_has_rows():
    assert len(rows()) > 90 or not PAGE.exists()
