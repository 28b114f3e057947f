"""Tables of one's own runs, by our names."""

import pytest

from trainscout.simulators.laboratory.calibration.questions import job_of_settings, settings_of
from trainscout.simulators.laboratory.calibration.tables_of_runs import read_table
from trainscout.simulators.predictor.question.errors import InputError

HEADER = "id,model,cluster,cluster.num_nodes,global_batch_size,tp,recompute"
SETTINGS = "llama3_8b,h100_64,1,64,2,selective"


def table(tmp_path, measured, *values, settings=SETTINGS):
    rows = [f"run{n},{settings},{value}" for n, value in enumerate(values)]
    path = tmp_path / "ours.csv"
    path.write_text("\n".join([f"{HEADER},{measured}", *rows]) + "\n")
    return path


def test_settings_by_our_names_are_a_job(tmp_path):
    (run,), left = read_table(table(tmp_path, "step_time_s", 5.5))
    assert not left
    assert (run.name, run.measured_s) == ("run0", 5.5)
    assert (run.job.world_size, run.job.recipe.tp, run.job.recipe.recompute) == (8, 2, "selective")
    assert run.job.training.global_batch_size == 64


@pytest.mark.parametrize(
    ("column", "value", "seconds"),
    [
        ("step_time_ms", 5500, 5.5),
        ("tokens_per_s", 64 * 8192 / 5.5, 5.5),
        ("tokens_per_s_per_gpu", 64 * 8192 / 8 / 5.5, 5.5),
        ("samples_per_s", 64 / 5.5, 5.5),
        ("Step time (s)", 5.5, 5.5),
        ("elapsed time per iteration (ms)", 5500, 5.5),
        ("tokens/sec/GPU", 64 * 8192 / 8 / 5.5, 5.5),
    ],
)
def test_units_are_in_names(tmp_path, column, value, seconds):
    (run,), _ = read_table(table(tmp_path, column, value))
    assert run.measured_s == pytest.approx(seconds)


@pytest.mark.parametrize("column", ["step_time", "Step time", "throughput"])
def test_a_unit_is_asked_for(tmp_path, column):
    with pytest.raises(InputError, match=r"has no unit.*step_time_s"):
        read_table(table(tmp_path, column, 1))


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path):
    path = table(tmp_path, "step_time_s", 1)
    path.write_text(path.read_text().replace("recompute", "recomputed"))
    with pytest.raises(InputError, match="did you mean 'recompute'"):
        read_table(path)


def test_notes_are_nobodys_and_other_tools_names_are_told(tmp_path):
    path = table(tmp_path, "step_time_s,Notes", "5.5,after the new driver")
    text = path.read_text()
    assert len(read_table(path)[0]) == 1
    path.write_text(text.replace("global_batch_size", "gbs"))
    with pytest.raises(InputError, match=r"did you mean 'training.global_batch_size'"):
        read_table(path)


@pytest.mark.parametrize(
    ("column", "stated"),
    [("clusterr", "runs=clusterr: .*did you mean 'cluster'"), ("machine", "cluster or gpus b")],
)
def test_a_table_that_does_not_say_its_machines_is_told_how(tmp_path, column, stated):
    path = table(tmp_path, "step_time_s", 5.5)
    path.write_text(path.read_text().replace("cluster,", f"{column},", 1))
    with pytest.raises(InputError, match=stated):
        read_table(path)
    path.write_text(path.read_text().replace(",", ";"))
    with pytest.raises(InputError, match="is separated by ';'"):
        read_table(path)


def test_settings_of_all_rows_count_where_a_row_does_not_say_otherwise(tmp_path):
    path = table(tmp_path, "step_time_s", 5.5)
    path.write_text(path.read_text().replace(",cluster,", ",", 1).replace(",h100_64,", ","))
    stated = {"cluster": "h100_64", "recipe.tp": "4", "recipe.sp": "true"}
    (run,), left = read_table(path, stated)
    assert not left
    assert (run.job.recipe.tp, run.job.recipe.sp, run.job.cluster.gpus_per_node) == (2, True, 8)
    # What says the machines in other words does not count beside a row's.
    (run,), left = read_table(table(tmp_path, "step_time_s", 5.5), {"gpus": "16xH100"})
    assert (run.job.world_size, left) == (8, ())


def test_settings_beside_a_table_of_published_columns_are_refused(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("id,gpu,num_layers,hidden,num_heads,seq_len\nrun,h100,2,1024,16,2048\n")
    with pytest.raises(InputError, match=r"cluster.nic_gbps=400.*columns of published runs"):
        read_table(path, {"cluster.nic_gbps": "400"})


def test_adamw_takes_as_long_as_adam():
    settings = {"model": "llama3_8b", "cluster": "h100_64", "optimizer": "AdamW"}
    assert job_of_settings(settings).training.optimizer == "adam"


def test_gpus_may_be_counted(tmp_path):
    path = table(tmp_path, "step_time_s", 5.5)
    text = path.read_text()
    path.write_text(text.replace("cluster,", "gpus,", 1).replace("h100_64,", "16xH100,"))
    (run,), _ = read_table(path)
    assert run.job.cluster.gpus_per_node == 8
    path.write_text(text.replace(",cluster,", ",gpus,", 1))
    _, (left,) = read_table(path)
    assert "gpus=h100_64: does not say how many of which GPU" in left


def test_a_row_that_cannot_be_is_left_out_and_said(tmp_path):
    path = table(tmp_path, "step_time_s", 5.5, "soon")
    path.write_text(path.read_text() + f"bad,{SETTINGS.replace(',2,', ',3,')},5\n")
    runs, left = read_table(path)
    assert len(runs) == 1
    assert "run1 (line 3): step_time_s=" in left[0]
    assert "bad (line 4): recipe.tp=3" in left[1]


def test_what_a_launch_says_gives_way_to_settings():
    settings = {"model": "llama3_8b", "cluster": "h100_64", "cluster.num_nodes": "1"}
    given = "--tensor-model-parallel-size 4 --global-batch-size 32 --micro-batch-size 2"
    job = job_of_settings(settings, given)
    assert (job.recipe.tp, job.recipe.micro_batch) == (4, 2)
    assert job.training.global_batch_size == 32
    job = job_of_settings({**settings, "tp": "2", "global_batch_size": "16"}, given)
    assert (job.recipe.tp, job.recipe.micro_batch) == (2, 2)
    assert job.training.global_batch_size == 16


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ({"cluster": "h100_64"}, "model=.*is missing"),
        ({"model": "llama3_8b", "cluster": "h100_65"}, "did you mean 'h100_64'"),
        ({"model": "llama3_8b", "cluster": "h100_64", "tpp": "2"}, "did you mean 'tp'"),
        ({"model": "llama3_8b", "cluster": "h100_64", "tp": "x"}, "recipe.tp"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, stated):
    with pytest.raises(InputError, match=stated):
        job_of_settings(settings)


def test_a_setting_stands_once():
    with pytest.raises(InputError, match="--set=tp=2: is set twice"):
        settings_of(["tp=4", "tp=2"], "--set")
