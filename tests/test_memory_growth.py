"""Doing something again and again leaves nothing behind, with garbage collection or without."""

import gc

import pytest

import tiny
from conftest import FULL, examples
from tiny import codegen
from tiny.bench.memory import LOOPS, levels, resident_nbytes
from tiny.engine import realize
from tiny.schedule import schedule
from tiny.shared import caches

try:
    resident_nbytes()
except RuntimeError as e:
    pytest.skip(str(e), allow_module_level=True)

# enough to fill caches whose bounds are those below
WARM = {"training steps": 12, "distinct shapes": 40, "captures": 40, "learning rates": 40}
BOUND = 16


@pytest.fixture
def small_caches(monkeypatch):
    """Caches that are full after few steps, unless all steps are done."""
    if not FULL:
        for cache in (realize._kernels, realize._schedules, codegen._programs, schedule._cache):
            cache.clear()
            monkeypatch.setattr(cache, "most", BOUND)
        schedule._families.clear()
        monkeypatch.setattr(schedule._families, "most", BOUND)


@pytest.mark.parametrize("collecting", [True, False], ids=["gc", "no gc"])
@pytest.mark.parametrize("name", LOOPS)
def test_all_comes_back_to_its_level(name, collecting, small_caches):
    warm, count = (2500, 10_000) if FULL else (WARM[name], 2 * WARM[name])
    gc.collect()
    if not collecting:
        gc.disable()
    try:
        found = [now for _, now in levels(LOOPS[name](tiny), warm, count, samples=4)]
    finally:
        gc.enable()
    first, middle, last = found[0], found[2], found[-1]
    assert last.tensors == first.tensors
    assert last.used == first.used
    assert last.caches <= first.caches
    assert last.pieces <= first.pieces + 4  # of sizes that come by in turns
    if name == "distinct shapes":  # kernels have more and fewer nodes
        assert last.nodes < max(now.nodes for now in found[:-1]) * 1.1 + 100
    else:
        assert last.nodes <= first.nodes
    # half a kilobyte a step would be 5 MB after 10,000
    assert last.resident - middle.resident < examples(2 << 20, 1 << 20)


def test_every_cache_keeps_to_its_bound():
    sizes = caches()
    assert {"kernels", "schedules", "compiled schedules", "linear programs"} <= sizes.keys()
    assert all(entries <= most for entries, most in sizes.values())
