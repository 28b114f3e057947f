"""CPU seconds of one recipe beside Calculon and SimuMax, in turn and on one machine.

    python -m benchmarks.beside_peers --calculon CLONE --simumax CLONE [--repeat N]

Every one predicts GPT-3 175B on 96 GPUs, TP 8 x PP 12, micro-batches of 1, from its own clone.
*Again* is one more prediction in a running process (the median of 1,000, SimuMax's of 3), *cold* a
process of its own. Nobody listens to Calculon's debug messages.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.commands import ROOT, cost_of

_TIMED = """
import statistics, time
def again(predict, repeat):
    predict()
    seconds = []
    for _ in range(repeat):
        begin = time.process_time()
        predict()
        seconds.append(time.process_time() - begin)
    print("again", 1e3 * statistics.median(seconds))
"""
_ONCE = """
def again(predict, repeat):
    predict()
"""
_OURS = """
from benchmarks.question import job
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
asked = job(Recipe(tp=8, pp=12, sp=True), "model=gpt175b", "cluster=h800_96")
simulator = ReplaySimulator()
again(lambda: simulator.simulate(asked), {repeat})
"""
_CALCULON = """
import json, logging
from calculon import System
from calculon.llm import Llm
shown = json.load(open("examples/3072_t4_p64_d12_mbs4_full.json"))
shown |= dict(num_procs=96, tensor_par=8, pipeline_par=12, data_par=1, batch_size=1536)
shown |= dict(microbatch_size=1, activation_recompute="none", optimizer_sharding=False)
app = Llm.Application(json.load(open("models/gpt3-175B.json")))
system = System(json.load(open("systems/h100_80g_nvl8.json")))
log = logging.getLogger("calculon")
def predict():
    model = Llm(app, log)
    model.compile(system, Llm.Execution.from_json(shown))
    model.run(system)
again(predict, {repeat})
"""
_SIMUMAX = """
import contextlib, io, logging
logging.disable(logging.CRITICAL)
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
strategy = StrategyConfig.init_from_config_file("configs/strategy/tp8_pp1_dp1_mbs1.json")
strategy.pp_size, strategy.world_size, strategy.micro_batch_num = 12, 96, 1536
strategy.seq_len, strategy.enable_recompute = 2048, False
model = ModelConfig.init_from_config_file("configs/models/gpt3-175b.json")
system = SystemConfig.init_from_config_file("configs/system/a100_pcie.json")
def predict():
    with contextlib.redirect_stdout(io.StringIO()):
        perf = PerfLLM()
        perf.configure(strategy_config=strategy, model_config=model, system_config=system)
        perf.run_estimate()
        perf.analysis_cost()
again(predict, {repeat})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calculon", type=Path, required=True, help="folder of its repository")
    parser.add_argument("--simumax", type=Path, required=True, help="folder of its repository")
    parser.add_argument("--repeat", type=int, default=5, help="rounds; least of cold, median")
    asked = parser.parse_args()
    programs = {
        "Trainscout": (ROOT, _OURS, 1000),
        "Calculon": (asked.calculon, _CALCULON, 1000),
        "SimuMax": (asked.simumax, _SIMUMAX, 3),
    }
    again: dict[str, list[float]] = {name: [] for name in programs}
    cold: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(asked.repeat):
        for name, (folder, program, repeat) in programs.items():
            text = _TIMED + program.replace("{repeat}", str(repeat))
            timed = cost_of([sys.executable, "-c", text], folder)
            again[name].append(float(timed.out.split()[-1]))
            once = [sys.executable, "-m", "trainscout", "simulate", "model=gpt175b"]
            once += ["cluster=h800_96", "recipe.tp=8", "recipe.pp=12", "recipe.sp=true"]
            text = _ONCE + program.replace("{repeat}", "1")
            words = once if name == "Trainscout" else [sys.executable, "-c", text]
            cold[name].append(cost_of(words, folder).cpu_s)
    print("| | again, ms | cold, CPU s |")
    print("|---|---:|---:|")
    for name in programs:
        print(f"| {name} | {statistics.median(again[name]):.1f} | {min(cold[name]):.2f} |")


if __name__ == "__main__":
    main()
