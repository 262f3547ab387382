from __future__ import annotations
from conftest import examples
from hypothesis import given, settings
from tensor_graphs import check, graphs


@settings(max_examples=examples(20_000, 300))
@given(graphs())
def test_random_graphs_are_computed(outputs):
    check(*outputs)
