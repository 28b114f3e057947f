"""Differences between two runs' records."""

import copy

from trainscout.planning.changes import Change, changes

RECORD = {
    "models": [
        {"model": "small", "answer": "a", "targets": [{"name": "soon", "met_by": 1}]},
    ],
    "cells": [
        {
            "key": "a",
            "status": "fits",
            "recipe": {"tp": 1},
            "recipe_words": "tp1",
            "days": 10.0,
            "usd": 1000.0,
        },
        {"key": "b", "status": "nothing_fits"},
    ],
}


def test_the_same_record_has_no_changes():
    assert changes(RECORD, copy.deepcopy(RECORD), 0.0) == ()


def test_every_kind_of_change():
    after = copy.deepcopy(RECORD)
    after["models"][0] |= {"answer": "b", "targets": [{"name": "soon", "met_by": 0}]}
    after["cells"][0] |= {"recipe": {"tp": 2}, "recipe_words": "tp2", "days": 9.0, "usd": 1005.0}
    after["cells"][1] = {**after["cells"][0], "key": "b"}
    after["cells"].append({"key": "c", "status": "failed"})
    found = changes(RECORD, after, 0.01)
    assert [change.kind for change in found] == [
        "answer",
        "target",
        "recipe",
        "days",
        "fits",
        "added",
    ]
    assert found[1] == Change("target", "small, soon", "met", "not met")
    assert found[3] == Change("days", "a", "10.00 days", "9.00 days", 9 / 10 - 1)
    back = changes(after, RECORD, 0.01)
    assert [change.kind for change in back][-2:] == ["no_longer_fits", "removed"]


def test_the_threshold_is_what_may_move():
    after = copy.deepcopy(RECORD)
    after["cells"][0]["usd"] = 1011.0
    assert [change.kind for change in changes(RECORD, after, 0.01)] == ["usd"]
    assert changes(RECORD, after, 0.02) == ()


def test_gpus_that_cost_nothing():
    free = copy.deepcopy(RECORD)
    free["cells"][0]["usd"] = 0.0
    assert changes(free, copy.deepcopy(free), 0.0) == ()
    assert changes(free, RECORD, 0.01) == (Change("usd", "a", "$0.00", "$1,000.00"),)
    assert changes(RECORD, free, 0.01) == (Change("usd", "a", "$1,000.00", "$0.00", -1.0),)


def test_from_nothing_fits_to_failed_is_neither_fitting_nor_not():
    after = copy.deepcopy(RECORD)
    after["cells"][1]["status"] = "failed"
    assert [change.kind for change in changes(RECORD, after, 0.0)] == ["status"]
