"""Scripts that would never end, or fill the memory, are refused in words, and soon."""

import os
import stat
import time

import pytest

from tests.in_process import command

HUGE = {
    "doubling": "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "python train.py --a $A\n",
    "one word": "A=" + "x" * 1000 + "\nB=" + "$A" * 50000 + "\npython train.py --a $B\n",
    "array": "A=(x x x x)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 40 + "python train.py ${A[@]}\n",
    "shells": "bash -c " * 3000 + "'python train.py'\n",
    "defaults": "A=" + "${A:-" * 3000 + "}" * 3000 + "\npython train.py\n",
    "arithmetic": "A=$((" + "(" * 3000 + "1" + ")" * 3000 + "))\npython train.py\n",
    "arrays": "A=(" * 3000 + ")" * 3000 + "\npython train.py\n",
    "conditions": "if true; then\n" * 800 + "fi\n" * 800 + "python train.py\n",
    "large": "#" * (1 << 20),
    "pattern": "A=" + "a" * 3000 + "\ncase $A in\n" + "*a" * 300 + "b) python x.py ;;\nesac\n",
}


@pytest.mark.parametrize("kind", HUGE)
def test_of_scripts(kind, tmp_path, capsys):
    script = tmp_path / "launch.sh"
    script.write_text(HUGE[kind])
    started_s = time.process_time()
    assert command("explain")([f"given={script}", "model=gpt13b", "cluster=a800_8"]) in (0, 2)
    stated = capsys.readouterr().err
    assert "internal failure" not in stated
    assert "Traceback" not in stated
    assert time.process_time() - started_s < 30


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_of_devices(device, capsys):
    if not os.path.exists(device) or not stat.S_ISCHR(os.stat(device).st_mode):
        pytest.skip("needs the device")
    assert command("explain")([f"given={device}", "model=gpt13b", "cluster=a800_8"]) == 2
    assert "is a device (a launch script" in capsys.readouterr().err


def test_of_toml(tmp_path, capsys):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000)
    assert command("explain")([f"given={tmp_path}/deep.toml", "model=llama3_8b"]) == 2
    assert "given=" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "instead"), [("a.py", "run -- a.py"), ("a.log", "-log a.log")])
def test_what_reads_a_program_or_a_log_instead_is_said(tmp_path, capsys, name, instead):
    (tmp_path / name).write_text("import torch\n")
    assert command("explain")([f"given={tmp_path}/{name}", "model=gpt13b"]) == 2
    assert instead in capsys.readouterr().err


def test_a_program_that_has_its_settings_itself_is_run_instead(tmp_path, capsys):
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 4 lora.py\n")
    assert command("explain")([f"given={tmp_path}/run.sh", "model=gpt13b"]) == 2
    assert "live --world-size 4 --gpu h100 -- lora.py" in capsys.readouterr().err
