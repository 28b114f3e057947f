from benchmarks.corpus.__main__ import Outcome, first_attempts, page


def test_the_page_counts_what_ran_and_what_was_never_tried_before():
    entries = [
        {"name": name, "source": "a/b@c", "command": ""} for name in ("one", "two", "three")
    ]
    outcomes = [Outcome("one", "a/b@c", 0, 1.0, ""), Outcome("two", "a/b@c", 3, 1.0, "gap | x")]
    text = page(entries, outcomes)
    assert "**1 of 2** public training scripts that were tried, of 3 listed" in text
    assert "| two | a/b@c | gap | gap / x |\n| three | a/b@c | not run |  |" in text
    assert text.endswith(first_attempts())


def test_first_attempts_say_how_many_pass_by_sample():
    text = first_attempts()
    for part in text.split("\n## ")[1:]:
        table = part.partition("stopped by, now |\n")[2].partition("\n\n")[0]
        rows = [row.split(" | ") for row in table.splitlines()[1:]]
        scripts = sum(len(row[1].split(", ")) for row in rows)
        now = sum(len(row[1].split(", ")) for row in rows if not row[3].strip(" |"))
        stated = " ".join(part.split())
        assert f"of {scripts} that" in stated
        assert f"and {now} (" in stated


def test_scripts_without_a_verdict_are_counted_apart():
    second = first_attempts().partition("## Second sample")[2].partition("## Third")[0]
    rows = [row for row in second.partition("| no verdict |")[2].splitlines()[2:] if row]
    assert any("too large" in row for row in rows)
    assert "not reached" in rows[-1]
    counted = sum(len(row.split(" | ")[1].split(", ")) for row in rows if "not reached" not in row)
    assert f"; {counted} came to no verdict" in " ".join(second.split())
