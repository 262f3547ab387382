"""benchmarks/fit_costs.py: what it draws, and that it moves constants to better choices."""

import pytest

pytest.importorskip("torch")

import fit_costs
from fit_costs import Drawn, as_json, draw_kernels, fit, mean_log, moved, read_measured, tunable
from tiny.codegen.opt.constants import Costs


def test_kernels_are_drawn_alike_and_none_twice():
    kernels = draw_kernels(3, 0, ["matmul", "reductions"])
    assert len(kernels) >= 6 and len({k.ast for k in kernels}) == len(kernels)
    assert [k.ast for k in draw_kernels(3, 0, ["matmul", "reductions"])] == [k.ast for k in kernels]


def test_constants_are_moved_by_factors():
    costs = moved(Costs(), {"one_by_one": 2.0, "overlap": 2.0})
    assert costs.one_by_one == 8 and costs.overlap == pytest.approx(0.9) and costs.loop == 0.25
    assert "cycle" not in tunable() and "fill" in tunable()


def test_a_fit_goes_where_the_regret_is_less(monkeypatch):
    """The better list is chosen from a threshold on."""
    monkeypatch.setattr(fit_costs, "tunable", lambda: ["fill", "loop"])
    kernel = Drawn("a", "k", None, {("bad",): 20.0, ("good",): 10.0})
    monkeypatch.setattr(Drawn, "choice", lambda self, c: ("good",) if c.fill > 0.5 else ("bad",))
    before = Costs()
    assert kernel.regret(before) == 2 and mean_log([kernel], before) > 0.6
    after = fit([kernel], before)
    assert kernel.regret(after) == 1 and after.fill == 0.6 and after.loop == before.loop


def test_what_was_measured_is_read_again(tmp_path):
    (kernel, *_) = draw_kernels(1, 0, ["matmul"])
    chosen = kernel.choice(Costs())
    kernel.times = {chosen: 5.0, (): 7.0}
    path = tmp_path / "measured.json"
    path.write_text(fit_costs.json.dumps(as_json([kernel], Costs(), Costs())))
    (again,) = read_measured(draw_kernels(1, 0, ["matmul"]), str(path))
    assert again.times == kernel.times and again.regret(Costs()) == 1
