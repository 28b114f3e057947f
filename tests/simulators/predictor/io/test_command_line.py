import subprocess
import sys

import pytest

from trainscout.simulators.predictor.io.command_line import command_parser, exit_code
from trainscout.simulators.predictor.question.errors import InputError


def ending_with(outcome):
    def main(arguments):
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return exit_code(main, [])


@pytest.mark.parametrize(
    ("outcome", "code"), [(None, 0), (0, 0), (1, 1), (4, 4), (KeyboardInterrupt(), 130)]
)
def test_how_a_command_ends(outcome, code, capsys):
    assert ending_with(outcome) == code
    assert capsys.readouterr() == ("", "")


def test_wrong_input_is_one_line(capsys):
    assert ending_with(InputError("--gpu", "h1000", "is not declared", ["h100", "h200"])) == 2
    stated = capsys.readouterr().err
    assert stated.startswith("error: --gpu=h1000")
    assert "did you mean 'h100'" in stated
    assert len(stated.splitlines()) == 1


def test_a_failure_is_named_and_shown_on_request(capsys):
    assert ending_with(ZeroDivisionError("of 3")) == 1
    stated = capsys.readouterr().err
    assert stated.startswith("internal failure: ZeroDivisionError: of 3\n")
    assert "Traceback" not in stated

    def failing(arguments):
        raise ZeroDivisionError

    assert exit_code(failing, ["--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("leaving", "code"), [(SystemExit(), 0), (SystemExit(2), 2)])
def test_what_parsers_leave_with_is_the_exit_code(leaving, code):
    assert ending_with(leaving) == code


def test_a_reader_may_leave():
    program = (
        "import sys; from trainscout.simulators.predictor.io.command_line import exit_code\n"
        "sys.exit(exit_code(lambda _: print('x' * 10_000_000), []))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--world_size", "8"], "--world_size: is no option; did you mean '--world-size'"),
        (["--world-size=8", "--gpuu=h100"], "--gpuu=h100: is no option; did you mean '--gpu'"),
        (["--world-size", "many", "--gp", "h100"], None),
        (["--world-size", "8", "--", "--gpuu"], None),
        (["--zzz"], None),
    ],
)
def test_a_misspelt_option_is_said_instead_of_what_it_leaves_missing(words, stated, capsys):
    def main(arguments):
        parser = command_parser("do", "Does it.", "this")
        parser.add_argument("--world-size", type=int, required=True)
        parser.add_argument("--gpu")
        parser.parse_args(arguments)

    assert exit_code(main, words) == 2
    said = capsys.readouterr().err
    assert stated in said if stated else said.startswith("usage: ")


def test_help_begins_with_what_a_command_does_and_how_it_is_used():
    parser = command_parser(
        "do", "Does it.\n\nAnd more.", "this \\\n    --and that", "0 done; 1 not"
    )
    text = parser.format_help()
    assert text.startswith("Does it.\n\nAnd more.\n\nexamples:\n  this \\\n      --and that\n")
    assert "usage: trainscout do [-h] [--debug]\n" in text[: text.index("options:")]
    assert text.endswith("exit codes: 0 done; 1 not; 130 interrupted\n")
