"""The software that runs a job: which kernels it has, what it fuses, how it launches.

Two runs of one recipe on one cluster differ by these facts as much as by the recipe. They are
documented properties of a framework's version, declared in ``conf/framework/``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InputError, require_choice, require_positive, require_whole
from .framework_choices import CHOICES, LACKS
from .schedules import OWN, SCHEDULES
from .training import QUANTISED


@dataclass(frozen=True)
class Framework:
    """One framework at one time.

    The defaults are hand-fused kernels as Megatron-Core has them, launched at the driver's own
    pace; what a framework's Python adds to that is declared, for Megatron-Core as for others.
    """

    name: str = "undeclared"
    """What results call it."""
    source: str = ""
    """Where its facts are documented."""
    space: str = "megatron"
    """Whose settings it has, as search spaces name them (``of`` in ``conf/space/``)."""
    code: tuple[str, ...] = ()
    """Folders of its code, by which call sites of a script tell it (``megatron/core``)."""
    launch: tuple[str, ...] = ()
    """The launch files that start it (``launch.framework``)."""
    alternatives: tuple[Framework, ...] = ()
    """Other frameworks that a recipe may name."""
    supersedes: tuple[str, ...] = ()
    """Alternatives that are the same with fewer of their switches set to what is never slower or
    larger: a search of both leaves them out."""
    lacks: tuple[str, ...] = ()
    """What of models and precisions it does not have; ``quantised_weights``: frozen ones beside
    adapters; ``several_packs`` of ``training.packed_lengths`` in a micro-batch."""
    schedules: tuple[str, ...] = (*SCHEDULES, OWN)
    """The pipeline schedules that it has; ``csv``: those of files."""
    attention: str = "flash"
    """``flash`` is the best fused kernel of the GPU's generation (FlashAttention-2 on Ampere,
    cuDNN or FlashAttention-3 from Hopper on), ``flash2`` FlashAttention-2 on any GPU, ``flash1``
    the first (2022 to mid 2023), ``flash1_triton`` its Triton version; ``unfused`` writes the
    scores to memory, as does a GPU too old for the kernel declared here (``Job.attention``)."""
    fusion: str = "fused"
    """Memory-bound operations run as hand-fused kernels (``fused``), as what a compiler makes of
    each region (``compiled``), or one kernel per written operation (``eager``)."""
    fused_norm: bool = True
    """Norms are hand-made kernels; without, PyTorch's LayerNorm, and RMSNorm as its compiler makes
    it or, eagerly, one kernel per operation."""
    norm_kernel: bool = False
    """RMSNorm is PyTorch's own function, one kernel even eagerly (since 2.9)."""
    fused_softmax: bool = True
    """Unfused attention scales, masks and normalises its scores in one kernel (Megatron-LM's);
    without, in one for each, and in fp32, unless they are compiled."""
    masked_attention: bool = False
    """Attention is given a mask of all pairs, as Transformers makes one of padded samples: no
    kernel leaves out what it hides, and in place of FlashAttention-2 PyTorch's memory-efficient
    one runs, as fast as ``flash1`` (AMD's take masks, and from Hopper on ``flash``, cuDNN's)."""
    attention_block: int = 0
    """Unfused attention goes through blocks of so many queries and keys one after another, and
    leaves out what is masked (Levanter's flash attention in JAX); 0: through all at once."""
    tensor_core_heads: bool = True
    """Products of unfused attention take tensor cores whatever the size of a head; without, heads
    that are no multiple of 8 leave them to the units of fp32 (cuBLAS until CUDA 11.6)."""
    rope: str = "halves"
    """Rotary positions turn ``halves`` of heads, or ``pairs`` of neighbours in fp32 (torchtune),
    in one kernel unless ``fusion`` is ``eager``; are ``complex`` products, which no compiler fuses
    (Megatron-LM before late 2023 writes them out, too); or are FlashAttention's kernel, for which
    keys are ``packed`` with values (nanotron)."""
    repeats_kv: bool = False
    """Grouped keys and values are written out for every query head before attention, and exchanged
    so under context parallelism."""
    separate_projections: bool = False
    """Queries, keys and values, and the two halves of a gated MLP, have a linear layer each."""
    joined_halves: bool = True
    """The halves of a gated MLP are slices of one product, unless ``separate_projections``
    (without, they have one each, though queries, keys and values share theirs)."""
    inputs_apart: bool = False
    """Under tensor parallelism each of those layers gathers its input and reduces its gradient by
    itself (``ColwiseParallel`` for each, PaddlePaddle's ``ColumnParallelLinear``); a compiler
    merges equal gathers."""
    whole_embedding: bool = False
    """Every tensor-parallel rank holds the whole embedding and looks all tokens up (plans that
    leave it out)."""
    batch_first: bool = False
    """The sequence is not the outermost dimension of activations, so what tensor-parallel ranks
    gather or scatter of it is copied into order
    (``torch.distributed._functional_collectives``)."""
    puts_batch_first: bool = False
    """Activations have the sequence outermost, and FlashAttention's kernels, unlike cuDNN's, the
    batch: of several sequences queries, keys and values are copied into that order and outputs
    back (Transformer Engine's ``FlashAttention``, Megatron-LM's ``FlashSelfAttention``)."""
    gathers_ring: bool = False
    """Context parallelism by ``p2p`` gathers all keys and values at once and merges pieces in fp32
    (``torch.distributed``'s ``context_parallel``)."""
    saves_exchanges: bool = False
    """What tokens' exchanges brought, and the host read, is kept where recomputation goes by
    ``operations`` (TorchTitan)."""
    keeps_gathered: bool = False
    """Under sequence parallelism the gathered input of a column-parallel layer is kept for its
    backward pass (a plain autograd function), instead of gathered again (Megatron-LM,
    nanotron's ``tp_recompute_allgather``)."""
    pads_vocabulary: bool = True
    """The vocabulary is padded to a multiple of ``model.vocab_multiple`` and the tensor-parallel
    degree (Megatron-LM, TorchInductor); without, of that degree alone, and products with it are as
    slow as ``misaligned_factors`` says."""
    writes_gelu: bool = False
    """GeLU of models with learned positions is eight operations, of which three keep a tensor for
    the backward pass (``gelu_new`` of Transformers' GPT-2)."""
    recompute_stops_early: bool = False
    """A recomputed layer's last product, which no gradient reads, is not made again (PyTorch's
    non-reentrant checkpoints since 2.1, JAX)."""
    keeps_router_graph: bool = False
    """What a recomputed layer keeps up to its router stays until the next step with the router's
    loss (PyTorch's checkpoints that do not reenter, a loss kept in its module)."""
    saves_each_product: bool = False
    """Recomputation by operations keeps what every product makes, not every second, and none that
    only the next layer reads (TorchTitan's ``experiments/graph_trainer/memory_policy.py``)."""
    fused_wgrad: bool = True
    """Weight gradients are added into the fp32 main gradient by the GEMM itself."""
    transformer_engine: int = 0
    """Major release of Transformer Engine, 0 without its linear layers: they have workspaces, and
    from 2 on, under ``fused_wgrad``, a 16-bit tensor per weight shape, kept for the whole run."""
    accumulate_grads_fp32: bool = True
    """Gradients are kept in fp32."""
    autocast: bool = False
    """``torch.autocast`` in 16 bits: weights that no replica shards are the optimizer's fp32 ones,
    cast for each micro-batch where they are multiplied; their gradients are cast back, and the
    residual stream, norms and the loss are fp32. Frozen weights, ZeRO and pipelines have 16-bit
    ones."""
    autocast_throughout: bool = False
    """Pipelines and a sharded optimizer have fp32 weights under ``autocast``, too, and linear
    layers that are not Transformer Engine's add fp32 biases to 16-bit products, which makes fp32
    (Megatron-Core)."""
    fp32_adapters: bool = False
    """Adapters that no ZeRO shards are in fp32 beside 16-bit weights, and so is what they read
    (PEFT since 0.12); under ``autocast`` both are cast back for each product."""
    dora_of_factors: bool = False
    """DoRA multiplies its two factors, of each rank's share of a weight (Megatron-Bridge); PEFT
    sends a unit matrix through them, and norms whole weights."""
    shares_expert_adapters: bool = False
    """A rank's experts share one adapter for each of their linear layers (Megatron-Bridge's
    ``share_expert_adapters``, and before 0.5 always); PEFT's and ms-swift's have one each."""
    stacks_experts: bool = False
    """Experts' weights are two stacked parameters (Transformers 5), to which PEFT adds what their
    adapters make in every pass, and which bitsandbytes leaves in 16 bits; under DeepSpeed's ZeRO 3
    views of them, which autograd saves, hold what was gathered until the backward pass."""
    fp32_beside_packed: bool = False
    """Beside frozen weights in fewer bits all else is fp32, and with it what norms and products
    make, but not under ZeRO 3 (PEFT's ``prepare_model_for_kbit_training`` and ``autocast``)."""
    autocast_shards: bool = False
    """So are frozen weights, and those that ZeRO 3 shards, which are gathered in fp32 (models
    loaded in fp32; FSDP without a mixed precision of its own, under ``autocast``)."""
    keeps_16bit_grads: bool = False
    """The 16-bit gradient is kept beside the fp32 one where there are replicas (DeepSpeed's BF16
    optimizer)."""
    sums_whole_grads: bool = False
    """Under ZeRO 2 and 3 gradients stay whole until the last micro-batch's are reduced
    (``no_sync``, as Accelerate accumulates), and what FSDP gathered under 2 until then, too."""
    reduces_each_pass: bool = False
    """Gradients of whole replicas, too, are reduced with every micro-batch, but for pipelines'."""
    sums_16bit_grads: bool = False
    """All 16-bit gradients of a micro-batch are there before they are added to the fp32 ones;
    without ZeRO, DDP's buckets hold as many (nanotron's ``FP32GradientAccumulator``)."""
    master_remainders: bool = False
    """Of an fp32 master weight the optimizer keeps the 16 low bits: the high ones are the bf16
    weight (Apex's and Transformer Engine's ``store_param_remainders``)."""
    unpacks_moments: bool = False
    """Moments kept in 16 bits are all copied to fp32 to be updated, the dense weights' at once and
    the experts' at once (Transformer Engine's ``FusedAdam``)."""
    cross_entropy: str = "fp32"
    """What the loss makes of 16-bit logits: overwrites them with their gradient (``in_place``), so
    for some tokens after others, whose logits are made then (``pieces``: Liger's), writes a
    gradient beside (``compiled``), adds that to zeros, as PyTorch makes for each output of a
    compiled module without a gradient, where one hands out the logits besides the loss
    (``returned``), keeps an fp32 softmax in place of an fp32 copy (``fp32``) or beside it
    (``copies``), overwrites the copy with its gradient (``fp32_in_place``: Liger's), or runs as
    PyTorch's, each step a tensor: on an fp32 copy (``eager``), on a second one without each
    sequence's last token (``shifted``), or on the logits as they are, which the loop holds on to
    (``uncast``)."""
    gathers_logits: bool = False
    """Tensor-parallel ranks gather the logits of the whole vocabulary and each takes the loss of
    all of them (an output layer whose plan says ``Replicate``)."""
    logged_losses: int = 0
    """Losses computed once more from an fp32 copy of the logits of every micro-batch, to be logged
    (Composer's training metrics)."""
    # Estimated. The smallest host-launched products take 5.0 us end to end on H100 (openxla/xla,
    # ``matmul_interpolator_data.h``, 256 x 256 x 256), which bounds the driver's share; dispatch,
    # autograd and Python add a few more.
    host_launch_s: float = 7e-6
    """The host's time per kernel launch in seconds."""
    host_forward_s: float = 0.0
    """What an operation of a module's forward pass takes beyond ``host_launch_s``, in seconds."""
    host_tp_rank_s: float = 0.0
    """What a tensor-parallel collective takes the host besides for each rank of its group, in
    seconds, where a pipeline spans nodes: for those on the node of its first."""
    host_tp_far_rank_s: float = 0.0
    """The same for those on other nodes."""
    # CPU time of PyTorch 2.13 on one core with a group that sends nothing, the least of 120 steps
    # and three runs, with and without a plan: a product 0.24 ms forward and 0.18 backward with
    # sequence parallelism (TorchTitan's plan), 0.16 and 0.11 without. Frameworks declare twice
    # their mean: profiled hosts of H100 and MI300X take 1.6 to 2.3 times as long for modules.
    host_tp_product_s: float = 0.0
    """What DTensor takes the host for a product of tensor-parallel ranks and what is around it in
    its layer, in a pass, in seconds; nothing where blocks are compiled."""
    # Likewise: both FSDPs take a unit of nine parameters 0.34 to 0.36 ms forward and 0.41 to 0.43
    # backward; calls of NCCL come on top. DeepSpeed's hooks under ZeRO 3, on every module, take a
    # layer of Llama (0.19.8) 1.5 and 1.2 ms, and recomputed both in the backward pass. On
    # a slower core, where FSDP2's take a unit 1.34 ms in both passes, Megatron-FSDP's take 0.75 ms
    # under ZeRO 1, 1.02 under 2 and 1.43 under 3; of six parameters, as Transformer Engine has,
    # 0.78 under 2 and 1.25 under 3 (megatron-core 0.16.1, CUDA's streams left out).
    host_unit_s: float = 0.0
    """What FSDP takes the host for a unit in a pass, in seconds; DeepSpeed's ZeRO 3 and Megatron-
    FSDP, which hook modules, for a layer, in a recomputed pass as well."""
    # Beyond what plain PyTorch took the same core, least CPU time of 50 steps by turns, for nine
    # parameters: AdamW and clipping over FSDP2's DTensors 0.23 ms; DeepSpeed's (0.19.8) step 0.27
    # to 0.34, its hooks 0.48 under ZeRO 1, once a step, and 0.53 under ZeRO 2. Frameworks declare
    # 1.3 times that, as they do 1.1 to 1.6 times what operations took that core.
    host_list_s: float = 0.0
    """What Python that goes through a layer's parameters one by one takes the host, in seconds: an
    optimizer over DTensors, DeepSpeed's step, and its hooks under ZeRO 1 and 2."""
    p2p_poll_s: float = 0.0
    """What a pipeline message between nodes waits for a host that sleeps until it looks, in s."""
    p2p_sync: bool = False
    """The host waits for pipeline messages that block: what receives begins with an idle GPU."""
    cuda_graphs: bool = False
    """Passes are replayed, and the host never lags."""
    # Megatron-LM, transformer_config.py: ``moe_router`` captures up to the router and
    # ``moe_preprocess`` what prepares the dispatch; HybridEP's dispatch then waits for the host
    # unless the number of tokens is bounded (fused_a2a.py), and the experts take it as a list
    # (experts.py).
    graphs_leave_experts: bool = False
    """With ``cuda_graphs``: they end where tokens go to experts. The host reads how many go where,
    and launches the experts' kernels."""
    launch_blocking: bool = False
    """The host waits for every kernel before it launches the next (``CUDA_LAUNCH_BLOCKING=1``)."""
    scatter_gather_p2p: bool = False
    """Without sequence parallelism, tensor-parallel ranks each send their share of a pipeline
    message and gather it on arrival (Narayanan et al. 2021, section 4.1)."""
    overlap_p2p: bool = True
    """Interleaved pipeline messages travel beside compute; else all of them block, as in 1F1B."""
    overlap_tp_gradients: bool = True
    """In the backward pass of a column-parallel layer the input is gathered again beside the input
    gradient's GEMM, and that gradient summed or scattered beside the weight gradient's (Megatron-
    LM from 2022)."""
    fused_router: bool = False
    """An expert layer's softmax, top-k, routing map and loss statistics are three kernels (``moe-
    router-fusion``)."""
    fused_rope: bool = True
    """Rotary positions are one kernel each (``apply_rope_fusion``, experimental with latent
    attention in Megatron-Core)."""
    rope_by_document: bool = False
    """Rotary positions that are not one kernel turn packed sequences one after another."""
    order_by_document: bool = False
    """Context parallelism by ``a2a`` puts the order of packed tokens together of every sequence's
    parts, whose bounds the host reads."""
    fused_experts: bool = False
    """In MXFP8, all experts of a rank run in one grouped kernel whose epilogue applies the
    activation and quantises (cuDNN and CuTe DSL, 2026)."""
    fused_fp4_casts: bool = False
    """In NVFP4, one kernel casts a tensor along both dimensions, transformed along one
    (Transformer Engine since March 2026, ``nvte_quantize_with_hadamard_transform``)."""
    pads_experts: bool = False
    """All experts of a GPU multiply as many rows as its busiest (``moe.load_imbalance``)."""
    loops_experts: bool = False
    """Experts are modules that run one after another in a Python loop, in which the host reads
    where each one's tokens are (Transformers before version 5)."""
    delta_rule: str = "fused"
    """A gated delta net's rule is a few kernels (``fused``: flash-linear-attention), or what
    Transformers does without them, fp32 operations in Python's loops over chunks and each one's
    rows (``rows``: until August 2026), or a chunk solved at once (``solved``)."""
    cuts_delta_rules: bool = False
    """Under context parallelism shards of the sequence become shards of the heads in front of a
    gated delta net (Megatron-Core since May 2026); without, it cannot be cut."""
    masked_dispatch: str = ""
    """With experts padded to a capacity, tokens are sent and collected by products with masks of
    every token and place (GShard's einsums) of one ``sequence`` (MaxText) or ``micro_batch``
    (DeepSpeed); "": by kernels that move them."""
    written_dispatch: str = ""
    """Tokens are picked for experts by index, weighed and summed by PyTorch's operations: in 16
    bits (``half``: Transformers from version 5 on), summed by atomics (``atomic``: Megatron-Core
    without ``--moe-permute-fusion``), or in ``fp32`` unless DeepEP exchanges them (TorchTitan);
    "": by kernels that permute and weigh at once."""
    gathers_for_experts: bool = False
    """Tensor-parallel ranks gather a layer's tokens before its router and scatter the sum after
    its experts (TorchTitan): with ``etp`` each sends all of them to experts."""
    repeats_deepep: bool = False
    """Where they do, DeepEP sends all of them from each without ``etp``, too, and experts run what
    they get as often (TorchTitan until its pull request 3386)."""
    reduce_grads_fp32: bool = False
    """16-bit gradients travel in fp32."""
    copies_gathered: bool = False
    """Sharded parameters are copied from the buffer they were gathered in to tensors of their own
    (FSDP2, DeepSpeed's ``all_gather_coalesced``)."""
    quantises_each_pass: bool = False
    """In 8 bits, weights that a rank has in 16 are quantised in every forward pass (torchao's
    float8, Transformer Engine under FSDP1 and in JAX), not once a step into copies that stay
    (under Megatron-Core). Of weights that are kept in 8 no transposed copy stays
    (``disable_parameter_transpose_cache``)."""
    fuses_casts: bool = False
    """8-bit operands whose scales are known beforehand (``fp8``) are written by the kernels that
    make the tensors."""
    fp8_param_gather: tuple[str, ...] = ()
    """Precisions of 8 and 4 bits in which parameters are kept and gathered as they are multiplied,
    where a recipe does not say (``recipe.fp8_param_gather``)."""
    one_root_unit: bool = False
    """FSDP's outermost unit holds embedding, final norm and head: it is gathered before the first
    layer runs, kept, and reduced after the last (``fully_shard`` or FSDP1 around a model whose
    blocks are units of their own)."""
    reshards_root: bool = False
    """That unit is freed after the forward pass and is not there beside a loss computed behind it
    (FSDP2 told ``reshard_after_forward=True`` for it, since PyTorch 2.8)."""
    loss_in_model: bool = False
    """The model that FSDP wraps returns the loss (Transformers' with labels): hooks on what it
    returns fetch the last layer before the loss's backward pass, not after it."""
    gathers_to_recompute: bool = False
    """Under ZeRO 3, layers that are recomputed whole are gathered for that and again for their
    backward pass (checkpoints around units of FSDP that reenter, as Transformers' own did before
    version 5)."""
    leaves_regathered: bool = False
    """For each of them the layer whose backward pass is over is gathered, too, and stays until all
    is (the second FSDP's prefetch before PyTorch 2.10, pull request 164009)."""
    prefetches_backward: bool = True
    """What FSDP gathers again for a backward pass comes while the layer before runs; without, once
    that one's gradients are reduced, and neither hides (NO_PREFETCH, the default of Transformers'
    Trainer under the first FSDP)."""
    wraps_adapters: bool = False
    """Adapters are units of the first FSDP (PEFT's ``fsdp_auto_wrap_policy``). A gather waits
    until the last unit but one, an adapter, is freed: layers' for backward passes hide behind
    nothing, nor those for forward ones where a layer's last product has adapters."""
    waits_for_reductions: bool = False
    """Gradients that are sharded (ZeRO 2 and 3) are reduced with nothing beside them
    (PaddlePaddle's group-sharded stage 2 as it comes: ``sync_op``)."""
    copies_shards: bool = False
    """Under ZeRO 1 each rank's share of each tensor is copied out on its own after it was gathered
    (nanotron's ``all_gather_coalesced``)."""
    allreduces_gradients: bool = False
    """Under ZeRO 1 and 2, too, gradients are all-reduced, not reduce-scattered (DeepSpeed since
    0.12.4: ``use_multi_rank_bucket_allreduce``, whatever ``reduce_scatter`` says; InternEvo)."""
    broadcasts_shards: bool = False
    """Under ZeRO 1 a rank updates whole tensors, and each broadcasts its own at the end of a step
    (InternEvo's ``broadcast_params``): over a ring, whose latency grows with ranks."""
    gathers_tensors: bool = False
    """ZeRO 3 gathers each weight matrix by a call of its own, for which the host waits until the
    device has done all before it, and copies every rank's share out of it (DeepSpeed before
    0.6)."""
    balanced_split: bool = False
    """Layers that do not divide over the pipeline are dealt out, instead of refused as Megatron-LM
    does."""
    split_by_compute: bool = False
    """The stages of a plain pipeline end nearest to equal shares of the compute, the head's
    included."""
    defers_frees: bool = False
    """What NCCL has read is free once the device is there (``record_stream``), and no message that
    is sent holds the host: what it launches ahead takes other memory."""
    expandable_segments: bool = False
    """PyTorch's allocator grows its segments in place (``PYTORCH_CUDA_ALLOC_CONF``) instead of
    taking new ones."""
    pipeline_buffers: str = "released"
    """A stage gives up its output once it is sent (``released``), keeps it until its backward pass
    (``outputs``), or besides has a buffer for every message of a step (``preallocated``:
    ``torch.distributed.pipelining``)."""
    fused_optimizer: bool = True
    """Adam updates in one pass over its states; without, in one for each of its operations
    (PyTorch's ``foreach`` implementation, its default)."""
    optimizer_operations: int = 0
    """Operations of an optimizer that, without ``fused_optimizer``, updates one tensor after
    another, each a kernel of its own (8 of PyTorch's AdamW without ``foreach``; of experts no more
    tensors are counted than of a plain MLP); 0: many tensors at once."""
    torch_wrappers: bool = False
    """DDP copies gradients into buckets and what was reduced back; FSDP copies a unit's into one
    tensor of the type that they are reduced in, which the first FSDP (without ``copies_gathered``)
    divides before that."""
    ddp_bucket_mib: int = 25
    """DDP's buckets of gradients (``bucket_cap_mb``), at whose ends PyTorch cuts compiled graphs
    (``torch/_dynamo/backends/distributed.py``: ``DDPOptimizer``); 0: replicas are not DDP's."""
    megatron_fsdp: bool = False
    """Megatron-FSDP wraps the model under ZeRO 0 and 1, too (``--use-megatron-fsdp``)."""
    checks_gradients: bool = False
    """Before they are reduced, the norm of gradients is taken to see that none is NaN (Megatron's
    DDP: ``check_for_nan_in_grad``)."""
    divides_gradients: bool = False
    """Before they are reduced, a kernel of its own divides gradients by the replicas (Megatron's
    DDP but for ``average_in_collective``)."""
    flattens_gradients: bool = False
    """Gradients are copied into flat tensors to be reduced and, when 16-bit, to be updated with;
    ZeRO 1 and 2 gather as the last of a step (DeepSpeed, InternEvo)."""
    gradient_bucket: str = "none"
    """When the flat buffer that gradients are copied into is there, whole whatever the model's
    size: until a backward pass ends, from its beginning (``backward``) or its first ``gradient``
    on, and always under ZeRO 3 (DeepSpeed's ``contiguous_gradients``)."""
    host_optimizer: str = "none"
    """How the host's CPU updates parameters whose optimizer states lie in its memory: tensor by
    tensor, beside the transfers of others (``pipelined``: Megatron-Core's hybrid optimizer, of the
    distributed optimizer only), or all at once, clipping included, gradients having left beside
    the backward pass from ZeRO 2 on or where they are reduced beside it (``serial``: ZeRO-Offload,
    partly only under ZeRO 3)."""
    offloads_inputs: bool = False
    """Of layers that are recomputed their inputs can wait in the host's memory (Transformers'
    ``gradient_checkpointing_kwargs.offload``, Accelerate's for FSDP2)."""
    moments_8bit: str = "none"
    """Which weights' moments Adam can keep in 8 bits: ``all``, all but embeddings' (``layers``:
    Transformers' Trainer with bitsandbytes), or ``none``."""

    def __hash__(self) -> int:
        # Of its many fields, those that distinguish what goes by one name: what a recipe sets.
        set_by_recipe = (self.cuda_graphs, self.accumulate_grads_fp32, self.reduce_grads_fp32)
        return hash((self.name, *set_by_recipe, self.master_remainders, self.fp8_param_gather))

    @property
    def pace_of_kernels(self) -> float:
        """What a kernel of PyTorch's own takes the host, of ``host_launch_s``."""
        return min(1.0, UNDECLARED.host_launch_s / max(self.host_launch_s, 1e-9))

    @property
    def reduces_fp32(self) -> bool:
        """Whether gradients of a 16-bit model travel in 32 bits."""
        return self.accumulate_grads_fp32 or self.reduce_grads_fp32

    @property
    def aligns_vocabulary(self) -> bool:
        """Whether products with the vocabulary have aligned rows."""
        return self.pads_vocabulary or self.fusion == "compiled"

    def host_product_s(self, tp: int) -> float:
        """What a product of ``tp`` ranks takes the host beyond its launch, in seconds."""
        launched = tp > 1 and self.fusion != "compiled" and not self.cuda_graphs
        return self.host_tp_product_s if launched else 0.0

    @property
    def software(self) -> str:
        """The name that published runs of it go by: settings apart, it is what it supersedes."""
        return self.supersedes[0] if self.supersedes else self.name

    @property
    def offered(self) -> tuple[Framework, ...]:
        """Itself and its alternatives."""
        return (self, *self.alternatives)

    def check(self) -> None:
        """Refuse what does not exist."""
        for name, choices in CHOICES.items():
            require_choice(f"framework.{name}", getattr(self, name), choices)
        numbers = ("ddp_bucket_mib", "attention_block", "transformer_engine")
        for name in (*numbers, "optimizer_operations"):
            require_whole(f"framework.{name}", getattr(self, name), least=0)
        if self.autocast and self.fused_wgrad:
            problem = "casts gradients back to fp32, which no product does"
            raise InputError("framework.autocast", True, problem, "framework.fused_wgrad=false")
        for what in self.lacks:
            require_choice("framework.lacks", what, LACKS)
        for precision in self.fp8_param_gather:
            require_choice("framework.fp8_param_gather", precision, QUANTISED)
        for schedule in self.schedules:
            require_choice("framework.schedules", schedule, (*SCHEDULES, OWN))
        times = ("launch", "forward", "tp_rank", "tp_far_rank", "tp_product", "unit", "list")
        for name in (*(f"host_{each}_s" for each in times), "p2p_poll_s", "logged_losses"):
            require_positive(f"framework.{name}", getattr(self, name), allow_zero=True)


UNDECLARED = Framework()


@dataclass(frozen=True)
class ChosenFramework(Framework):
    """The framework that a recipe asks for, and the one that was ``declared``."""

    declared: Framework = UNDECLARED
    __hash__ = Framework.__hash__


def declared_framework(framework: Framework) -> Framework:
    """What a framework was before a recipe chose it."""
    return framework.declared if isinstance(framework, ChosenFramework) else framework


def named_framework(framework: Framework, name: str | None) -> Framework:
    """Which of the declared framework and its alternatives a recipe names, before it sets anything
    of it. An unknown name, which ``question.validity`` refuses, is the declared one."""
    declared = declared_framework(framework)
    return next((each for each in declared.alternatives if each.name == name), declared)
