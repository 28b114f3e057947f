"""A user's own YAML that is broken or hostile: exit code 2 with the file and what is wrong."""

import pytest

from tests.e2e.commands import files_in, run

BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BROKEN = {
    "tab": ("name: x\n\tnum_layers: 3\n", "line 2"),
    "twice": ("name: x\nname: y\n", "line 2: name stands twice"),
    "nul": ("name: x\0\n", "control characters"),
    "utf16": ("name: x\n".encode("utf-16"), "line 1: 'utf-8' codec"),
    "tag": ("name: !!python/object/apply:os.system ['true']\n", "line 1: could not"),
    "scalar": ("5\n", "holds no fields"),
    "empty": ("", "holds no fields"),
    "itself": ("defaults: [m]\nname: x\n", "the file that it stands in"),
    "deep": ("a: " + "[" * 500 + "\n", "line 1 nests"),
    # libyaml from 0.2.6 on has a limit of its own, which it may meet first.
    "deeper": ("a: " + "[" * 5000 + "\n", "cannot be read: line 1"),
    "defaults": ("defaults: 5\nname: x\n", "defaults that are no list"),
    "choices": ("defaults: [{a: 1}, 3]\n", "choose nothing"),
    "nowhere": ("defaults: [nowhere]\n", "model/nowhere"),
    "bomb": (BOMB, "nests or repeats"),
    "circle": ("a: &a [*a]\n", "nests or repeats"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_is_refused_with_file_and_line(kind, tmp_path):
    content, problem = BROKEN[kind]
    file = tmp_path / "mine/model/m.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("simulate.py", "--config-dir", "mine", "model=m", cwd=tmp_path, code=2)
    assert problem in done.stderr
    assert done.stderr.rstrip().endswith(")")
    assert done.stderr.count("\n") == 1
    assert list(files_in(tmp_path)) == ["mine/model/m.yaml"]
