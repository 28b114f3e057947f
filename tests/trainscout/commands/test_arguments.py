"""What people write is understood as the settings that it means."""

import pytest
from hydra.core.config_store import ConfigStore

from trainscout.cli import main
from trainscout.commands.arguments import as_settings
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (["training.tokens=1T"], ["training.tokens=1e+12"]),
        (["training.tokens=1.5B,2T"], ["training.tokens=1.5e+09,2e+12"]),
        (["sweep.training.tokens=300B"], ["sweep.training.tokens=3e+11"]),
        (["training.tokens=2e12"], ["training.tokens=2e12"]),
        (["gpus=64xH100"], ["cluster=64xh100"]),
        (["gpus=64xH100,8xB200"], ["cluster=64xh100,8xb200"]),
        (["cluster=64xH100"], ["cluster=64xh100"]),
        (["cluster=h100_64", "--cfg", "job"], ["cluster=h100_64", "--cfg", "job"]),
        (["a=1", "-cd", "b=2", "c=3", "-m", "~d"], ["a=1", "c=3", "~d", "-cd", "b=2", "-m"]),
    ],
)
def test_what_is_said_otherwise_becomes_settings(given, settings):
    assert as_settings("config", given) == settings


@pytest.mark.parametrize(("gpus", "sizes"), [("64xH100", "64"), ("16xH100,64xH100", "16,64")])
def test_sizes_of_one_gpu_are_one_cluster_of_a_study(gpus, sizes):
    largest = sizes.rpartition(",")[2]
    expected = [f"sweep.clusters=[{largest}xh100]", f"sweep.num_gpus=[{sizes}]"]
    assert as_settings("plan", [f"gpus={gpus}"]) == expected


def test_clusters_of_several_sizes_have_each_its_own():
    expected = ["sweep.clusters=[64xh100,32xb200]", "sweep.num_gpus=[]"]
    assert as_settings("plan", ["gpus=64xH100,32xB200"]) == expected


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (["--model", "llama3_8b"], "settings: model=llama3_8b"),
        (["--global-batch-size=8"], "settings: global_batch_size=8"),
        (["--model"], "settings: model=VALUE"),
        (["gpus=8xH100", "cluster=h100_64"], "one of them"),
        (["cluster=nowhere.yaml"], "a YAML file, or a name that ships"),
        (["model", "gpt175b"], "model=gpt175b"),
        (["gpus", "64xH100"], "gpus=64xH100"),
    ],
)
def test_what_is_no_setting_or_choice_says_what_would_be(given, setting):
    with pytest.raises(InputError) as refused:
        as_settings("config", given)
    assert refused.value.allowed == setting


def test_a_cluster_file_names_its_gpu_as_it_would_any_field(tmp_path, capsys):
    (tmp_path / "cluster").mkdir()
    text = "defaults: [h100_64]\nname: ours\ngpu: b200\n"
    for name in ("alone", "in_folder"):
        (tmp_path / "cluster" / f"{name}.yaml").write_text(text)
    file = tmp_path / "cluster" / "alone.yaml"
    for given in ([f"cluster={file}"], ["cluster=in_folder", "--config-dir", str(tmp_path)]):
        assert main(["simulate", "model=llama3_8b", *given, "verbosity=quiet"]) == 0
        assert "64 x b200" in capsys.readouterr().out
    assert load_catalogue(tmp_path).machines("in_folder")[1].name == "b200"
    file.write_text("defaults: 3\n")
    with pytest.raises(InputError, match="has defaults that are no list"):
        as_settings("config", [f"cluster={file}"])


def test_a_file_of_any_group_is_a_choice(tmp_path):
    file = tmp_path / "ours-64.yaml"
    file.write_text("name: ours\nnum_nodes: 8\n")
    assert as_settings("config", [f"cluster={file}"]) == ["cluster=ours_64"]
    assert ConfigStore.instance().load("cluster/ours_64.yaml").node.num_nodes == 8
    shipped = tmp_path / "h100_64.yaml"
    shipped.write_text("num_nodes: 1\n")
    assert as_settings("config", [f"cluster='{shipped}'"]) == ["cluster=own_h100_64"]
