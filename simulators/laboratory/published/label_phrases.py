"""What framework labels say, phrase by phrase: whose software it is, and when it is from."""

from __future__ import annotations

from trainscout.simulators.laboratory.published.phrase import phrases

PROJECTS = phrases(
    "project",
    ("megatron_deepspeed", r"megatron[\s\-]deepspeed|deepspeed[\s\-]megatron"),
    ("gpt_neox", r"gpt~neox"),
    ("automodel", r"(?:nemo[\s/]*)?automodel"),
    ("bridge", r"megatron~bridge(?: \((?=nemo))?"),
    ("torchtitan", r"torch~titan"),
    ("nanotron", r"nanotron|brrr"),
    ("internevo", r"intern(?:lm|evo)(?:~train)?"),
    ("colossalai", r"colossal~ai"),
    ("foundry", r"llm~foundry(?: / composer)?|mosaicml|composer"),
    ("xla", r"max~text(?: jax)?|pax~?ml(?: jax)?|\bjax\b|levanter|easylm|alpa\b|\bt5x\b"),
    ("fms", r"fms[\s\-]fsdp|foundation[\s\-]model[\s\-]stack"),
    ("torchtune", r"torch~tune"),
    # DeepSpeed's engine around Transformers' modules.
    ("deepspeed", r"deep~speed(?=.*(?:hugging~face|\btransformers\b))"),
    ("deepspeed", r"(?:hugging~face|\btransformers\b).*deep~speed"),
    ("huggingface", r"hugging~face|\btransformers\b|\baccelerate\b|\baxolotl\b|llama~factory"),
    ("huggingface", r"llama[\s\-](?:recipes|cookbook)"),
    ("lightning", r"lit~gpt|(?:pytorch[\s\-])?lightning"),
    ("mlperf", r"(?:nemo )?\(?mlperf\)?"),
    ("nemo", r"nemo[\s\-]framework[\s\-]launcher|nemo(?:[\s\-]framework)?(?:[\s\-]megatron)?"),
    ("megascale", r"mega~scale"),
    ("meta", r"meta(?:'s)? internal(?: 4d parallel)?"),
    (
        "megatron",
        r"(?:nemo/)?megatron[\s\-](?:core|lm)(?: main)?|\bm~?core\b|megatron|ptd-p"
        r"|moe parallel folding|pai~megatron|\bprimus\b",
    ),
    ("deepspeed", r"deep~speed"),
    ("llm_c", r"llm\.c\b"),
    ("kempnerforge", r"kempner~forge"),
    ("fsdp2", r"fsdp\s?2|fully_shard|simple~fsdp|\bolmo(?:-core)?\b"),
    ("fsdp1", r"fsdp\s?1?\b|fully sharded data parallel"),
    ("ddp", r"\bddp\b"),
    ("paddle", r"paddle(?:~paddle|~nlp)"),
    ("pytorch", r"\bpy~?torch\b"),
)
"""Software by its published name; the first that a label says decides."""

VERSIONS = (
    *phrases("mlperf_round", (None, r"mlperf v?(\d\.\d)"), (None, r"\bv([345]\.\d)\b")),
    *phrases(
        "core",
        (None, r"(?<=core)[\s_\-]*[rv]?\(?0\.(\d{1,2})(?:\.\d+)?(?:rc\d+)?"),
        (None, r"\bcore_[rv]0\.(\d{1,2})(?:\.\d+)?"),
    ),
    *phrases("torch", (None, r"\b(?:py)?torch[\s=]*v?([12]\.\d{1,2})(?:\.\d+)?")),
    *phrases("engine", (None, r"\b(?:te|transformer engine)[\s=]*v?([0-2]\.\d{1,2})(?:\.\d+)?")),
    *phrases("deepspeed_release", (None, r"(?<=deepspeed )v?(0\.\d{1,2})(?:\.\d+)?")),
    *phrases("paddle_release", (None, r"(?<=paddlepaddle )v?(\d\.\d+(?:\.\d+)?)")),
    *phrases("nemo_release", (None, r"(?<=nemo )v?([12]\.\d{1,2})(?:\.\d+)?\b")),
    *phrases("megatron_release", (None, r"(?<=megatron-lm )\(?v([23])\.[\dx]")),
    # No utilization, size or time that looks like one.
    *phrases(
        "container",
        (
            None,
            r"(?<![hm]fu )\b(2[2-9]\.(?:0?[1-9]|1[0-2]))(?:\.\w+)?(?:/2\d\.\d\d)?\b"
            r"(?!\s?(?:%|percent|gi?b|m?s\b|seconds|tflop|hours|days))",
        ),
    ),
    *phrases(
        "month",
        (
            None,
            r"\b((?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? 20[12]\d)\b",
        ),
        (None, r"\b(20[12]\d-(?:0[1-9]|1[0-2]))\b"),
    ),
    *phrases("year", (None, r"\b(20[12]\d)(?:/\d\d)?\b")),
)
"""When a row's software is from."""

LABEL = (
    *VERSIONS,
    *PROJECTS,
    *phrases("test", ("ci", r"\bci\b")),
    *phrases("development", ("", r"\bdev\b")),
    *phrases("layers", ("transformer_engine", r"transformer engine(?:'s)? layers?(?: in)?")),
    *phrases(
        "", (None, r"\bfolding\b|\bmcore 5d\b|transformer engine|\brelease\b|\bmain\b|\brel\b")
    ),
    *phrases(
        "", (None, r"\bv?2\.x\b|\bcommit\b|\bno model parallelism\b|\b[tpsfed]+dp(?:\+\w*dp)*")
    ),
    *phrases("", (None, r"\bep\b|\btp\+ep\+dp\b|\brocm\b|zero-?[0-3](?:-like)?")),
)
"""What only framework labels say."""
