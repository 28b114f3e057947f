"""The reader against the real shell, on what launch scripts are made of."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.reports.launch_import.shell import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here")

VALUES = st.sampled_from(
    ["1", "''", '"a b"', "'x  y'", "$A", '"$A $B"', "${C:-z}", "$((2*3))", " "]
)
ASSIGNMENTS = st.sampled_from(["A", "B"]).flatmap(
    lambda name: st.one_of(
        VALUES.map(lambda value: f"{name}={value}"),
        VALUES.map(lambda value: f"{name}+={value}"),
        st.lists(VALUES, max_size=3).map(lambda values: f"{name}=({' '.join(values)})"),
        st.lists(VALUES, max_size=3).map(lambda values: f"{name}+=({' '.join(values)})"),
        st.just(f'if [[ "${name}" == 1 ]]; then {name}=one; else {name}=other; fi'),
    )
)
WORDS = st.sampled_from(
    [
        "$A",
        '"$A"',
        "${B}",
        "${A[@]}",
        '"${A[@]}"',
        '"${A[*]}"',
        "x${B}y",
        '"${#A[@]}"',
        "${B:+set}",
    ]
)


@given(st.lists(ASSIGNMENTS, min_size=1, max_size=4), st.lists(WORDS, min_size=1, max_size=3))
def test_words_are_bash_s(assignments, words):
    script = "A=0; B=0\n" + "\n".join(assignments)
    command = "run " + " ".join(words)
    printed = script + "\nrun() { for each; do printf '%s\\0' \"$each\"; done; }\n" + command
    done = subprocess.run([BASH, "-c", printed], capture_output=True, text=True, check=True)
    expected = done.stdout.split("\0")[:-1]
    found = list(read_script(f"{script}\n{command}", {}).commands[-1].words[1:])
    assert found == expected
