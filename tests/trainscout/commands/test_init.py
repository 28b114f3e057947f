"""``trainscout init``."""

import trainscout as ts
from tests.in_process import command

run = command("init")


def test_what_is_written_is_a_question(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([]) == 0
    assert (
        "trainscout optimize --config-dir mine model=ours cluster=ours" in capsys.readouterr().out
    )
    question = ts.question("ours", "ours", config_dir="mine", global_batch_size=64)
    assert (question.model.name, question.cluster.num_gpus, question.gpu.name) == (
        "ours",
        64,
        "h100",
    )


def test_lines_that_are_commented_out_are_fields_too(tmp_path):
    assert run([tmp_path]) == 0
    for path in tmp_path.rglob("*.yaml"):
        text = path.read_text("utf-8").replace("\n#   ", "\n  ")
        for name in ("moe", "nvlink_domain", "nvswitch", "oversubscription", "memory_reserve"):
            text = text.replace(f"\n# {name}:", f"\n{name}:")
        path.write_text(text, encoding="utf-8")
    named = ts.catalogue(tmp_path)
    assert named.models["ours"].moe.top_k == 2
    assert (named.clusters["ours"].nvlink_domain, named.clusters["ours"].oversubscription) == (
        72,
        1,
    )


def test_a_name_is_that_of_files_and_results(tmp_path):
    assert run([tmp_path, "--name", "our-30b_v2"]) == 0
    named = ts.catalogue(tmp_path)
    assert named.models["our-30b_v2"].name == named.clusters["our-30b_v2"].name == "our-30b_v2"


def test_nothing_is_replaced(tmp_path, capsys):
    kept = tmp_path / "cluster/ours.yaml"
    kept.parent.mkdir()
    kept.write_text("mine", encoding="utf-8")
    assert run([tmp_path]) == 2
    assert "is not replaced" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert kept.read_text("utf-8") == "mine"


def test_a_name_that_is_a_path_is_refused(tmp_path, capsys):
    assert run([tmp_path, "--name", "../x"]) == 2
    assert "is no name" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_said(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run([tmp_path / "file"]) == 2
    assert "cannot be written" in capsys.readouterr().err
