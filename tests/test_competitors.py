"""Other methods are what their authors wrote, and can be asked about a real record."""

from __future__ import annotations

import numpy as np
import pytest
from asv._stats import is_different
from records import CASE, make_header, make_run, make_samples, times
from scipy import stats

from gemvbench.plan import TWIN
from gemvbench.simulation.competitors import judge_record, mann_whitney, medians, welch


@pytest.mark.parametrize("count", [4, 9, 20, 21, 60])
def test_mann_whitney_is_asvs(count: int) -> None:
    draw = np.random.default_rng(count)
    seen = set()
    for shift in (0.0, 0.5, 0.8, 1.5, 5.0):
        base, arm = draw.normal(0, 1, (2, 20, count)) + np.array([9, 9 + shift])[:, None, None]
        signs = mann_whitney(base, arm)
        # asv falls back on intervals where there are too few samples for the test: it gets none.
        wide = {"ci_99_a": -99, "ci_99_b": 99}
        for own, other, sign in zip(base, arm, signs, strict=True):
            assert is_different(list(own), list(other), wide, wide) == (sign != 0)
            assert sign in (0, np.sign(np.median(own) - np.median(other)))
        seen |= set(signs)
    assert seen == ({0} if count == 4 else {0, -1})


def test_welch_is_scipys() -> None:
    draw = np.random.default_rng(1)
    base, arm = draw.normal(1, 0.1, (40, 30)), draw.normal(0.93, 0.2, (40, 20))
    signs = welch(base, arm)
    for own, other, sign in zip(base, arm, signs, strict=True):
        decided = stats.ttest_ind(own, other, equal_var=False).pvalue < 0.01
        assert sign == (np.sign(own.mean() - other.mean()) if decided else 0)
    assert set(signs) >= {0, 1}


def test_medians_need_one_percent() -> None:
    base = np.array([[1.0, 2.0, 3.0]])
    arms = [base / 1.0101, base / 1.0099, base * 1.0099, base * 1.0101]
    assert [int(medians(base, arm)[0]) for arm in arms] == [1, 0, 0, -1]


def test_a_record_can_be_judged() -> None:
    run = make_run(make_header(), make_samples(times(pack2=0.8e-3)))
    found = judge_record(run, CASE.id, "pack2")
    assert (found.welch, found.mann_whitney) == ("FASTER", "FASTER")
    assert found.ratio_of_medians == pytest.approx(1.25, rel=0.01)
    assert judge_record(run, CASE.id, TWIN).welch == "UNDECIDED"
    slower = make_run(make_header(), make_samples(times(pack2=1.3e-3)))
    assert judge_record(slower, CASE.id, "pack2").mann_whitney == "SLOWER"
    with pytest.raises(ValueError, match="0 of pack4"):
        judge_record(run, CASE.id, "pack4")
