"""Data sets to learn on."""

from __future__ import annotations

import numpy as np

from tiny.tensor import Tensor


def digits(test: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's 1,797 real handwritten 8×8 digits, needing no network.

    Returns (x_train, y_train, x_test, y_test): x float32 (n, 1, 8, 8) from 0 to 1, y int32 (n,)
    from 0 to 9. A share `test` of them, chosen by `seed`, is for testing.
    Source: E. Alpaydin & C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits() needs scikit-learn: pip install scikit-learn") from error
    if not 0 < test < 1:
        raise ValueError(f"digits: test is a share between 0 and 1, got {test}")
    data = load_digits()
    x = (data.images / 16).astype(np.float32)[:, None]
    y = data.target.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(x))
    train, held = np.split(order, [round(len(x) * (1 - test))])
    return Tensor(x[train]), Tensor(y[train]), Tensor(x[held]), Tensor(y[held])
