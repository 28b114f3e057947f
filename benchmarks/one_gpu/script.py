"""Small training loops that time themselves, on a real GPU or a virtual one.

    python script.py CASE [--profile trace.json] [--steps 12]

Ordinary training code: nothing here knows of this project. Each case makes a model of random
weights and synthetic data on the device and says, as one line of JSON: seconds of a step by CUDA
events (median) and by the wall clock (mean), CPU seconds of the process a step, and the most
bytes that torch's allocator had allocated and reserved. ``small`` cases have so little data that
the host bounds their steps.
"""

import argparse
import json

import language
import others
import torch

CASES = {
    case.__name__: case
    for case in (
        language.gpt,
        language.llama,
        language.qwen_trainer,
        language.llama_small,
        language.llama_lora,
        language.llama_fsdp2,
        language.gpt_ddp,
        language.gpt_small,
        language.llama_packed,
        others.bert,
        others.vit,
        others.resnet,
        others.graph_attention,
        others.lightning,
        others.denoiser,
        others.bert_small,
    )
}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    result = CASES[options.case](options)
    print(json.dumps({"case": options.case, **result}), flush=True)


if __name__ == "__main__":
    main()
