import io

import pytest
from rich.text import Text

from trainscout.simulators.predictor.io.terminal import (
    PIPED_WIDTH,
    as_text,
    console_for,
    plain_table,
    redraws,
    show,
)

STYLED = Text("bold words", style="bold red")


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def printed(stream) -> str:
    console_for(stream).print(STYLED)
    return stream.getvalue()


def test_brackets_and_colons_in_names_are_no_markup():
    table = plain_table("mesh [red]", "#GPUs", title="job [bold]")
    table.add_row("[dp]:key:", "8")
    assert as_text(table) == "job [bold]\nmesh [red]  GPUs\n[dp]:key:      8\n"


def test_terminals_are_coloured_and_files_are_not():
    assert "\x1b[1;31m" in printed(Stream(terminal=True))
    assert printed(Stream(terminal=False)) == "bold words\n"


def test_no_color_is_heeded(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in printed(Stream(terminal=True))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert printed(Stream(terminal=False)) == "bold words\n"


def test_forced_colours_reach_files_without_redrawing(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = Stream(terminal=False)
    assert "\x1b[1;31m" in printed(stream)
    assert not redraws(console_for(stream))


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream(terminal=True)
    assert printed(stream) == "bold words\n"
    assert not redraws(console_for(stream))


def test_lines_are_redrawn_on_terminals_but_not_in_ci(monkeypatch):
    assert redraws(console_for(Stream(terminal=True)))
    assert not redraws(console_for(Stream(terminal=False)))
    monkeypatch.setenv("CI", "true")
    assert not redraws(console_for(Stream(terminal=True)))


def test_pipes_are_as_wide_as_asked_and_files_of_one_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_for(Stream(terminal=False)).width == PIPED_WIDTH
    for given, width in (("40", 40), ("", PIPED_WIDTH), ("wide", PIPED_WIDTH), ("0", PIPED_WIDTH)):
        monkeypatch.setenv("COLUMNS", given)
        assert console_for(Stream(terminal=False)).width == width
    monkeypatch.setenv("COLUMNS", "40")
    assert console_for(Stream(terminal=True)).width == 40
    assert max(map(len, as_text(Text("word " * 100)).splitlines())) > 40


def test_no_line_ends_in_spaces():
    assert as_text(Text("one   \ntwo ")) == "one\ntwo\n"


def test_what_is_shown_in_a_pipe_is_the_text_of_a_file(monkeypatch, capsys):
    show(STYLED)
    assert capsys.readouterr().out == as_text(STYLED)


def test_a_stream_without_the_characters_is_laid_out_for_what_it_has(monkeypatch):
    class Drawn:
        def __rich_console__(self, console, options):
            yield Text("o" if options.ascii_only else "●")

    for encoding, mark in (("cp1252", b"o\n"), ("utf-8", "●\n".encode())):
        raw = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, newline=""))
        show(Drawn())
        assert raw.getvalue() == mark


def test_text_is_not_shown_in_a_notebook_as_well(monkeypatch):
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *what: shown.append(what))
    assert as_text(Text("one")) == "one\n"
    assert not shown
