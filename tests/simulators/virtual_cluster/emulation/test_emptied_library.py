"""A library with nothing in it stands for one that registers a back end."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from trainscout.simulators.virtual_cluster.emulation.emptied_library import emptied_source
from trainscout.simulators.virtual_cluster.emulation.native import compiler

REAL = """
#include <cstdio>
struct Registers { Registers() { std::puts("registered"); std::fflush(stdout); } } registers;
struct Base { virtual ~Base() {} };
struct Kind : Base { virtual void is_made(); };
void Kind::is_made() {}
long number = 7;
extern "C" int asks() { return 3; }
"""
USER = """
#include <stdexcept>
#include <string_view>
#include <typeinfo>
struct Base { virtual ~Base() {} };
struct Kind : Base { virtual void is_made(); };
extern long number;
extern "C" int asks();
extern "C" int tries() {
  try { return asks(); } catch (const std::runtime_error& error) { return -1; }
}
extern "C" long reads() { return number; }
extern "C" bool is_kind() { return typeid(Kind).name() == std::string_view("4Kind"); }
"""


def build(folder: Path, name: str, source: str, *flags: str) -> Path:
    made = folder / name
    command = [compiler(), "-w", "-shared", "-fPIC", "-std=c++20", "-xc++", "-", "-o", str(made)]
    subprocess.run([*command, *flags], input=source, text=True, check=True)
    return made


def test_who_is_linked_to_a_library_gets_the_emptied_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    real = build(tmp_path, "libdevice.so", REAL, "-Wl,-soname,libdevice.so")
    user = build(tmp_path, "libuser.so", USER, "-Wl,-rpath,$ORIGIN", "-xnone", str(real))
    soname = f"-Wl,-soname,{real.name}"
    ctypes.CDLL(str(build(tmp_path, "emptied.so", emptied_source(real), soname)))
    linked = ctypes.CDLL(str(user))
    assert linked.tries() == -1  # Its functions raise,
    assert linked.reads() == 0  # its objects are zero,
    assert linked.is_kind()  # its types have their names,
    assert "registered" not in capfd.readouterr().out  # and it starts nothing.
