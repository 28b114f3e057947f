"""``trainscout init``: a model and a cluster of one's own to start from, as commented YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainscout.simulators.predictor.io.command_line import OK, command_parser
from trainscout.simulators.predictor.io.output import make_folder, show_text, write_output
from trainscout.simulators.predictor.question.errors import InputError

MODEL = """\
# A decoder's shape. Each field: docs/reference.md; a Hugging Face config.json is a model as it is.
name: ours                   # what results call it
source: ours                 # where these figures are from
num_layers: 32
hidden_size: 4096
num_heads: 32
num_query_groups: 8          # heads that keys and values have; num_heads: no grouping
ffn_hidden_size: 14336       # the MLP's width
vocab_size: 128256           # as trained, padding included
sequence_length: 8192        # tokens a sample
gated_mlp: true              # SwiGLU: three matrices; false: two, with GeLU
normalization: rmsnorm       # or layernorm
position: rope               # or learned
linear_bias: false
qkv_bias: false
dropout: false
tied_embeddings: false       # the output layer is the embedding's matrix
# moe:                       # experts in place of the MLP
#   num_experts: 8
#   top_k: 2                 # experts a token goes to
#   ffn_hidden_size: 14336   # the width of each
"""

CLUSTER = """\
# Nodes of equal GPUs and what joins them. `trainscout doctor --cluster FILE` on a GPU node writes
# this from what the machine says.
defaults:
  - override /gpu@_global_.gpu: h100    # `trainscout list gpus`
  - _self_

name: ours                   # what results call it
source: ours                 # where these figures are from
num_nodes: 8
gpus_per_node: 8
nics_per_node: 8             # of the compute fabric: without those of storage and management
nic_gbps: 400                # one NIC's rate, in Gb/s
fabric: infiniband           # roce, efa, slingshot, tcpx, omni_path, ethernet; none on one node
# nvlink_domain: 72          # GPUs that NVLink joins, where it is not the node
# nvswitch: false            # NVLink without switches between the GPUs
# oversubscription: 2        # what leaves a node has this part of the NICs' rate
# memory_reserve: 0.05       # of GPU memory, to be left free by what is called fitting
"""

FILES = {"model": MODEL, "cluster": CLUSTER}


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "init",
        "Write a model and a cluster to start from: commented YAML files in a folder of yours, "
        "MODEL and CLUSTER below. Nothing is asked, no file is replaced.",
        "trainscout init\n"
        "trainscout init ours --name our_30b\n"
        "trainscout optimize --config-dir mine model=ours cluster=ours",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("mine"), metavar="FOLDER")
    parser.add_argument("--name", default="ours", help="of both files (ours)")
    given = parser.parse_args(arguments)
    if not given.name.replace("_", "").replace("-", "").isalnum():
        raise InputError("--name", given.name, "is no name", "letters, digits, _ and -")
    files = {given.folder / group / f"{given.name}.yaml": text for group, text in FILES.items()}
    for path in files:
        refuse_existing("folder", path)
    for path, text in files.items():
        write_new("folder", path, text.replace(" ours ", f" {given.name} ", 1))
    show_text(
        "".join(f"Wrote {path}\n" for path in files)
        + f"Edit them, then: trainscout optimize --config-dir {given.folder} "
        f"model={given.name} cluster={given.name}\n"
    )
    return OK


def refuse_existing(option: str, path: Path) -> None:
    """Raises InputError for a file that would be lost."""
    if path.exists():
        raise InputError(option, path, "exists already and is not replaced", "a new file")


def write_new(option: str, path: Path, text: str) -> None:
    """Write a file and the folders it is in.

    Raises:
        InputError: when it cannot be written.
    """
    make_folder(option, path.parent)
    write_output(option, path, text)
