"""The same job under DeepSpeed ZeRO: its JSON, and a script that trains the model with it."""

from __future__ import annotations

import json
from dataclasses import replace

from trainscout.reports.dialects import deepspeed
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.tuning import hugging_face_targets
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, shell_script, title_lines
from trainscout.reports.launch.source import call, python_module
from trainscout.simulators.predictor.question.job import Job

_FILL_IN = (
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data, instead of random tokens (deepspeed_train.py)",
    "settings that no speed depends on: learning rate (deepspeed.json), rotary base",
)


def launch(job: Job) -> Launch:
    """The files that launch a valid job under DeepSpeed."""
    made = Launch(
        "deepspeed",
        deepspeed.TITLE,
        _FILL_IN,
        deepspeed.unsupported(job),
        deepspeed.impossible(job),
    )
    if made.impossible:
        return made
    header = made.header(
        job,
        "Runs deepspeed_train.py with deepspeed.json beside it (DeepSpeed 0.19, Transformers 5).",
    )
    program = [('"$here/deepspeed_train.py"',), ('"$@"',)]
    files = {
        "deepspeed.sh": shell_script(header, write_environment(job), [HERE], job, program),
        "deepspeed.json": json.dumps(deepspeed.settings_of(job), indent=2) + "\n",
        "deepspeed_train.py": _script(job),
    }
    return replace(made, files=files)


def _script(job: Job) -> str:
    found = deepspeed.hugging_face(job.model)
    assert found is not None, "launch() asks first"
    name, fields = found
    attention = "eager" if job.attention == "unfused" else "sdpa"
    recompute = ""
    if job.recipe.recompute == "full":
        recompute = "    model.gradient_checkpointing_enable()\n"
    adapted, lora = "", job.training.lora
    if lora is not None:
        arguments = {
            "r": lora.rank,
            "lora_alpha": lora.rank,
            "target_modules": hugging_face_targets(job),
            "task_type": "CAUSAL_LM",
        }
        adapted = f"    model = get_peft_model(model, {call('LoraConfig', arguments, 4)})\n"
        # The input of a recomputed layer must ask for a gradient.
        adapted += "    model.enable_input_require_grads()\n" if recompute else ""
    body = _BODY.format(
        adapted=adapted,
        trained=_TRAINED if lora is not None else "model.parameters()",
        sequence=job.sequence_length,
        tokens=int(job.training.tokens),
        config=call(name, {**fields, "attn_implementation": attention}, 4),
        recompute=recompute,
    )
    known = {
        "argparse": (),
        "json": (),
        "math": (),
        "os": (),
        "time": (),
        "pathlib": ("Path",),
        "deepspeed": (),
        "torch": (),
        "torch.distributed": ("get_rank",),
        "peft": ("LoraConfig", "get_peft_model"),
        "transformers": ("AutoModelForCausalLM", name),
    }
    about = "Trains with deepspeed.json; deepspeed.sh starts it."
    return python_module([*title_lines(job), "", about], known, body)


_TRAINED = "[each for each in model.parameters() if each.requires_grad]"
_BODY = """SEQUENCE = {sequence}
TOKENS = {tokens}


def build_model():
    config = {config}
    model = AutoModelForCausalLM.from_config(config)
{recompute}{adapted}    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="instead of as many as the tokens take")
    args = parser.parse_args()
    settings = json.loads(Path(__file__).with_name("deepspeed.json").read_text())
    deepspeed.init_distributed("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Stage 3 shards parameters as they are made.
    with deepspeed.zero.Init(
        config_dict_or_path=settings, enabled=settings["zero_optimization"]["stage"] == 3
    ):
        model = build_model()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters={trained}, config=settings
    )
    micro_batch = settings["train_micro_batch_size_per_gpu"]
    accumulated = settings["gradient_accumulation_steps"]
    steps = args.steps or math.ceil(TOKENS / (settings["train_batch_size"] * SEQUENCE))
    directory = os.environ.get("CHECKPOINTS")
    interval = int(os.environ.get("SAVE_INTERVAL", "500"))
    if directory is not None:
        engine.load_checkpoint(directory)
    for step in range(engine.global_steps, steps):
        start = time.perf_counter()
        for _ in range(accumulated):
            tokens = torch.randint(
                model.config.vocab_size, (micro_batch, SEQUENCE), device=engine.device
            )
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if get_rank() == 0:
            print(f"step {{step}}: {{seconds:.3f}} s, loss {{loss.item():.3f}}")
        if directory is not None and (step + 1) % interval == 0:
            engine.save_checkpoint(directory)


if __name__ == "__main__":
    main()
"""
