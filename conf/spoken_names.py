"""What other tools, or people, call a setting: for the refusal that names the right one."""

from __future__ import annotations

import re

_SETTINGS = {
    "training.global_batch_size": "batch batch_size gbs global_batch train_batch_size",
    "training.sequence_length": "seq seq_len seq_length sequence context_length max_length "
    "max_seq_len block_size context",
    "training.tokens": "num_tokens train_tokens",
    "training.precision": "dtype mixed_precision",
    "training.optimizer": "optim",
    "gpu.price_usd_per_hour": "price cost gpu_price price_per_hour price_usd usd_per_hour",
    "cluster.num_nodes": "nodes nnodes n_nodes",
    "cluster.gpus_per_node": "nproc_per_node gpus_a_node",
    "cluster.nic_gbps": "bandwidth network_gbps nic_bandwidth nic_speed",
    "gpus": "num_gpus n_gpus world_size ngpus",
    "sweep.targets.quarter.days": "days deadline until",
    "sweep.num_gpus": "gpu_counts",
    "search.n_trials": "n_trials trials num_trials max_trials",
    "search.timeout_s": "timeout time_limit timeout_s",
    "model.num_layers": "layers n_layers num_hidden_layers",
    "model.num_heads": "heads n_heads num_attention_heads",
    "model.hidden_size": "hidden d_model dim",
    "recipe.micro_batch": "mbs micro_batch_size microbatch",
    "recipe.zero_stage": "zero zero1 zero2 zero3 fsdp sharding",
    "recipe.recompute": "activation_checkpointing gradient_checkpointing checkpointing ac remat",
    "recipe.sp": "sequence_parallel",
    "recipe.tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size",
    "recipe.pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size stages",
    "recipe.ep": "expert_parallel expert_parallel_size",
    "recipe.cp": "context_parallel context_parallel_size",
    "recipe.vpp": "virtual_stages interleave virtual_pipeline",
}
_MEANT = {word: name for name, words in _SETTINGS.items() for word in words.split()}

_CHOICES = {
    ("search", "tpe"): "optuna bayesian bayes bo tpesampler",
    ("search", "cma"): "pycma cma_es cmaes_py evolution",
    ("search", "exact"): "branch_and_bound exhaustive brute_force",
    ("objective", "step_time"): "speed time latency fastest step",
    ("objective", "tokens_per_s"): "throughput tokens",
    ("objective", "cost"): "price usd money cheapest",
    ("objective", "time_memory"): "time,memory memory,time step_time,memory memory,step_time",
    ("framework", "torch_fsdp2"): "pytorch torch fsdp fsdp2",
    ("framework", "huggingface"): "hf transformers accelerate",
    ("framework", "megatron_core"): "megatron megatron_lm",
    ("framework", "megatron_bridge"): "nemo nemo2",
    ("executor", "loky"): "joblib multiprocessing processes local",
    ("space", "large"): "all full everything",
    ("tracking", "none"): "off false no",
}
_CHOSEN = {
    (group, word): name for (group, name), words in _CHOICES.items() for word in words.split()
}


def meant_setting(name: str) -> str | None:
    """The dotted setting that a word, or a dotted name ending in it, is another word for."""
    return _MEANT.get(_plain(name.rpartition(".")[2]))


def meant_choice(group: str, value: str) -> str | None:
    """The choice of a group that a value is another word for."""
    return _CHOSEN.get((group, _plain(value)))


def _plain(word: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", word.strip("'\"[] ")).replace("-", "_").lower()
