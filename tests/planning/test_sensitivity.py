"""What the answer leans on, and break-even prices."""

import pytest

from tests.planning.fakes import point
from trainscout.planning.goodput import Reliability
from trainscout.planning.sensitivity import break_even, effects_without_search


def test_price_and_error_bar_move_in_proportion():
    chosen = point(16)
    effects = {effect.name: effect for effect in effects_without_search(chosen, Reliability())}
    assert effects["price -20%"].usd == pytest.approx(0.8 * chosen.usd)
    assert effects["price +20%"].days == chosen.days
    high = effects["step at the high end of its error bar"]
    longer = chosen.days_interval[1] / chosen.days
    assert (high.days, high.usd) == pytest.approx((longer * chosen.days, longer * chosen.usd))
    assert len(effects) == 4


def test_more_failures_take_longer():
    reliability = Reliability(100.0, checkpoint_write_s=30.0, restart_s=300.0)
    effects = {e.name: e for e in effects_without_search(point(16), reliability)}
    often, seldom = effects["failures 2 x as frequent"], effects["failures 0.5 x as frequent"]
    assert often.days > seldom.days > point(16).days


def test_a_failure_rate_without_progress_is_said():
    reliability = Reliability(3.0, checkpoint_write_s=30.0, restart_s=2800.0)
    effects = {e.name: e for e in effects_without_search(point(16), reliability)}
    assert effects["failures 2 x as frequent"].days is None
    assert "too often" in effects["failures 2 x as frequent"].reason


def test_at_the_break_even_price_both_cost_the_same():
    chosen = point(16, 1.0)
    others = [point(16, 0.8, "there"), point(32, 0.3, "there"), chosen]
    (even,) = break_even(chosen, others)
    assert even.point is others[1]  # 0.3 * 32 GPU-seconds a step are fewer than 0.8 * 16
    assert even.break_even_usd_per_hour * even.point.gpu_hours == pytest.approx(chosen.usd)
    assert even.break_even_usd_per_hour == pytest.approx(2.0 * 16 / 9.6)
    assert even.price_usd_per_hour == 4.0
