import re

from tests.reports.search_page.searches import searched
from trainscout.reports.search_page.searched import launch_texts, search_request


def test_the_command_can_be_pasted():
    request = search_request(
        ["model=x", "space.name=two words"], {"seed": 3}, 3, searched().result
    )
    assert request.command == "trainscout optimize model=x 'space.name=two words'"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", request.started)
    assert request.seed == 3


def test_equal_settings_have_equal_hashes():
    result = searched().result
    first, same, other = (
        search_request([], settings, 0, result).config_hash
        for settings in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2})
    )
    assert first == same != other


def test_equal_launch_files_are_shown_once(tmp_path):
    (tmp_path / "launch").mkdir()
    files = [tmp_path / name for name in ("launch.sh", "launch/job.toml")]
    for path in files:
        path.write_text(path.name)
    same = tmp_path / "launch" / "again.sh"
    same.write_text("launch.sh")
    files.append(same)
    texts = launch_texts(tmp_path, files)
    assert texts == {"launch.sh": "launch.sh", "launch/job.toml": "job.toml"}
