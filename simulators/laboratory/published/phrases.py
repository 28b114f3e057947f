"""What rows say in words, phrase by phrase: the one place where their free text is matched.

A phrase's fact is what the readers of a row ask for (``said.get("attention")``); one without a
fact is about the measurement or repeats a column, and changes no prediction. Words that no phrase
covers are listed with the prediction as *unread*. Of labels, ``label_phrases`` has the rest.
"""

from __future__ import annotations

from trainscout.simulators.laboratory.published.label_phrases import VERSIONS
from trainscout.simulators.laboratory.published.phrase import phrases

_NO = r"\b(?:no|without|w/o|not using|non)[\s\-]"
_OFF = r"[\s:=]+(?:off|false|disabled|no|0)\b"
_FLASH = r"flash~att(?:entio)?n(?:tion)?"

_SOFTWARE = (
    *phrases(
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
        ("flash2", _FLASH + r"[\s_\-]*v?2(?:\.\d+)*(?: kernel)?|\bfa[\s\-]?2\b"),
        ("sdpa", r"scaled~dot~product~attention|\bsdpa\b"),
        ("flash1", _FLASH + r"[\s_\-]*v?1(?:\.\d+)*(?: kernel)?|\bfa[\s\-]?1\b|xformers"),
        ("flash1", r"triton " + _FLASH + r"|memory[\s\-]efficient attention"),
        ("fused", _FLASH + r"(?: kernel)?|fused attention"),
    ),
    *phrases(
        "norm",
        ("plain", _NO + r"(?:fused[\s\-]|custom )?(?:rms|layer)?~norm(?: kernel)?"),
        ("plain", r"(?:eager|plain|pytorch) (?:rms|layer)~norm"),
        ("fused", r"(?:fused|triton|apex|flash|te)[\s\-](?:rms|layer)~norm(?: kernel)?"),
        ("fused", r"(?:rms|layer)~norm kernel|fused[\s\-]norms?\b"),
        ("fused", r"\bte\b(?![\s=v]*\d)|transformer engine(?![\s=v]*\d)"),
    ),
    *phrases(
        "compile",
        ("mid-2024", r"(?:eager/compile state of )?mid-2024"),
        ("no", _NO + r"(?:torch\.?)?~?compil\w+|\bnot compiled\b|compile" + _OFF),
        ("no", r"\beager(?: mode| pytorch)?\b"),
        ("yes", r"torch\.?~?compiled?\b|\bcompiled?\b|\binductor\b"),
    ),
    *phrases(
        "wgrad_fusion",
        ("no", r"no[\s_\-]+gradient[\s_\-]accumulation[\s_\-]fusion|" + _NO + r"wgrad fusion"),
        ("no", r"gradient~accumulation~fusion" + _OFF),
        ("yes", r"gradient~accumulation~fusion"),
    ),
    *phrases(
        "gradients",
        ("fp32", r"(?:bf16 optimizer with )?fp32 grad(?:ient)?s?(?: accumulation| reduc\w+)?"),
        ("fp32", r"(?:grad(?:ient)?s?|reduc\w+|all-?reduce)(?: accumulated)? in fp32"),
        ("fp32", r"mp mode default"),
        ("16", r"(?:fp|bf)16 grad(?:ient)?s?(?: accumulation| reduc\w+)?|mp mode pure"),
        (
            "16",
            r"(?:grad(?:ient)?s?|reduc\w+|all-?reduce)(?: accumulated)? in"
            r" (?:(?:fp|bf)16|16[\s\-]bits?)",
        ),
    ),
    *phrases("loss", ("fused", r"cross~entropy~(?:loss~)?fusion(?: te)?")),
    *phrases("loss", ("fused", r"fused (?:ce|cross[\s\-]entropy)(?: loss)?|liger(?: kernels?)?")),
    *phrases("deterministic", ("", r"deterministic(?: mode| kernels?| algorithms?)?")),
    *phrases(
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
        (
            "layers",
            r"cuda~graphs? transformer_engine (?:attn|mamba)[\w+]*|per[\s\-]layer cuda~graphs?",
        ),
        ("router", r"cuda~graphs? (?:transformer_engine )?moe_router[\w+]*"),
        ("said", r"cuda~graphs?"),
    ),
    *phrases(
        "overlap",
        ("none", r"all comm\w*/compute overlap disabled(?: on purpose)?"),
        ("none", r"(?<![a-z] )\bno (?:comm\w*[\s/\-]comp\w* )?overlap\b"),
    ),
    *phrases(
        "tp_overlap",
        ("no", _NO + r"(?:vanilla )?tp(?:[\s_\-]comm)?[\s_\-]overlap|vanilla tp"),
        ("no", r"tp(?:[\s_\-]comm)?[\s_\-]overlap" + _OFF),
        ("yes", r"tp(?:[\s_\-]comm)?[\s_\-]overlap(?: on)?|user~buffers?|async~tp"),
    ),
    *phrases(
        "p2p_overlap",
        ("no", _NO + r"p2p overlap"),
        ("no", r"(?:p2p overlap|overlap[\s_\-]p2p(?:[\s_\-]comm\w*)?)" + _OFF),
        ("yes", r"(?:overlapped p2p|p2p overlap|overlap[\s_\-]p2p(?:[\s_\-]comm\w*)?)(?: on)?"),
    ),
    *phrases(
        "dp_overlap",
        ("no", _NO + r"(?:dp|grad(?:ient)?(?: bucketing)?)[\s/_\-](?:reduc\w+ )?overlap"),
        ("no", r"(?:dp|grad(?:ient)?)[\s_\-](?:reduc\w+ )?overlap" + _OFF),
        ("no", r"overlap~(?:grad~reduce|comm)" + _OFF),
        ("yes", r"tp/pp/dp overlap(?: on)?"),
        ("yes", r"overlap~grad~reduce(?:\W+overlap~param~gather)?|overlap~comm\b"),
        ("yes", r"(?:dp|grad(?:ient)?)[\s_\-](?:reduc\w+ )?overlap(?: on)?(?!~param)"),
    ),
    *phrases(
        "launches",
        ("free", r"cuda~launch~blocking[\s:=]+0"),
        ("blocking", r"cuda~launch~blocking(?:[\s:=]+1)?"),
    ),
    *phrases("segments", ("", r"expandable~segments(?:[\s:=]+true)?")),
    *phrases("router_fusion", ("no", r"(?:moe~)?router~fusion off")),
    *phrases("router_fusion", ("", r"(?:moe~)?router~fusion(?: on)?")),
    *phrases("latent_rope", ("apart", r"(?:latent )?rope~fusion off")),
    *phrases("remainders", ("no", r"precision~aware~optimizer off")),
    *phrases(
        "states",
        ("bf16", r"weights, gradients and optimizer states in bf16|pure (?:bf16|16-bit) training"),
        ("bf16", r"optimizer (?:states )?in bf16 without fp32 weights"),
    ),
    *phrases("fp8_products", ("attention+logits", r"attention and logits in 8 bits")),
    *phrases("fp8_products", ("attention", r"attention in 8 bits")),
    *phrases("fp8_products", ("logits", r"logits in 8 bits")),
    *phrases("moments", ("bf16", r"(?:optimizer )?moments in bf16")),
    *phrases("fused_optimizer", ("", r"(?:apex )?fused[\s_]adamw?\b")),
    *phrases("", (None, r"\badamw?\b(?! 8)")),
    *phrases("optimizer", (None, r"\b(lamb|adafactor|muon|lion|sgd|shampoo|8-bit adam\w*)\b")),
)

_LAYOUT = (
    *phrases(
        "schedule",
        ("v-half", r"(?:pipeline schedule )?\bv-half\b"),
        ("v-min", r"(?:pipeline schedule )?\bv-min\b"),
        ("zb-h2", r"(?:pipeline schedule )?\bzb[\s\-]?(?:h2|2p)\b"),
        ("zb-v", r"(?:pipeline schedule )?\bzb[\s\-]?v\b(?:-\w+)?|zbvzerobubble"),
        ("zb-h1", r"(?:pipeline schedule )?\bzb[\s\-]?(?:h1|1p|p|b)\b"),
        ("zb-h1", r"(?:pipeline schedule )?zero[\s\-]?bubble(?: pipeline)?(?: schedule)?"),
        ("dualpipe-v", r"dual[\s\-]?pipe[\s\-]?v\b"),
        ("dualpipe", r"dual[\s\-]?pipe\b"),
        ("breadth-first", r"breadth[\s\-]first|\bbfs\b"),
        ("another", r"chimera|hanayo|terapipe|pipedream|seq1f1b|asynchronous pipeline"),
        ("gpipe", r"g-?pipe(?: schedule)?|all[\s\-]forward[\s\-]all[\s\-]backward|\bafab\b"),
        ("plain", r"(?:1f1b )?non[\s\-]interleaved(?: 1f1b)?"),
        ("interleaved", r"(?:pipeline schedule )?(?:interleaved[\s\-]1f1b|1f1b[\s\-]interleaved)"),
        ("interleaved", r"interleaved(?: schedule| pipeline)?|interleaving"),
        ("plain", r"(?:pipeline schedule )?\b1f1b\b(?! all-to-all)(?: schedule)?"),
    ),
    *phrases(
        "stages",
        ("unsaid", r"vpp(?: and \w+(?: setting)?)? not published|chunk count not given"),
        (None, r"\bvpp[\s=]+(\d+)\b"),
        (
            None,
            r"(?:with )?\b(\d+) (?:(?:model )?chunks|virtual stages)\b(?: per \w+)?",
        ),
    ),
    *phrases(
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
    *phrases(
        "sequence_parallel",
        ("no", _NO + r"sequence~parallel\w*|sequence~parallel(?:ism)?" + _OFF),
        ("yes", r"sequence~parallel(?:ism)?(?: on)?\b(?! of\b)"),
    ),
    *phrases(
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
    *phrases(
        "recompute",
        ("half", r"(?:checkpoint )?every other layer"),
        # Hugging Face's word for the recomputation of whole layers.
        ("none", _NO + r"gradient~checkpointing|gradient~checkpointing" + _OFF),
        ("full", r"gradient~checkpointing(?:[\s:=]+(?:on|true|enabled))?"),
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
        # Megatron-LM's flag until 2022; other words for whole layers.
        ("full", r"checkpoint-activations|\bactivation checkpointing\b"),
    ),
    *phrases(
        "recompute_layers", (None, r"(?:partial: )?block recompute of only (\d+) layers per stage")
    ),
    *phrases("hfu", (None, r"hfu ([\d.]+)%?")),
    *phrases("recompute_of", (None, r"full recompute of (\d+) of \d+ layers")),
    *phrases("shard_group", (None, r"within (?:groups|nodes?) of (\d+)(?: gpus)?")),
    *phrases("shard_group", (None, r"(?:fsdp )?shard(?:ing)? (?:group|size)(?: of)? (\d+)")),
    *phrases(
        "sharding",
        ("0", r"(?:zero[\s\-]?0|no zero)\b"),
        (None, r"\bzero[\s\-]?([1-3])\b"),
        (None, r"\bsharding stage ([1-3])\b"),
        ("3h", r"\bhybrid[\s_\-]shard\w*"),
        ("3", r"\bfull[\s_\-]shard\w*|\bfsdp over all gpus\b"),
        ("1", r"distributed[\s_\-]optimizer"),
    ),
    *phrases("offloaded_layers", (None, r"(?:cpu )?activation offload\w* of (\d+) layers")),
    *phrases(
        "offload",
        ("optimizer", r"zero[\s\-]?(?:offload|infinity)|cpu[\s\-]?adam|nvme offload"),
        ("optimizer", r"(?:optimizer|cpu) (?:state )?offload\w*|offload\w* (?:the )?optimizer"),
        ("activations", r"(?:cpu )?activation offload\w*"),
    ),
    *phrases(
        "ends",
        ("layers", r"(?:\w+ )*counted as pipeline layers"),
        ("layers", r"first/last stage one layer short\w*"),
    ),
    *phrases("last_in_bf16", (None, r"last (\d+) layers in bf16")),
    *phrases("chosen", ("best", r"best configuration(?: found)?(?: per cell)?")),
    *phrases("tensor_grid", ("", r"\b(?:2|2\.5|3)d tensor parallel\w*")),
)

_EXPERTS = (
    *phrases(
        "dispatcher",
        ("deepep", r"(?:dispatcher )?(?:flex dispatcher )?(?:deep|hybrid)~ep(?: dispatcher)?"),
        ("allgather", r"all~?gather dispatcher|dispatcher all~?gather"),
        (
            "alltoall",
            r"(?:dropless )?all~to~all dispatcher|dispatcher all~to~all|alltoall dispatcher",
        ),
    ),
    *phrases(
        "experts_overlap",
        ("no", r"ep all-to-all beside compute: no|" + _NO + r"ep overlap"),
        ("yes", r"moe all-to-all overlapped(?: with compute)?|1f1b all-to-all overlap"),
        ("yes", r"ep all-to-all beside compute(?:: yes)?|ep[\s\-](?:comm )?overlap"),
    ),
    *phrases(
        "capacity",
        (None, r"(?:token[\s\-]drop\w* with )?capacity[\s\-]factor[\s=]+(\d+(?:\.\d+)?)"),
    ),
    *phrases("capacity", (None, r"\bcf[\s=]?(\d+(?:\.\d+)?)\b")),
    *phrases("tokens", ("dropped", r"token[\s\-]drop\w*|capacity factor based")),
    *phrases("tokens", ("kept", r"dropless(?: all-to-all)?")),
    *phrases(
        "router",
        ("trained", r"trained router"),
        ("real", r"(?:experts )?real (?:aux-loss )?router|natural router|real routing"),
        ("real", r"not force[\s\-]balanced|imbalance included|unbalanced (?:routing|experts)"),
        (
            "forced",
            r"(?:experts )?force[\s\-]?balanced?(?: routing)?|forced balance|balanced routing",
        ),
        ("forced", r"experts are balanced|padded so experts are balanced"),
    ),
    *phrases("grouped_gemm", ("no", _NO + r"grouped~gemm"), ("yes", r"grouped~gemm")),
    *phrases("shared_experts", (None, r"(\d+ shared experts? of \d+)")),
    *phrases("shared_width", (None, r"shared expert(?:s? of| ffn)? (\d+)")),
    *phrases("latent", (None, r"q_lora (\d+,? kv_lora \d+)")),
    *phrases("latent_kv", (None, r"mla \(kv (\d+)")),
    *phrases("latent_q", ("no", r"no q[\s_]lora")),
    *phrases("latent_attention", ("", r"\bmla\b(?: model)?")),
    *phrases(
        "mtp",
        ("off", r"mtp layer disabled|" + _NO + r"mtp|(?:250 )?without mtp"),
        ("counted", r"mtp layer probably counted(?: \(260 gflop per token)?"),
        ("on", r"mtp on|1 mtp layer"),
        ("two", r"2 mtp layers"),
        ("unsaid", r"\bmtp\b"),
    ),
)

_MODEL = (
    *phrases("adapter_rank", (None, r"(?<=lora )(?:of |with )?rank[\s=]*(\d+)")),
    *phrases(
        "adapter_targets",
        (
            None,
            r"\bon ((?:(?:linear_(?:qkv|proj|fc[12])|c_(?:attn|proj|fc)|[qkvo]_proj"
            r"|(?:gate|up|down)_proj|w[123])(?:,? and |, ?|\+)?)+)",
        ),
    ),
    *phrases("adapters", ("", r"\b(?:q?lora|peft)\b")),
    *phrases("tuning", (None, r"\b(sft|fine[\s\-]?tun\w+|packed sequences?)\b")),
    *phrases("reinforcement", (None, r"\b(grpo|ppo|rlhf|dpo)\b")),
    *phrases(
        "not_causal", (None, r"(non-causal|video diffusion transformer|diffusion|encoder-decoder)")
    ),
    *phrases("parallel_block", ("", r"parallel transformer block")),
    *phrases("linear_biases", ("", r"(?:has )?linear biases")),
    *phrases("learned_positions", ("", r"learned positions")),
    *phrases("dropout", ("no", r"no dropout"), ("yes", r"dropout of 0\.1")),
    *phrases("sliding", ("", r"sliding[\s\-]window attention")),
    *phrases(
        "param_gather",
        ("no", _NO + r"(?:fp8|float8) (?:param(?:eter)? )?all~?gather"),
        ("yes", r"(?:fp8|float8) (?:param(?:eter)? )?all~?gather|fp8~params?(?:~gather)?"),
    ),
    *phrases("scales", ("rows", r"(?:quantization )?row~wise")),
    *phrases(
        "scales",
        ("tensors", r"fp8[\-_]cs(?![a-z])|(?:float8 )?tensor~wise(?: linears)?|current scaling"),
    ),
)

_MACHINES = (
    *phrases(
        "nics",
        (None, r"\b(\d+ (?:nics?|hcas?) ?(?:x|of|at) ?\d+) ?g(?:b/s|bps|bit/s|b)?(?: each)?"),
        (
            None,
            r"\b(\d+ ?x ?(?:ndr|hdr|edr)? ?\d+ ?g?)(?:b/s|bps|bit/s)?\b(?: nics?)?(?: per node)?",
        ),
    ),
    *phrases(
        "fabric",
        ("tcpx", r"\b(?:gpudirect-)?tcpxo?\b|\ba3[ -]?(?:mega|high)\b|gpu-recipes"),
        ("roce", r"\broce(?:v2)?\b"),
        ("efa", r"\befa\b|\bp4de?\b|\bp5e?n?\b|\baws\b"),
        ("slingshot", r"slingshot(?:[\s\-]1[01])?"),
        ("omni-path", r"omni[\s\-]?path|\bopa\b"),
        ("ethernet", r"\b(?:\d+ ?gb?e|ethernet)\b|\btcp/ip\b|\bsockets?\b"),
        ("infiniband", r"infiniband|\bhdr(?:200|100)?\b|\bndr(?:400|200)?\b|\bedr\b"),
    ),
    *phrases(
        "flops",
        (
            "half",
            r"(?:mfu )?(?:counts )?causal attention (?:counted )?(?:at|as) half|causal-halved",
        ),
        ("full", r"(?:mfu )?(?:counts )?(?:full|non-causal) attention|\bnon-causal flops"),
    ),
    *phrases("zero_engine", ("", r"\bdeep~speed(?:'s)?(?: engine)?(?=[\s,;.]|$)")),
    *phrases("nccl", (None, r"\bnccl[\s=]*v?(2\.\d{1,2}(?:\.\d+)?)\b")),
    *phrases("power", ("", r"(?:reduced|lowered) power(?: cap| limit)?|power[\s\-]?capped")),
    *phrases("memory_of", ("device", r"nvidia-smi|hipmemgetinfo")),
)

_MEASUREMENT = phrases(
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
    (None, r"peak (?:reserved|memory)[\w\s.]*|mfu (?:printed )?[\d.]+ ?%?"),
    (
        None,
        r"[\d.,]+ (?:[gm]i?b|(?:samples|tokens)/s|tflops?(?:/s)?)"
        r"(?: (?:a gpu|of (?:gpu )?memory|peak memory))? (?:given|printed)",
    ),
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
    (None, r"single 8xb200 node|dgx[\s\-][ah]100(?: eos)?|selene|jean zay a100 nodes"),
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
    *phrases("shard_group", (None, r"(?:within |in )?(?:groups?|nodes?) of (\d+)(?: gpus)?")),
    # 1 and 2 are versions of PyTorch's.
    *phrases("shard_group", (None, r"(?<=fsdp)([3-9]|\d{2,})\b")),
    *phrases("stage", (None, r"zero~(?:stage)?[\s_=:]*([0-3])"), (None, r"^([0-3])(?:\.0)?\b")),
    *phrases("stage", (None, r"stage[\s_\-=:]*([0-3])")),
    *phrases("stage", ("3h", r"hsdp|hybrid[\s_\-]shard\w*"), ("2", r"(?:fsdp )?shard_grad_op")),
    *phrases("stage", ("3", r"fsdp[12]?(?: full_shard)?|full_shard")),
    *phrases("stage", ("1", r"^(?:true|yes|on)$|(?:megatron )?dist\w*[\s_\-]?opt(?:imizer)?")),
    *phrases("stage", ("1", r"optimizer[\s\-]states? shard\w+|hybrid zero")),
    *phrases("stage", ("0", r"^(?:false|none|no|off)$|\bddp\b")),
)
"""What the column of the optimizer's sharding says."""

RECOMPUTE = (
    *phrases("modules", (None, r"(?:selective)?[\s:(]*\b([a-z]+_[a-z_]+(?:\+[a-z_]+)*|mlp)\b\)?")),
    *phrases(
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
