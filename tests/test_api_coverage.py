"""No public name of `Tensor` is missing, unlike its promise, or held by no case."""

from __future__ import annotations

import pytest

from api.case import torch
from api.collect import all_cases
from api.names import NAMES, wrong_signature
from api_coverage import lacking, unheld
from tiny import Tensor

DUE = [name for name in NAMES.values() if not name.is_later]


@pytest.mark.parametrize("name", DUE, ids=lambda n: n.name)
def test_names_and_signatures_are_as_promised(name):
    assert wrong_signature(Tensor, name) is None


def test_every_case_is_about_a_public_name():
    assert {case.name for case in all_cases()} <= NAMES.keys()


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", DUE, ids=lambda n: n.name)
def test_each_name_is_compared_and_held(name):
    cases = [case for case in all_cases() if case.name == name.name]
    assert lacking(name, cases) is None
    assert unheld(name, cases) == []
