"""What rows say in words, phrase by phrase: the one place where their free text is matched.

A phrase's fact is what the readers of a row ask for (``said.get("attention")``); one without a
fact is about the measurement or repeats a column, and changes no prediction. Words that no phrase
covers are listed with the prediction as *unread*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phrase:
    """``fact=value`` where ``pattern`` matches; without a value, what its first group matched.

    ``~`` in a pattern is any one separator or none. Earlier phrases take their words away from
    later ones, so what negates or narrows another stands above it.
    """

    fact: str
    value: str | None
    pattern: str

    @property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern.replace("~", r"[\s_\-]?"))


def _phrases(fact: str, *pairs: tuple[str | None, str]) -> tuple[Phrase, ...]:
    return tuple(Phrase(fact, value, pattern) for value, pattern in pairs)


_NO = r"\b(?:no|without|w/o|not using|non)[\s\-]"
_OFF = r"[\s:=]+(?:off|false|disabled|no|0)\b"
_FLASH = r"flash~att(?:entio)?n(?:tion)?"

PROJECTS = _phrases(
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
    ("huggingface", r"hugging~face|\btransformers\b|\baccelerate\b|\baxolotl\b|llama~factory"),
    ("lightning", r"lit~gpt|(?:pytorch[\s\-])?lightning|llama[\s\-](?:recipes|cookbook)"),
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
    ("fsdp2", r"fsdp\s?2|fully_shard|simple~fsdp|\bolmo(?:-core)?\b"),
    ("fsdp1", r"fsdp\s?1?\b|fully sharded data parallel"),
    ("ddp", r"\bddp\b"),
    ("pytorch", r"\bpy~?torch\b"),
)
"""Software by its published name; the first that a label says decides."""

VERSIONS = (
    *_phrases("mlperf_round", (None, r"mlperf v?(\d\.\d)"), (None, r"\bv([345]\.\d)\b")),
    *_phrases(
        "core",
        (None, r"(?:core|mcore)[\s_\-]*[rv]?\(?0\.(\d{1,2})(?:\.\d+)?(?:rc\d+)?"),
        (None, r"\bcore_[rv]0\.(\d{1,2})(?:\.\d+)?"),
    ),
    *_phrases("torch", (None, r"\b(?:py)?torch[\s=]*v?([12]\.\d{1,2})(?:\.\d+)?")),
    *_phrases("engine", (None, r"\b(?:te|transformer engine)[\s=]*v?([0-2]\.\d{1,2})(?:\.\d+)?")),
    *_phrases("deepspeed_release", (None, r"(?<=deepspeed )v?(0\.\d{1,2})(?:\.\d+)?")),
    *_phrases("nemo_release", (None, r"(?<=nemo )v?([12]\.\d{1,2})(?:\.\d+)?\b")),
    *_phrases("megatron_release", (None, r"(?<=megatron-lm )\(?v([23])\.[\dx]")),
    *_phrases("container", (None, r"\b(2[2-9]\.(?:0?[1-9]|1[0-2]))(?:\.\w+)?(?:/2\d\.\d\d)?\b")),
    *_phrases(
        "month",
        (
            None,
            r"\b((?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? 20[12]\d)\b",
        ),
        (None, r"\b(20[12]\d-(?:0[1-9]|1[0-2]))\b"),
    ),
    *_phrases("year", (None, r"\b(20[12]\d)(?:/\d\d)?\b")),
)
"""When a row's software is from."""

LABEL = (
    *VERSIONS,
    *PROJECTS,
    *_phrases("test", ("ci", r"\bci\b")),
    *_phrases("development", ("", r"\bdev\b")),
    *_phrases(
        "", (None, r"\bfolding\b|\bmcore 5d\b|transformer engine|\brelease\b|\bmain\b|\brel\b")
    ),
    *_phrases(
        "", (None, r"\bv?2\.x\b|\bcommit\b|\bno model parallelism\b|\b[tpsfed]+dp(?:\+\w*dp)*")
    ),
    *_phrases("", (None, r"\bep\b|\btp\+ep\+dp\b|\brocm\b|zero-?[0-3](?:-like)?")),
)
"""What only framework labels say."""

_SOFTWARE = (
    *_phrases(
        "attention",
        ("unfused", _NO + r"(?:flash|fused)~(?:attention|attn)\w*"),
        ("unfused", _FLASH + _OFF),
        ("unfused", r"\b(?:unfused|naive|vanilla|eager|plain|(?:py)?torch|math)[\s\-]attention"),
        ("unfused", r"attention(?: kernel)?[:=\s]+(?:unfused|eager|(?:py)?torch|math|megatron)\b"),
        ("unfused", r"megatron(?:'s)? (?:fused )?(?:softmax|attention)? ?kernel"),
        (
            "flash",
            _FLASH + r"[\s_\-]*v?3(?:\.\d+)*|\bfa[\s\-]?3\b|cudnn[\s\-](?:fused |flash )?att\w+",
        ),
        ("flash2", _FLASH + r"[\s_\-]*v?2(?:\.\d+)*(?: kernel)?|\bfa[\s\-]?2\b|\bsdpa\b"),
        ("flash2", r"scaled~dot~product~attention"),
        ("flash1", _FLASH + r"[\s_\-]*v?1(?:\.\d+)*(?: kernel)?|\bfa[\s\-]?1\b|xformers"),
        ("flash1", r"triton " + _FLASH + r"|memory[\s\-]efficient attention"),
        ("fused", _FLASH + r"(?: kernel)?|fused attention"),
    ),
    *_phrases(
        "norm",
        ("plain", _NO + r"(?:fused[\s\-]|custom )?(?:rms|layer)?~norm(?: kernel)?"),
        ("plain", r"(?:eager|plain|pytorch) (?:rms|layer)~norm"),
        ("fused", r"(?:fused|triton|apex|flash|te)[\s\-](?:rms|layer)~norm(?: kernel)?"),
        ("fused", r"(?:rms|layer)~norm kernel|fused[\s\-]norms?\b"),
        ("fused", r"\bte\b(?![\s=v]*\d)|transformer engine(?![\s=v]*\d)"),
    ),
    *_phrases(
        "compile",
        ("mid-2024", r"(?:eager/compile state of )?mid-2024"),
        ("no", _NO + r"(?:torch\.?)?~?compil\w+|compile" + _OFF),
        ("no", r"\beager(?: mode| pytorch)?\b"),
        ("yes", r"torch\.?~?compiled?\b|\bcompiled?\b|\binductor\b"),
    ),
    *_phrases(
        "wgrad_fusion",
        ("no", r"no[\s_\-]+gradient[\s_\-]accumulation[\s_\-]fusion|" + _NO + r"wgrad fusion"),
        ("no", r"gradient~accumulation~fusion" + _OFF),
        ("yes", r"gradient~accumulation~fusion"),
    ),
    *_phrases(
        "gradients",
        ("fp32", r"(?:bf16 optimizer with )?fp32 grad(?:ient)?s?(?: accumulation| reduc\w+)?"),
        ("fp32", r"(?:grad(?:ient)?s?|reduc\w+|all-?reduce) in fp32|mp mode default"),
        ("16", r"(?:fp|bf)16 grad(?:ient)?s?(?: accumulation| reduc\w+)?|mp mode pure"),
        ("16", r"(?:grad(?:ient)?s?|reduc\w+|all-?reduce) in (?:(?:fp|bf)16|16[\s\-]bits?)"),
    ),
    *_phrases("loss", ("fused", r"cross~entropy~(?:loss~)?fusion(?: te)?")),
    *_phrases("loss", ("fused", r"fused (?:ce|cross[\s\-]entropy)(?: loss)?|liger(?: kernels?)?")),
    *_phrases("deterministic", ("", r"deterministic(?: mode| kernels?| algorithms?)?")),
    *_phrases(
        "graphs",
        ("no", _NO + r"cuda~graphs?|cuda~graphs?" + _OFF + r"|cuda~graphs?[:=\s]+none"),
        (
            "whole",
            r"cuda~graphs? (?:\w+ )?full[\s_\-]iteration|full[\s_\-]iteration(?: cuda~graphs?)?",
        ),
        (
            "whole",
            r"whole[\s\-]iteration(?: cuda)?~graphs?|cuda~graphs? of (?:the )?whole iterations?",
        ),
        ("whole", r"cuda~graphs? (?:captured |capture )?(?:for |of )?(?:the )?full iterations?"),
        ("layers", r"cuda~graphs? transformer_engine attn[\w+]*|per[\s\-]layer cuda~graphs?"),
        ("router", r"cuda~graphs? (?:transformer_engine )?moe_router[\w+]*"),
        ("said", r"cuda~graphs?"),
    ),
    *_phrases(
        "overlap",
        ("none", r"all comm\w*/compute overlap disabled(?: on purpose)?"),
        ("none", r"(?<![a-z] )\bno (?:comm\w*[\s/\-]comp\w* )?overlap\b"),
    ),
    *_phrases(
        "tp_overlap",
        ("no", _NO + r"(?:vanilla )?tp(?:[\s_\-]comm)?[\s_\-]overlap|vanilla tp"),
        ("no", r"tp(?:[\s_\-]comm)?[\s_\-]overlap" + _OFF),
        ("yes", r"tp(?:[\s_\-]comm)?[\s_\-]overlap(?: on)?|user~buffers?|async~tp"),
    ),
    *_phrases(
        "p2p_overlap",
        ("no", _NO + r"p2p overlap"),
        ("no", r"(?:p2p overlap|overlap[\s_\-]p2p(?:[\s_\-]comm\w*)?)" + _OFF),
        ("yes", r"(?:overlapped p2p|p2p overlap|overlap[\s_\-]p2p(?:[\s_\-]comm\w*)?)(?: on)?"),
    ),
    *_phrases(
        "dp_overlap",
        ("no", _NO + r"(?:dp|grad(?:ient)?(?: bucketing)?)[\s/_\-](?:reduc\w+ )?overlap"),
        ("no", r"(?:dp|grad(?:ient)?)[\s_\-](?:reduc\w+ )?overlap" + _OFF),
        ("no", r"overlap~grad~reduce" + _OFF),
        ("yes", r"tp/pp/dp overlap(?: on)?"),
        ("yes", r"overlap~grad~reduce(?:\W+overlap~param~gather)?"),
        ("yes", r"(?:dp|grad(?:ient)?)[\s_\-](?:reduc\w+ )?overlap(?: on)?(?!~param)"),
    ),
    *_phrases(
        "launches",
        ("free", r"cuda~launch~blocking[\s:=]+0"),
        ("blocking", r"cuda~launch~blocking(?:[\s:=]+1)?"),
        # Where large jobs hang without: every script of BigScience's for these nodes exports it
        # (bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md).
        ("blocking", r"jean zay a100 nodes"),
    ),
    *_phrases("segments", ("", r"expandable~segments(?:[\s:=]+true)?")),
    *_phrases("router_fusion", ("", r"(?:moe~)?router~fusion(?: on)?")),
    *_phrases("", (None, r"\badamw?\b(?! 8)")),
    *_phrases("optimizer", (None, r"\b(lamb|adafactor|muon|lion|sgd|shampoo|8-bit adam\w*)\b")),
)

_LAYOUT = (
    *_phrases(
        "schedule",
        (
            "zero bubble",
            r"zero[\s\-]?bubble(?: pipeline)?(?: schedule)?|\bzb[\s\-]?(?:h1|h2|v|p|b|1p|2p)\b",
        ),
        ("zero bubble", r"pipeline schedule zb\w[\w\-]*|\bzbv[\w\-]*|v-half|v-min"),
        ("DualPipe", r"dual[\s\-]?pipe\w*"),
        ("breadth-first", r"breadth[\s\-]first|\bbfs\b"),
        ("another", r"chimera|hanayo|terapipe|pipedream|seq1f1b|asynchronous pipeline"),
        ("gpipe", r"g-?pipe(?: schedule)?|all[\s\-]forward[\s\-]all[\s\-]backward|\bafab\b"),
        ("plain", r"(?:1f1b )?non[\s\-]interleaved(?: 1f1b)?"),
        ("interleaved", r"(?:pipeline schedule )?(?:interleaved[\s\-]1f1b|1f1b[\s\-]interleaved)"),
        ("interleaved", r"interleaved(?: schedule| pipeline)?|interleaving"),
        ("plain", r"(?:pipeline schedule )?\b1f1b\b(?! all-to-all)(?: schedule)?"),
    ),
    *_phrases(
        "stages",
        ("unsaid", r"vpp(?: and \w+(?: setting)?)? not published|chunk count not given"),
        (None, r"\bvpp[\s=]+(\d+)\b"),
        (
            None,
            r"(?:with )?\b(\d+) (?:(?:model )?chunks|virtual stages)\b(?: per \w+)?",
        ),
    ),
    *_phrases(
        "context",
        (
            "a2a",
            r"(?:cp uses )?all-to-all(?: \(ulysses-style\))|ulysses(?:-style)?|\ba2a cp\b|cp a2a",
        ),
        ("a2a", r"cp uses all-to-all"),
        ("all-gather", r"all-?gather[\s\-]based cp|\bcp all-?gather|all-?gather cp"),
        ("hierarchical", r"a2a\+p2p|hierarchical cp"),
        ("p2p", r"(?:ring/p2p|p2p|ring) cp|ring[\s\-]attention|cp p2p"),
    ),
    *_phrases(
        "modules",
        ("none", r"recompute[\s_]modules[\s=:]+none"),
        (None, r"recompute[\s_]modules[\s=:]+([a-z_]+(?:\+[a-z_]+)*)"),
        ("layernorm+moe_act", r"(?:recompute )?norm\+act"),
        (
            "layernorm+core_attn+attn_out+mlp",
            r"remat policy save_qkv_proj(?: \(saves qkv projections, recomputes the rest of the"
            r" layer\))?|save_qkv_proj",
        ),
        (
            "operations",
            r"(?:selective )?\(?per-op\)?(?: selective)?(?:"
            r" sac| ac)?(?: activation checkpointing)?",
        ),
    ),
    *_phrases(
        "recompute",
        ("half", r"(?:checkpoint )?every other layer"),
        ("none", _NO + r"(?:activation )?(?:re~?comput\w+|checkpointing|remat|ac\b)"),
        ("none", r"(?:act\w*\.? (?:checkpointing|ckpt)|re~?comput\w+|remat|\bac)" + _OFF),
        ("full", r"\bact\w*\.? (?:checkpointing|ckpt)(?: on| every layer| each layer)"),
        (
            "unsaid",
            r"(?:recompute|remat policy)(?: setting)? (?:not"
            r" (?:given|stated|published)|unpublished)",
        ),
        (
            "full",
            r"full (?:activation |layer )?(?:recompute|checkpointing|remat|ac\b)(?: every layer)?",
        ),
        (
            "selective",
            r"selective(?: \(attention core\))?(?: activation)? (?:recompute|checkpointing|ac\b)",
        ),
        ("selective", r"selective ac for >7b"),
    ),
    *_phrases(
        "recompute_layers", (None, r"(?:partial: )?block recompute of only (\d+) layers per stage")
    ),
    *_phrases("recompute_of", (None, r"full recompute of (\d+) of \d+ layers")),
    *_phrases("shard_group", (None, r"within (?:groups|nodes?) of (\d+)(?: gpus)?")),
    *_phrases("shard_group", (None, r"(?:fsdp )?shard(?:ing)? (?:group|size)(?: of)? (\d+)")),
    *_phrases(
        "sharding",
        ("0", r"(?:zero[\s\-]?0|no zero)\b"),
        (None, r"\bzero[\s\-]?([1-3])\b"),
        ("3", r"\bfsdp over all gpus\b"),
        ("1", r"distributed[\s_\-]optimizer"),
    ),
    *_phrases("offloaded_layers", (None, r"(?:cpu )?activation offload\w* of (\d+) layers")),
    *_phrases(
        "offload",
        ("optimizer", r"zero[\s\-]?(?:offload|infinity)|cpu[\s\-]?adam|nvme offload"),
        ("optimizer", r"(?:optimizer|cpu) (?:state )?offload\w*|offload\w* (?:the )?optimizer"),
        ("activations", r"(?:cpu )?activation offload\w*"),
    ),
    *_phrases(
        "ends",
        ("layers", r"(?:\w+ )*counted as pipeline layers"),
        ("layers", r"first/last stage one layer short\w*"),
    ),
    *_phrases("chosen", ("best", r"best configuration(?: found)?(?: per cell)?")),
    *_phrases("tensor_grid", ("", r"\b(?:2|2\.5|3)d tensor parallel\w*")),
)

_EXPERTS = (
    *_phrases(
        "dispatcher",
        ("deepep", r"(?:dispatcher )?(?:flex dispatcher )?(?:deep|hybrid)~ep(?: dispatcher)?"),
        ("allgather", r"all~?gather dispatcher|dispatcher all~?gather"),
        (
            "alltoall",
            r"(?:dropless )?all~to~all dispatcher|dispatcher all~to~all|alltoall dispatcher",
        ),
    ),
    *_phrases(
        "experts_overlap",
        ("no", r"ep all-to-all beside compute: no|" + _NO + r"ep overlap"),
        ("yes", r"moe all-to-all overlapped(?: with compute)?|1f1b all-to-all overlap"),
        ("yes", r"ep all-to-all beside compute(?:: yes)?|ep[\s\-](?:comm )?overlap"),
    ),
    *_phrases(
        "capacity",
        (None, r"(?:token[\s\-]drop\w* with )?capacity[\s\-]factor[\s=]+(\d+(?:\.\d+)?)"),
    ),
    *_phrases("capacity", (None, r"\bcf[\s=]?(\d+(?:\.\d+)?)\b")),
    *_phrases("tokens", ("dropped", r"token[\s\-]drop\w*|capacity factor based")),
    *_phrases("tokens", ("kept", r"dropless(?: all-to-all)?")),
    *_phrases(
        "router",
        ("real", r"(?:experts )?real (?:aux-loss )?router|natural router|real routing"),
        ("real", r"not force[\s\-]balanced|imbalance included|unbalanced (?:routing|experts)"),
        (
            "forced",
            r"(?:experts )?force[\s\-]?balanced?(?: routing)?|forced balance|balanced routing",
        ),
        ("forced", r"experts are balanced|padded so experts are balanced"),
    ),
    *_phrases("grouped_gemm", ("no", _NO + r"grouped~gemm")),
    *_phrases("shared_experts", (None, r"(\d+ shared experts? of \d+)")),
    *_phrases("shared_width", (None, r"shared expert(?:s? of| ffn)? (\d+)")),
    *_phrases("latent", (None, r"q_lora (\d+,? kv_lora \d+)")),
    *_phrases("latent_kv", (None, r"mla \(kv (\d+)")),
    *_phrases("latent_q", ("no", r"no q[\s_]lora")),
    *_phrases("latent_attention", ("", r"\bmla\b(?: model)?")),
    *_phrases(
        "mtp",
        ("off", r"mtp layer disabled|" + _NO + r"mtp|(?:250 )?without mtp"),
        ("counted", r"mtp layer probably counted(?: \(260 gflop per token)?"),
        ("on", r"mtp on|1 mtp layer"),
        ("unsaid", r"\bmtp\b"),
    ),
)

_MODEL = (
    *_phrases("adapters", ("", r"\b(?:q?lora|peft)\b")),
    *_phrases("tuning", (None, r"\b(sft|fine[\s\-]?tun\w+|packed sequences?)\b")),
    *_phrases("reinforcement", (None, r"\b(grpo|ppo|rlhf|dpo)\b")),
    *_phrases(
        "not_causal", (None, r"(non-causal|video diffusion transformer|diffusion|encoder-decoder)")
    ),
    *_phrases("parallel_block", ("", r"parallel transformer block")),
    *_phrases("sliding", ("", r"sliding[\s\-]window attention")),
    *_phrases("scales", ("rows", r"(?:quantization )?row~wise")),
    *_phrases(
        "scales",
        ("tensors", r"fp8[\-_]cs(?![a-z])|(?:float8 )?tensor~wise(?: linears)?|current scaling"),
    ),
)

_MACHINES = (
    *_phrases(
        "nics",
        (None, r"\b(\d+ (?:nics?|hcas?) ?(?:x|of|at) ?\d+) ?g(?:b/s|bps|bit/s|b)?(?: each)?"),
        (
            None,
            r"\b(\d+ ?x ?(?:ndr|hdr|edr)? ?\d+ ?g?)(?:b/s|bps|bit/s)?\b(?: nics?)?(?: per node)?",
        ),
    ),
    *_phrases(
        "fabric",
        ("tcpx", r"\b(?:gpudirect-)?tcpxo?\b|\ba3[ -]?(?:mega|high)\b|gpu-recipes"),
        ("roce", r"\broce(?:v2)?\b"),
        ("efa", r"\befa\b|\bp4de?\b|\bp5e?n?\b|\baws\b"),
        ("slingshot", r"slingshot(?:[\s\-]1[01])?"),
        ("omni-path", r"omni[\s\-]?path|\bopa\b"),
        ("ethernet", r"\b(?:\d+ ?gb?e|ethernet)\b|\btcp/ip\b|\bsockets?\b"),
        ("infiniband", r"infiniband|\bhdr(?:200|100)?\b|\bndr(?:400|200)?\b|\bedr\b"),
    ),
    *_phrases(
        "flops",
        (
            "half",
            r"(?:mfu )?(?:counts )?causal attention (?:counted )?(?:at|as) half|causal-halved",
        ),
        ("full", r"(?:mfu )?(?:counts )?(?:full|non-causal) attention|\bnon-causal flops"),
    ),
    *_phrases("power", ("", r"(?:reduced|lowered) power(?: cap| limit)?|power[\s\-]?capped")),
    *_phrases("memory_of", ("device", r"nvidia-smi|hipmemgetinfo")),
)

_MEASUREMENT = _phrases(
    "",
    (None, r"measured iteration time from the \w+ validation set|(?:use_checkpoint=true)"),
    (None, r"seconds per step from the \w+ recipe readme(?: \([^)]*\))?"),
    (
        None,
        r"tokens/s (?:rounded by the publisher[\w\s\-]*|column is[\w\s]*|read at iteration \d+)",
    ),
    (
        None,
        r"(?:median|mean) of (?:logged train step time over"
        r" |iterations )?\d+[\-\d]*[\w\s]*(?:\([^)]*\))?",
    ),
    (
        None,
        r"(?:precision label|preset|edition|\w*labels? on) [\w\-./]+(?:"
        r" [a-z]+)*(?: at v[\d.]+)?(?: \(three editions[^;]*)?",
    ),
    (None, r"peak (?:reserved|memory)[\w\s.]*|hfu [\d.]+%?|mfu (?:printed )?[\d.]+ ?%?"),
    (
        None,
        r"(?:micro[\s\-]?)?batch(?:es)?(?: size| per \w+(?:"
        r" \w+)?)?[\s=]*\d*(?: per gpu)?|mbs[\s=]+\d+|gbs[\s=]+\d+",
    ),
    (
        None,
        r"seq(?:uence)?(?: length)? \d+|\d+ sequences of"
        r" \d+ a step|grad(?:ient)? accumulation[\s=]*\d+",
    ),
    (None, r"[\d.]+ gflop per token|tflops rounded to integer|per-iteration ms given directly"),
    (
        None,
        r"derived_iter_s [\w\s\-]*(?:from [^;]*)?|value read from a figure[^;]*|numbers rounded",
    ),
    (None, r"single-iteration reading(?: \(2nd iteration\))?|expect a few percent noise|raw log"),
    (
        None,
        r"pre-training|convergence run(?: throughput|"
        r" with real data)?|end-to-end(?: incl\. [^;]*)?",
    ),
    (
        None,
        r"weak scaling|strong scaling|production (?:training"
        r" )?run|reading that a later edition[^;]*",
    ),
    (
        None,
        r"full argument dump in the log|the present page"
        r" lists it|layout assumed equal to table \d",
    ),
    (
        None,
        r"config(?:uration)? from the yaml[\w\s]*|yaml"
        r" (?:has|uses) [\w\s]*|aggregate tokens/s \d+ given",
    ),
    (None, r"single 8xb200 node|dgx[\s\-][ah]100(?: eos)?|selene"),
)

NOTES = (
    *_EXPERTS,
    *_SOFTWARE,
    *_LAYOUT,
    *_MODEL,
    *_MACHINES,
    *VERSIONS,
    *_MEASUREMENT,
)
"""What notes say, and labels after what only they do."""

SHARDING = (
    *_phrases("shard_group", (None, r"(?:within |in )?(?:groups?|nodes?) of (\d+)(?: gpus)?")),
    *_phrases("shard_group", (None, r"(?<=fsdp)(\d{2,})\b")),
    *_phrases("stage", (None, r"zero~(?:stage)?[\s_=:]*([0-3])"), (None, r"^([0-3])(?:\.0)?\b")),
    *_phrases("stage", (None, r"stage[\s_\-=:]*([0-3])")),
    *_phrases("stage", ("3h", r"hsdp|hybrid[\s_\-]shard\w*"), ("2", r"(?:fsdp )?shard_grad_op")),
    *_phrases("stage", ("3", r"fsdp[12]?(?: full_shard)?|full_shard")),
    *_phrases("stage", ("1", r"^(?:true|yes|on)$|(?:megatron )?dist\w*[\s_\-]?opt(?:imizer)?")),
    *_phrases("stage", ("1", r"optimizer[\s\-]states? shard\w+|hybrid zero")),
    *_phrases("stage", ("0", r"^(?:false|none|no|off)$|\bddp\b")),
)
"""What the column of the optimizer's sharding says."""

RECOMPUTE = (
    *_phrases(
        "modules", (None, r"(?:selective)?[\s:(]*\b([a-z]+_[a-z_]+(?:\+[a-z_]+)*|mlp)\b\)?")
    ),
    *_phrases(
        "mode",
        ("none", r"^(?:none|no|off|false|0|without)\b[\w\s]*"),
        ("half", r"every other layer"),
        ("selective", r"selective(?: \(?(?:core )?att(?:ention|n)?(?: core)?\)?)?|per-op"),
        ("selective", r"(?:core )?att(?:ention|n)(?: core)?(?: only)?"),
        ("full", r"^(?:full|yes|true|on|1|all|uniform|every layer)\b[\w\s]*"),
        ("full", r"^(?:activation )?(?:checkpoint\w*|recomput\w*|remat)$"),
    ),
)
"""What the column of recomputation says."""
