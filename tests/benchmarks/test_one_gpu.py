from __future__ import annotations

from pathlib import Path

from benchmarks.one_gpu.__main__ import page


def test_the_page_is_made_of_the_committed_measurements(tmp_path: Path) -> None:
    page(tmp_path / "one-gpu.md")
    written = (tmp_path / "one-gpu.md").read_text()
    assert written == Path("docs/one-gpu.md").read_text()
    # Measured 48.0 ms, 48.5 predicted before it.
    assert "| gpt | 48.0 | 48.5 |" in written
