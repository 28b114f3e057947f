import re
from collections import Counter

from benchmarks.corpus.__main__ import MANY, Outcome, _samples, page

_ENTRIES = [{"name": name, "source": "a/b@c", "command": ""} for name in ("one", "two", "three")]
_OUTCOMES = [Outcome("one", "a/b@c", 0, 1.0, ""), Outcome("two", "a/b@c", 3, 1.0, "gap | x")]


def _rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_counts_what_ran_and_says_why_others_do_not():
    text = page(_ENTRIES, _OUTCOMES)
    assert "**1 of 2** that were tried do, of 3 kept" in text
    assert "| two | a/b@c | gap: gap / x |" in text
    assert "and fewer than five each of " in text
    assert "three" not in text


def test_every_script_of_a_sample_is_counted_once():
    head, failing, passing = page(_ENTRIES, _OUTCOMES).split("\n## ")
    samples = _samples()
    for row, (day, names, listed) in zip(_rows(head), samples, strict=True):
        assert row[:2] == [day, str(len(names))]
        counted = int(row[2]) + int(row[5]) + int(row[6])
        assert counted == sum(len(each["scripts"]) for each in listed)
    tried = [each for *_, listed in samples for each in listed if "none" not in each]
    now = Counter(bool(each["now"]) for each in tried)
    assert len(_rows(failing)) == 1 + now[True]
    shown = dict(re.findall(r"(\S+)\s(\d+)[,.]", passing))
    counts = Counter({"a/b": 1})
    for each in tried:
        if not each["now"]:
            counts[each["source"].partition("@")[0]] += len(each["scripts"])
    several = {source: number for source, number in counts.items() if number >= MANY}
    assert {source: int(number) for source, number in shown.items()} == several
    assert f"each of {len(counts) - len(several)} others" in " ".join(passing.split())


def test_reasons_without_a_verdict_are_counted():
    text = page(_ENTRIES, _OUTCOMES)
    assert "wants an older torch (" in text
    assert "not reached (" not in text
