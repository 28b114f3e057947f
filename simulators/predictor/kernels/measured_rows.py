"""Tables of measured kernel times: which class a file holds, on which GPU, measured how.

The class is recognised from the columns, so files may be named anything. A row's GPU is matched
to a declaration; its flags and implementation say under which conditions it was timed, and
only rows whose conditions are understood are used.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainscout.simulators.predictor.io.measurements import read_measurements, rows_text
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError, check_size
from trainscout.simulators.predictor.question.gpu import Gpu, gpus_called

if TYPE_CHECKING:
    import pandas as pd

# Columns that make a class, most telling first; all but the text ones must hold numbers.
COLUMNS = {
    "fused_moe": ("gpu", "dtype", "num_tokens", "num_experts", "topk", "time_us"),
    "grouped_gemm": ("gpu", "dtype", "groups", "m_per_group", "n", "k", "stage", "time_us"),
    "gemm": ("gpu", "dtype", "m", "n", "k", "batch", "layout", "time_us"),
    "attention": (
        *("gpu", "dtype", "pass", "batch", "heads", "kv_heads", "seq_q", "seq_k"),
        *("head_dim", "head_dim_v", "causal", "time_us"),
    ),
    "streaming": ("gpu", "op", "pass", "dtype", "bytes", "time_us"),
    "bandwidth": ("gpu", "benchmark", "bytes", "gbps"),
}
TEXT_COLUMNS = frozenset({"gpu", "dtype", "layout", "pass", "stage", "op", "benchmark"})

# The libraries' dimensions are 32-bit; bytes are exact as floating point up to here.
LARGEST_DIMENSION = 2.0**31 - 1
LARGEST_BYTES = 2.0**53

# Shorter host-timed rows measure the host, not the kernel. A table of efficiencies
# (``from_eff``) was host-timed too, and the best five of 25 calls (``min5of25``) hold 20-40 us
# of Python beside each kernel, whatever its size.
HOST_TIMED_FLOOR_US = 150.0
HOST_TIMED_FLAGS = "host_timed|from_eff|min5of25"
EAGER_IMPLEMENTATIONS = "vllm-.*Fp8BlockScaled"
# Runs long enough to meet the board's power limit. ``small_w`` marks vidur's, which time
# hundreds of products back to back: they agree with the sustained H200 runs, not with bursts.
SUSTAINED_FLAGS = "sustained|host_timed|in_situ|small_w"

# What tables call things.
ROW_NAMES: Mapping[str, Mapping[str, str]] = read_yaml(
    resources.files(__package__) / "row_names.yaml"
)
TRAINING_DTYPES = ROW_NAMES["training_dtypes"]
# Serving stacks time the activation's cast from 16 bits with the product.
CAST_INCLUDED = frozenset({"fp8_dyn", "fp8_static", "nvfp4"})
CAST_LAUNCH_S = 2e-6


def match_gpu(name: str, gpus: Mapping[str, Gpu]) -> tuple[str, str]:
    """Question GPU for a published name, and what that assumes; ("", "") when there is none."""
    for pattern, stands_in in ROW_NAMES["stand_ins"].items():
        if stands_in in gpus and re.search(pattern, name.upper()):
            return stands_in, f"{stands_in} stands for it"
    found = gpus_called(name, gpus)
    if len(found) != 1:
        return "", ""
    kind = found[0].partition("_")[0]
    forms = sum(other.partition("_")[0] == kind for other in gpus)
    if found[0] == name or forms == 1 or re.search("SXM|PCIE|NVL", name.upper()):
        return found[0], ""
    return found[0], f"form factor not stated: taken as {found[0]}"


def attention_kernel(implementation: str) -> str:
    """Generation of an attention implementation, or "" for none.

    Those of ``ATTENTION_SECTIONS``, and "flash1", which only Volta's coefficients stand for.
    """
    return next(
        kernel
        for pattern, kernel in ROW_NAMES["attention_kernels"].items()
        if re.search(pattern, implementation)
    )


def table_class(columns: Sequence[str], table: object) -> str:
    """The kernel class a table's columns describe.

    Raises:
        InputError: when they describe none.
    """
    for name, needed in COLUMNS.items():
        if set(needed) <= set(columns):
            return name
    known = "; ".join(f"{name}: {', '.join(needed)}" for name, needed in COLUMNS.items())
    raise InputError("table", table, "has the columns of no kernel class", known)


def read_table(path: Path) -> tuple[str, pd.DataFrame]:
    """Class and rows of one CSV (optionally gzipped); flags and implementations are never null.

    ``unreadable`` says of each row what stands where a number belongs, "" for the others.

    Raises:
        InputError: for an unreadable file or unknown columns.
    """
    return _read_csv(path, path)


def read_tables(path: Path) -> list[tuple[str, pd.DataFrame]]:
    """As ``read_table``; of a file of ``trainscout measure`` every class that it holds.

    Raises:
        InputError: also for one that holds no tables.
    """
    if path.suffix != ".json":
        return [read_table(path)]
    tables = read_measurements("simulator.measured_kernels", path).get("kernels")
    if not isinstance(tables, dict):
        raise InputError("table", path, "holds no kernels", "a file of trainscout measure")
    return [_read_csv(path, io.StringIO(rows_text(rows))) for rows in tables.values() if rows]


def _read_csv(path: Path, source: Path | io.StringIO) -> tuple[str, pd.DataFrame]:
    import pandas as pd

    try:
        check_size("table", path)
        rows = pd.read_csv(source, low_memory=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError("table", path, f"cannot be read ({reason})") from error
    kind = table_class(list(rows.columns), path)
    rows["unreadable"] = ""
    for name in COLUMNS[kind]:
        if name not in TEXT_COLUMNS and rows[name].dtype.kind not in "iuf":
            _read_numbers(rows, name)
    for name in ("flag", "impl", "pass"):
        text = rows[name].astype(object).fillna("").astype(str) if name in rows.columns else ""
        rows[name] = text
    return kind, rows


def _read_numbers(rows: pd.DataFrame, name: str) -> None:
    """Turn a column that holds text into numbers, in place; ``causal`` may be true or false."""
    import pandas as pd

    text = rows[name].map(str).str.strip()
    numbers = pd.to_numeric(text, errors="coerce").astype(float)
    if name == "causal":
        numbers = numbers.fillna(text.str.lower().map({"true": 1.0, "false": 0.0}))
    wrong = numbers.isna() & rows[name].notna()
    rows.loc[wrong, "unreadable"] = [f"has {each!r} as {name}" for each in text[wrong]]
    rows[name] = numbers


def size_columns(kind: str) -> list[str]:
    """The columns of a class that say how large an operation is."""
    measured = ("time_us", "gbps", "causal")
    return [name for name in COLUMNS[kind] if name not in (*TEXT_COLUMNS, *measured)]


def without_size(kind: str, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows whose sizes are no sizes, shape (rows,). Bytes may be blank: shapes may imply them."""
    columns = size_columns(kind)
    sizes = rows[columns].to_numpy(np.float64)
    largest = [LARGEST_BYTES if name == "bytes" else LARGEST_DIMENSION for name in columns]
    good = (sizes > 0) & (sizes <= largest)
    if kind in ("streaming", "bandwidth"):
        good |= np.isnan(sizes)
    return np.asarray(~good.all(axis=1), dtype=np.bool_)


def unusable(kind: str, rows: pd.DataFrame) -> NDArray[np.object_]:
    """Why a row cannot be used, "" where it can, shape (rows,): sizes, flags, timing method."""
    reasons = np.full(len(rows), "", dtype=object)
    reasons[without_size(kind, rows)] = "has a size that is blank, not positive or too large"
    if kind == "attention":
        reasons[~rows["causal"].isin((0, 1)).to_numpy()] = "has a causal that is neither 0 nor 1"
    flag = rows["flag"]
    for text, reason in ROW_NAMES["unusable_flags"].items():
        reasons[flag.str.contains(text, regex=False).to_numpy()] = reason
    eager = rows["impl"].str.contains(EAGER_IMPLEMENTATIONS).to_numpy()
    reasons[eager] = "timed without a CUDA graph: 100-400 us of Python beside the kernel"
    if "time_us" in rows.columns:
        host = flag.str.contains(HOST_TIMED_FLAGS)
        short = host & (rows["time_us"] < HOST_TIMED_FLOOR_US)
        reasons[short.to_numpy()] = "timed by the host and shorter than it resolves (150 us)"
    for name, what in (("time_us", "time"), ("gbps", "rate")):
        if name in COLUMNS[kind]:
            bad = ~((rows[name] > 0) & np.isfinite(rows[name]))
            reasons[bad.to_numpy()] = f"has no positive {what}"
    unreadable = (rows["unreadable"] != "").to_numpy()
    reasons[unreadable] = rows["unreadable"][unreadable]
    return reasons


def sustained(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows timed long enough to meet the board's power limit, shape (rows,)."""
    flagged = rows["flag"].str.contains(SUSTAINED_FLAGS)
    return flagged.to_numpy(dtype=bool)


# Implementations of norms: fused by hand or by cuDNN, or as PyTorch and its compiler make them.
_PLAIN_NORM = r"^pytorch$|torch_compile|torch2|huggingface|liger|quack"


def streaming_kind(operation: str, pass_: str, implementation: str) -> str:
    """The class that prices an operation, or "" when none does."""
    if operation.startswith(("graph:", "fused_linear")) or pass_ not in ("fwd", "bwd", ""):
        return ""
    pass_ = pass_ or "fwd"
    if re.fullmatch(r"(norm|softmax|embedding)_(fwd|bwd)", operation):
        operation, pass_ = operation.rsplit("_", 1)
    for pattern, kind in ROW_NAMES["streaming_operations"].items():
        if re.search(pattern, operation):
            kind = kind.replace("{pass}", pass_).replace("{_bwd}", "_bwd" * (pass_ == "bwd"))
            plain = kind.startswith("norm_") and re.search(_PLAIN_NORM, implementation)
            return f"{kind}_plain" if plain else kind
    return ""


def streaming_bytes(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Bytes read plus written, shape (rows,); NaN where neither stated nor implied.

    A cast of an m x k matrix to fp8 reads two bytes an element and writes one.
    """
    stated: NDArray[np.float64] = rows["bytes"].to_numpy(np.float64).copy()
    if "shape" in rows.columns and np.isnan(stated).any():
        shape = rows["shape"].astype(str).str.extract(r"^m=(\d+);k=(\d+)$").astype(float)
        cast = rows["op"].eq("fp8_scale_matrix").to_numpy()
        implied = 3.0 * (shape[0] * shape[1]).to_numpy()
        stated = np.where(np.isnan(stated) & cast, implied, stated)
    return stated
