import json

from tests.e2e.commands import run

SHAPE = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"]
SMALL = ["space=maya_table3"]
FIRST = ["a.tp=4", "a.pp=2", "a.sp=true", "a.recompute=selective"]

SCRIPT = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS=(--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048)
ARGS+=(--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16)
torchrun --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]} --tensor-model-parallel-size ${TP:-4} \\
    --pipeline-model-parallel-size 2 --use-distributed-optimizer --lr 1e-4 --swigluu
"""


def test_two_recipes_for_people(tmp_path):
    done = run("explain.py", *SHAPE, *FIRST, "b.recompute=none", cwd=tmp_path)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for shown in (
        "a  tp4 pp2 dp1 mb1 recompute=selective sp zero1 megatron_core  (a.*)",
        "Which change brings what, from a to b",
        "recompute selective -> none",
        "If you change only one knob of a",
    ):
        assert shown in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_best_of_the_space_as_json(tmp_path):
    done = run("explain.py", *SHAPE, *FIRST, "against=best", *SMALL, "format=json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert record["difference"]["step_time_s"] <= 0
    # Nothing that one knob does is better than the best of the same space.
    best = record["b"]["prediction"]["step_time_s"]
    fitting = [each["step_time_s"] for each in record["one_knob"] if each["fits"]]
    assert min(fitting) >= best * (1 - 1e-9)


def test_with_no_recipe_named_the_best_is_explained(tmp_path):
    small = [*SHAPE, "space.knobs.tp=[4,8]", "space.knobs.micro_batch=[1]"]
    done = run("explain.py", *small, cwd=tmp_path)
    assert "best  tp4 pp1 dp2" in done.stdout
    assert "GiB free" in done.stdout
    assert "1 B tokens at" in done.stdout
    none_fits = run("explain.py", *small, "gpu.memory_bytes=20000000000", cwd=tmp_path, code=1)
    assert none_fits.stdout == ""
    assert "nothing to explain: no recipe of the space fits" in none_fits.stderr


def test_a_launch_script(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    done = run(
        "explain.py", "given=run.sh", "cluster=a800_8", "b.sp=true", "format=json", cwd=tmp_path
    )
    record = json.loads(done.stdout)
    assert record["a"]["name"] == "yours"
    assert (record["a"]["recipe"]["tp"], record["b"]["recipe"]["tp"]) == (4, 4)
    assert (record["a"]["recipe"]["sp"], record["b"]["recipe"]["sp"]) == (False, True)
    given = record["given"]
    assert given["model"]["num_layers"] == 40
    assert given["unknown"] == [{"argument": "--swigluu", "nearest": "--swiglu"}]
    shown = run("explain.py", "given=run.sh", "cluster=a800_8", cwd=tmp_path)
    assert "Unknown:" in shown.stdout
    assert " tokens, bf16\n" in shown.stdout, "what the script says is not assumed"
    assert "did you mean --swiglu?" in shown.stdout


def test_the_best_of_an_earlier_search(tmp_path):
    best = {"recipe": {"tp": 8, "sp": True, "dp": 1}, "prediction": {"step_time_s": 1.0}}
    (tmp_path / "top_recipes.json").write_text(json.dumps([best]))
    done = run("explain.py", *SHAPE, *FIRST, "against=.", cwd=tmp_path)
    assert "best of ." in done.stdout
    assert "it was about another model, cluster or training" in " ".join(done.stdout.split())


def test_quiet_is_one_sentence(tmp_path):
    done = run("explain.py", *SHAPE, *FIRST, "verbosity=quiet", cwd=tmp_path)
    assert done.stdout.startswith("a takes ")
    assert len(done.stdout.splitlines()) <= 2


def test_nothing_that_fits_is_said_with_its_code(tmp_path):
    done = run(
        "explain.py",
        "model=gpt175b",
        "cluster=a800_8",
        "training.global_batch_size=64",
        "a.tp=8",
        "against=best",
        *SMALL,
        cwd=tmp_path,
        code=1,
    )
    assert "no recipe of the space fits" in done.stderr
    assert "If you change only one knob of a" in done.stdout
