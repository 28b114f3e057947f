"""In place of a torch's CUDA libraries, others of the same symbols with nothing in them.

Loaded first, they are what the loader takes for those that ``libtorch_python.so`` names: no CUDA
back end is registered and no driver asked for, as in a torch that was built for CPU only.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_TYPE = "_ZTI"
# What comes with another library, which is linked to it.
_BESIDE = {"libtorch_cuda.so": "libtorch_nvshmem.so"}
_START = """
#include <stdexcept>
#include <string>
[[noreturn]] static void raise(const char* name) {
  throw std::runtime_error(std::string(name) + ": of torch's CUDA, which emulation goes without");
}
struct Type { const void* table; const char* name; const void* rest[6]; };
extern "C" {
extern const void* _ZTVN10__cxxabiv117__class_type_infoE[];
"""


def emptied_source(library: Path) -> str:
    """C++ of such a library: each function raises, each object is zero, and types have their
    names, by which torch's bindings are registered (Itanium C++ ABI, 2.9.5).

    Weak functions stay out: they are inline, and who needs one has it.

    Raises:
        OSError, subprocess.CalledProcessError: when the library's symbols cannot be listed.
    """
    beside = library.with_name(_BESIDE.get(library.name, library.name))
    files = [str(each) for each in dict.fromkeys((library, beside)) if each.exists()]
    command = ["nm", "-ADS", "--defined-only", *files]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    symbols = {line.split()[-1]: line.split()[-3:-1] for line in listed.stdout.splitlines()}
    lines = [_START]
    for name, (size, kind) in symbols.items():
        if kind == "T":
            lines.append(f'void {name}() {{ raise("{name}"); }}')
        elif kind in "BDRV" and name.startswith(_TYPE):
            table = "_ZTVN10__cxxabiv117__class_type_infoE + 2"
            lines.append(f'Type {name} = {{{table}, "{name.removeprefix(_TYPE)}", {{}}}};')
        elif kind in "BDRV":
            lines.append(f"alignas(16) char {name}[{int(size, 16)}] = {{}};")
    return "\n".join([*lines, "}\n"])
