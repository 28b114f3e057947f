import os

from omegaconf import OmegaConf

from trainscout.commands.check_first import _reserve
from trainscout.commands.hydra_setup import STORE, run_directory


def test_searches_of_one_second_have_directories_of_their_own(tmp_path):
    names = []
    for _ in range(3):
        directory = run_directory(str(tmp_path), "now", False, None)
        os.mkdir(directory)
        names.append(os.path.basename(directory))
    assert names == ["now", "now-2", "now-3"]


def test_a_search_is_resumed_where_it_was_last_written_to(tmp_path):
    for name, written_s in (("first", 2), ("second", 1), ("empty", 3)):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / STORE).touch()
            os.utime(tmp_path / name / STORE, (written_s, written_s))
    given = (str(tmp_path), "now")
    assert run_directory(*given, True, None) == str(tmp_path / "first")
    # Another storage has the search, whatever is in the directories.
    assert run_directory(*given, True, "trials.db") == str(tmp_path / "now")
    assert run_directory(*given, False, None) == str(tmp_path / "now")


def test_searches_that_start_together_do_not_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    clock = "${run_directory:searches,now,false,null}"
    both = [OmegaConf.create({"hydra": {"run": {"dir": clock}}}) for _ in range(2)]
    assert {config.hydra.run.dir for config in both} == {os.path.join("searches", "now")}
    for config in both:
        _reserve(config)
    names = [os.path.basename(config.hydra.run.dir) for config in both]
    assert names == sorted(os.listdir("searches")) == ["now", "now-2"]


def test_a_directory_of_ones_own_choice_stays(tmp_path):
    config = OmegaConf.create({"hydra": {"run": {"dir": str(tmp_path)}}})
    _reserve(config)
    assert config.hydra.run.dir == str(tmp_path)
