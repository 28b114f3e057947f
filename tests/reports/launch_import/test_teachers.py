"""Teachers that launches of distillation name."""

import pytest

from tests.reports.launch_import.samples import read


def launch(folder, script):
    path = folder / "run.sh"
    path.write_text(script)
    return read(str(path))


@pytest.mark.parametrize(
    ("script", "teacher"),
    [
        ("swift rlhf --deepspeed zero3", (True, False, "jsd_pieces")),
        ("swift rlhf --deepspeed zero3 --teacher_deepspeed zero2", (False, False, "jsd_pieces")),
        ("swift rlhf --fsdp fsdp2", (True, False, "jsd_pieces")),
        ("python gkd.py --deepspeed zero3", (True, False, "jsd")),
        ("python gkd.py", (False, False, "jsd")),
        (
            """python gkd.py --teacher_model_init_kwargs '{"dtype": "float32"}'""",
            (False, True, "jsd"),
        ),
    ],
)
def test_a_teacher_that_a_launch_names(tmp_path, script, teacher):
    named = "--model_name_or_path qwen3_1_7b --teacher_model_name_or_path qwen3_8b --bf16"
    if script.startswith("swift"):
        named = "--rlhf_type gkd --model qwen3_1_7b --teacher_model qwen3_8b"
    found = launch(tmp_path, f"{script} {named} --lmbda 0.0")
    taught = found.question.training.distillation
    assert taught.teacher.name == "qwen3_8b"
    assert (taught.sharded, taught.fp32, taught.loss) == teacher
    assert not any("distillation" in words for words, _ in found.reading.not_modelled)


@pytest.mark.parametrize(
    ("program", "more", "borrowed"),
    [
        ("swift", "--tuner_type lora", True),
        ("swift", "--tuner_type lora --teacher_adapters a", False),
        ("swift", "--tuner_type full", False),
        ("megatron", "--tuner_type lora", True),
    ],
)
def test_a_teacher_that_is_the_model_without_its_adapters(tmp_path, program, more, borrowed):
    named = "--rlhf_type gkd --model qwen3_1_7b --teacher_model qwen3_1_7b --lmbda 0"
    found = launch(tmp_path, f"{program} rlhf {named} {more}")
    taught = found.question.training.distillation
    assert (taught.teacher.name, taught.borrowed) == ("qwen3_1_7b", borrowed)
    found.question.check()


def test_a_teacher_of_another_vocabulary_is_said(tmp_path):
    script = "swift rlhf --rlhf_type gkd --model llama3_8b --teacher_model qwen3_8b"
    found = launch(tmp_path, script)
    assert found.question.training.distillation is None
    assert any("qwen3_8b has a vocabulary of" in note for note in found.reading.notes)
    assert any("from qwen3_8b" in words for words, _ in found.reading.not_modelled)
