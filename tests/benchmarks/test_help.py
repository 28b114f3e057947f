import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["search_exact", "same_answers"])
def test_a_benchmark_without_arguments_of_its_own_says_which_it_takes(module):
    command = [sys.executable, "-m", f"benchmarks.{module}", "nothing"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert {"search_exact": "certificates", "same_answers": "keep FILE"}[module] in done.stderr
