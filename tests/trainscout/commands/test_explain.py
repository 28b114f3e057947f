from types import SimpleNamespace

import pytest

from trainscout.commands.explain import best_of_space
from trainscout.optimizer import study
from trainscout.optimizer.trial import SearchResult


def test_what_was_found_until_ctrl_c_is_no_best_to_compare_with(monkeypatch):
    plan = SimpleNamespace(question=None, space_spec={}, options=None, simulator=None)

    def stopped(reason):
        result = SearchResult((), (), (), ("step_time",), reason, 1.0, 1)
        monkeypatch.setattr(study, "run_search", lambda asked: result)
        return best_of_space(plan)

    assert stopped("proved") is None
    with pytest.raises(KeyboardInterrupt):
        stopped("interrupted")
