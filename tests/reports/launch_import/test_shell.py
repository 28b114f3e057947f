import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.reports.dialects.options import is_known, shown
from trainscout.reports.launch_import.shell import read_script
from trainscout.simulators.predictor.question.errors import InputError


def words(text: str, **environment: str) -> list[str]:
    """The words of the last command."""
    return [shown(word) for word in read_script(text, environment).commands[-1].words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 --b=2", ["run", "--a", "1", "--b=2"]),
        ("run \\\n  --a 1 \\\n  --b 2 # --c 3", ["run", "--a", "1", "--b", "2"]),
        ("A=3; run --a $A --b ${A}x", ["run", "--a", "3", "--b", "3x"]),
        ("A='$B'; run \"$A\"", ["run", "$B"]),
        ("A=(--x 1 # no\n --y 2)\nrun ${A[@]}", ["run", "--x", "1", "--y", "2"]),
        ('A=("--x 1" --y)\nrun "${A[@]}"', ["run", "--x 1", "--y"]),
        ('A=("--x 1" --y)\nrun ${A[@]}', ["run", "--x", "1", "--y"]),
        ("A=(1)\nA+=(2 3)\nrun ${A[*]} ${#A[@]} ${A[1]}", ["run", "1", "2", "3", "3", "2"]),
        ('A=" --x 1 "\nA+="--y"\nrun $A', ["run", "--x", "1", "--y"]),
        ("N=4; run $((N * 8)) $(($N*2+1))", ["run", "32", "9"]),
        ("run ${A:-7} ${B-8} ${C:+9} d", ["run", "7", "8", "d"]),
        ('r=(); run "${r[@]+"${r[@]}"}" end', ["run", "end"]),
        ('r=(1 2); run ${r[@]+"${r[@]}"} end', ["run", "1", "2", "end"]),
        ("run --log $(date +%s) > out 2>&1", ["run", "--log", "$(date +%s)"]),
        ("run one | tee log.txt\nrun two", ["run", "two"]),
        ("cat <<EOF\nA=1; run wrong\nEOF\nrun right", ["run", "right"]),
        ("B=2; read -r -d '' A <<EOF\nrun \\\n  $B\n  'c d'\nEOF\n$A", ["run", "2", "'c", "d'"]),
        ("read -r -d '' A <<'EOF'\nrun $B\nEOF\n$A", ["run", "$B"]),
        ('C="run --a 1"\nbash -c "cd x && $C"', ["run", "--a", "1"]),
        ("A=1 B=2 run x", ["run", "x"]),
        ("export A=5\nrun $A", ["run", "5"]),
    ],
)
def test_words_are_what_a_shell_would_pass(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ('[[ "$A" == "fp8" ]]', "yes"),
        ('[ "$A" = bf16 ]', "no"),
        ('[[ "$A" != fp* ]]', "no"),
        ('[ -z "$UNSET" ]', "yes"),
        ('[ -n "${UNSET:-}" ]', "no"),
        ("[ $N -gt 3 ]", "yes"),
        ('[[ "$A" == x ]] || [[ $N -eq 4 ]]', "yes"),
        ('[[ "$A" == fp8 && $N -lt 4 ]]', "no"),
        ("! [ $N -gt 3 ]", "no"),
        ("[ x$A = xfp8 ]", "yes"),
    ],
)
def test_conditions_on_values_are_followed(condition, taken):
    text = f"A=fp8\nN=4\nif {condition}; then\n  W=yes\nelse\n  W=no\nfi\nrun $W"
    script = read_script(text, {})
    assert script.commands[-1].words == ("run", taken)
    assert script.not_followed == []


def test_elif_and_nested_conditions():
    text = """
    S=2
    if [ $S -eq 1 ]; then W=one
    elif [ $S -eq 2 ]; then
      if [[ $S == 3 ]]; then W=three; else W=two; fi
    else W=other
    fi
    run $W
    """
    assert words(text) == ["run", "two"]


def test_conditions_on_files_are_not_followed_but_listed():
    text = "if [ -f x ]; then\n  W=1\nfi\nrun ${W:-2}"
    script = read_script(text, {})
    assert script.commands[-1].words == ("run", "2")
    assert script.not_followed == ["the condition in line 1, which cannot be decided here"]


def test_nothing_is_said_of_passed_over_conditions_without_consequences():
    script = read_script("if [ ! -f x ]; then\n  echo 'no x.py there'; exit 1\nfi\nrun", {})
    assert script.not_followed == []


def test_case_takes_the_first_pattern_that_matches():
    text = (
        "S=22b\ncase $S in\n 1b) L=24 ;;\n 22b|23b) L=48; H=6144 ;;\n *) L=1 ;;\nesac\nrun $L $H"
    )
    assert words(text) == ["run", "48", "6144"]


def test_loops_and_functions_are_passed_over():
    text = "f() {\n A=1\n}\nfor i in 1 2; do\n A=$i\ndone\nrun ${A:-0}"
    script = read_script(text, {})
    assert script.commands[-1].words == ("run", "0")
    assert script.not_followed == ["the function in line 1", "the for loop in line 4"]


@pytest.mark.parametrize(
    "body",
    [
        "f() { A=1; }",
        "f()\n{\n A=1\n if true; then { echo }; }; fi\n}",
        "function f { A=1; echo }; }",
        "function f() { A=1; }",
        "f() ( A=1; (echo) )",
    ],
)
def test_a_function_ends_where_its_body_does(body):
    script = read_script(f"{body}\nrun ${{A:-0}}", {})
    assert [command.words for command in script.commands] == [("run", "0")]
    assert script.not_followed == ["the function in line 1"]


def test_nothing_is_said_of_functions_without_consequences():
    assert read_script('log() { echo "$1"; }\nrun', {}).not_followed == []


def test_what_the_script_does_not_set_comes_from_the_environment():
    assert words("run $TP", TP="8") == ["run", "8"]
    assert words("TP=4\nrun $TP", TP="8") == ["run", "4"]


def test_what_nothing_sets_is_marked_as_such():
    (word,) = read_script("run --a $TP", {}).commands[-1].words[2:]
    assert not is_known(word)
    assert shown(word) == "$TP"


@pytest.mark.parametrize("text", ["run 'x", 'run "x', "A=(1 2", "run ${A", "run $(x"])
def test_what_never_closes_is_refused(text):
    with pytest.raises(InputError, match="never closed"):
        read_script(text, {})


def test_huge_scripts_and_numbers_are_refused_or_unknown():
    with pytest.raises(InputError, match="too long"):
        read_script("#" * (2 << 20), {})
    assert words("run $((9**9**9))") == ["run", "$((9**9**9))"]
    assert words("run $((999999999999*999999999999))")[1].startswith("$((")


@given(st.text(alphabet="ab$ {}()[]'\"\\`#;|&<>=+-\n0", max_size=60))
def test_any_text_is_read_or_refused(text):
    with suppress(InputError):
        read_script(text, {"a": "1"})


@given(st.lists(st.text(alphabet="abc$ '\"\\{}()#*?0=", max_size=8), max_size=5))
def test_quoted_words_come_back(given_words):
    text = shlex.join(["run", *given_words])
    assert words(text) == ["run", *given_words]
