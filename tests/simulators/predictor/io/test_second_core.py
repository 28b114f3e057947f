import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.warm.processes import is_second_core
from trainscout.simulators.predictor.io import second_core
from trainscout.simulators.predictor.io.second_core import both


@pytest.mark.parametrize("cores", [1, 2])
def test_both_answers_come_in_order(cores, monkeypatch):
    monkeypatch.setattr(second_core, "is_second_core", lambda: cores > 1)
    first, second = both(lambda: (os.getpid(), "a" * 10**6), lambda: (os.getpid(), "b" * 10**6))
    assert (first[1][0], second[1][0]) == ("a", "b")
    assert (first[0] == second[0]) == (cores == 1)


def test_only_the_main_thread_forks(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert is_second_core() == hasattr(os, "fork")
    with ThreadPoolExecutor(1) as threads:
        assert not threads.submit(is_second_core).result()


def test_what_fails_on_the_second_core_is_computed_here(monkeypatch):
    monkeypatch.setattr(second_core, "is_second_core", lambda: True)
    own = os.getpid()

    def only_here():
        return 1 / (os.getpid() == own)

    assert both(only_here, only_here) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        both(only_here, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        both(lambda: 1 / 0, only_here)
