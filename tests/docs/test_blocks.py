from tests.docs.blocks import FILE, OUTPUT, PYTHON, SHELL, blocks

PAGE = """
Text.

```
trainscout optimize model=a \\
    cluster=b && grep x y | head -1   # why
pip install -e '.[gp]' > log
```

<!-- output -->
```
best 1
```

<!-- not run: a server -->
```sh
mlflow ui
```

<!-- exit code: 3 -->

```
trainscout plan
```

<!-- file: mine/a.yaml -->
```yaml
name: a
```

```python
print(1)
```

```
a sketch -> of something
```

```json
{}
```
"""


def test_fences_are_what_they_mean():
    found = blocks("page.md", PAGE)
    assert [block.kind for block in found] == [SHELL, OUTPUT, SHELL, SHELL, FILE, PYTHON]
    assert [block.line for block in found][:2] == [4, 11]
    shell, _, server, study, file, _ = found
    assert shell.commands == [
        ["trainscout", "optimize", "model=a", "cluster=b"],
        ["grep", "x", "y"],
        ["head", "-1"],
        ["pip", "install", "-e", ".[gp]"],
    ]
    assert (server.not_run, shell.not_run) == ("a server", None)
    assert study.exit_code == 3
    assert (file.file, file.text) == ("mine/a.yaml", "name: a\n")
