"""The same job under TorchTitan 0.3: a module with the model, and arguments with the recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.reports.dialects import torchtitan
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.setting import Code, command_options
from trainscout.reports.dialects.torchtitan import equal_chunks
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, RESUME, resumed, shell_script, title_lines
from trainscout.reports.launch.source import call, python_module, template
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model

MODULE = "torchtitan_recipe"
_FILL_IN = (
    "the folder of the tokenizer (ASSETS=) and the data (--dataloader.dataset)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "settings that no speed depends on: learning rate, rotary base (torchtitan_recipe.py)",
)
_CHECKPOINTS = (
    '--checkpoint.enable --checkpoint.folder "$CHECKPOINTS" '
    '--checkpoint.interval "${SAVE_INTERVAL:-500}"'
)


def launch(job: Job) -> Launch:
    """The files that launch a valid job under TorchTitan."""
    made = Launch(
        "torchtitan",
        torchtitan.TITLE,
        _FILL_IN,
        torchtitan.unsupported(job),
        torchtitan.impossible(job),
    )
    if made.impossible:
        return made
    header = made.header(
        job, f"Runs TorchTitan 0.3 with {MODULE}.py beside it; arguments override both."
    )
    path = 'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"'
    program = [
        ("-m", "torchtitan.train"),
        ("--module", MODULE),
        ("--config", "recipe"),
        *command_options(torchtitan.settings_of(job)),
        ("--hf-assets-path", '"${ASSETS:-./assets/hf}"'),
        (RESUME,),
        ('"$@"',),
        # What comes after a choice of recomputation are its own settings: it stands last.
        (f"activation-checkpoint:{job.recipe.recompute}",),
    ]
    preparation = [HERE, path, *resumed(_CHECKPOINTS)]
    script = shell_script(header, write_environment(job), preparation, job, program)
    files = {"torchtitan.sh": script, f"{MODULE}.py": module_source(job)}
    return replace(made, files=files)


# The Python module that declares a job's model and training to TorchTitan.
#
# TorchTitan 0.3 reads no TOML: a configuration is a function of a module, which arguments
# override. The module is built from the parts of TorchTitan's own models, in the shape of the
# job's.


@dataclass(frozen=True)
class _Family:
    """A model of TorchTitan: its package, how its classes begin, and how positions rotate."""

    package: str
    prefix: str
    parallelize: str
    rope: str = "ComplexRoPE"

    @property
    def block(self) -> str:
        return f"{self.prefix}TransformerBlock"

    @property
    def model(self) -> str:
        return f"{self.prefix}Model"

    @property
    def adapter(self) -> str:
        return f"{self.prefix}StateDictAdapter"


_LLAMA = _Family("llama3", "Llama3", "parallelize_llama")
_QWEN = _Family("qwen3", "Qwen3", "parallelize_qwen3", "CosSinRoPE")
_DEEPSEEK = _Family("deepseek_v3", "DeepSeekV3", "parallelize_deepseekv3")
_DISPATCHERS = {"alltoall": "standard", "allgather": "standard", "deepep": "deepep"}


def module_source(job: Job) -> str:
    """The module's text; ``recipe`` is its configuration function."""
    model = job.model
    family = _family(model)
    body = template("torchtitan").format(
        name=model.name,
        rope=family.rope,
        family=family,
        dim=model.hidden_size,
        vocab=model.vocab_size,
        layers=model.num_layers,
        tied=model.tied_embeddings,
        head_dim=model.qk_head_dim if model.mla is None else model.mla.qk_rope_head_dim,
        seq_len=job.sequence_length,
        attention=_attention(model),
        mlp=_mlp(job),
        hook="None" if model.moe is None else "register_moe_load_balancing_hook",
        experts="" if model.moe is None else _EXPERTS,
        loss=_LOSSES.get(torchtitan.loss_of(job), _LOSS),
        optimizer=_optimizer(job),
        split=_split(job),
    )
    about = "The model and its training for TorchTitan 0.3; torchtitan.sh has the rest."
    return python_module([*title_lines(job), "", about], _imports(family), body)


def _imports(family: _Family) -> dict[str, tuple[str, ...]]:
    package = f"torchtitan.models.{family.package}"
    return {
        "dataclasses": (),
        "functools": ("partial",),
        "torch": ("nn",),
        "torchtitan.components.loss": ("ChunkedLossWrapper", "CrossEntropyLoss"),
        "torchtitan.components.optimizer": (
            "OptimizersContainer",
            "ParamGroupConfig",
            "default_adamw",
            "register_moe_load_balancing_hook",
        ),
        "torchtitan.config": ("ParallelismConfig",),
        "torchtitan.distributed.pipeline_parallel": ("pipeline_llm",),
        "torchtitan.hf_datasets.text_datasets": ("HuggingFaceTextDataLoader",),
        "torchtitan.models.common": (family.rope, "Embedding", "Linear", "RMSNorm"),
        "torchtitan.models.common.config_utils": (
            "get_attention_config",
            "make_ffn_config",
            "make_gqa_config",
            "make_moe_config",
            "make_routed_experts_config",
            "make_router_config",
        ),
        package: ("make_mla_attention_config",),
        f"{package}.model": (family.model, family.block),
        f"{package}.parallelize": (family.parallelize,),
        f"{package}.state_dict_adapter": (family.adapter,),
        "torchtitan.protocols.model_spec": ("ModelSpec",),
        "torchtitan.trainer": ("Trainer",),
    }


def _family(model: Model) -> _Family:
    if model.mla is not None:
        return _DEEPSEEK
    return _LLAMA if model.moe is None and not model.qk_norm else _QWEN


def _attention(model: Model) -> str:
    mla = model.mla
    if mla is not None:
        fields: dict[str, object] = {
            "layer_id": Code("number"),
            "dim": Code("DIM"),
            "n_heads": model.num_heads,
            "q_lora_rank": mla.q_lora_rank or 0,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim,
            "qk_rope_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
            "attn_backend": "flex",
            "linear_init": Code("LINEAR"),
            "norm_init": Code("NORM"),
            "depth_init": Code("lambda layer_id: LINEAR"),
            "rope": Code("ROPE"),
        }
        return call("make_mla_attention_config", fields, 8)
    fields = {
        "dim": Code("DIM"),
        "n_heads": model.num_heads,
        "n_kv_heads": model.kv_heads,
        "head_dim": model.qk_head_dim,
        "wqkv_param_init": Code("LINEAR"),
        "wo_param_init": Code("LINEAR"),
        "inner_attention": Code('get_attention_config("flex")'),
        "fuse_qkv": True,
        "rope": Code("ROPE"),
    }
    if model.qk_norm:
        fields["qk_norm"] = Code(f"norm({model.qk_head_dim})")
    return call("make_gqa_config", fields, 8)


def _mlp(job: Job) -> str:
    """The arguments of a block that stand for its MLP or its experts."""
    model, moe = job.model, job.model.moe
    dense = f"feed_forward({model.ffn_hidden_size})"
    if moe is None:
        return f"feed_forward={dense},"
    router = {
        "dim": Code("DIM"),
        "num_experts": moe.num_experts,
        "gate_param_init": Code("LINEAR"),
        "top_k": moe.top_k,
        "score_func": "softmax",
        "route_norm": True,
    }
    routed = {
        "dim": Code("DIM"),
        "hidden_dim": moe.ffn_hidden_size,
        "num_experts": moe.num_experts,
        "top_k": moe.top_k,
        "param_init": Code("EXPERTS"),
        "comm_backend": _DISPATCHERS[job.dispatcher or moe.dispatcher],
    }
    shared = f"feed_forward({moe.shared_ffn_hidden_size})" if moe.shared_ffn_hidden_size else None
    fields: dict[str, object] = {
        "num_experts": moe.num_experts,
        "router": Code(call("make_router_config", router, 12)),
        "routed_experts": Code(call("make_routed_experts_config", routed, 12)),
        "shared_experts": Code(shared) if shared else None,
    }
    experts = call("make_moe_config", fields, 8)
    if all(map(model.is_moe_layer, range(model.num_layers))):
        return f"moe={experts},"
    numbers = [layer for layer in range(model.num_layers) if not model.is_moe_layer(layer)]
    return (
        f"feed_forward={dense} if number in {numbers} else None,\n"
        f"        moe=None\n        if number in {numbers}\n        else {experts},"
    )


def _optimizer(job: Job) -> str:
    optimizer = job.optimizer
    if optimizer != "sgd":
        made = "default_adamw(lr=1e-4)"
        if optimizer == "adam_bf16":
            made = f"dataclasses.replace({made}, implementation='fused_opt_states_bf16')"
        return made
    group = call(
        "ParamGroupConfig",
        {
            "pattern": ".*",
            "optimizer_name": "SGD",
            "optimizer_kwargs": {"lr": 1e-4, "momentum": 0.9},
        },
        8,
    )
    return f"OptimizersContainer.Config(param_groups=[{group}])"


def _split(job: Job) -> str:
    """Which modules each chunk of an uneven pipeline holds, in model order."""
    if job.recipe.pp == 1 or equal_chunks(job) is not None:
        return ""
    parts: list[list[str]] = []
    layer = 0
    for stages in zip(*job.layers_per_chunk, strict=True):
        for layers in stages:
            parts.append([f"layers.{number}" for number in range(layer, layer + layers)])
            layer += layers
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    lines = "".join(f"                {part!r},\n" for part in parts)
    return (
        "        parallelism=ParallelismConfig(\n"
        f"            module_fqns_per_model_part=[\n{lines}            ],\n        ),\n"
    )


_LOSS = "CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)"
_LOSSES = {"pieces": f"ChunkedLossWrapper.Config(\n            loss_fn={_LOSS}\n        )"}
_EXPERTS = 'EXPERTS = {"w1_EFD": NORMAL, "w2_EDF": NORMAL, "w3_EFD": NORMAL}\n'
