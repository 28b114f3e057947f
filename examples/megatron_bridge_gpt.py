"""Megatron-Bridge's GPT-3 175B pre-training recipe, on mock data.

torchrun --nnodes 64 --nproc-per-node 8 examples/megatron_bridge_gpt.py train.train_iters=10

Arguments override the recipe's configuration (``model.num_layers=8``). Megatron-Bridge has
Megatron-LM's training loop: what runs and what is printed is theirs.
"""

import sys

from megatron.bridge.recipes.gpt.gpt3_175b import gpt3_175b_pretrain_config
from megatron.bridge.training import initialize
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

# megatron-core from a package registry has its data set helper built, and no makefile to build it.
initialize.compile_helpers = lambda: None


def main() -> None:
    config: ConfigContainer = gpt3_175b_pretrain_config()
    config.checkpoint.save = config.checkpoint.load = None
    config.logger.tensorboard_dir = None
    config.logger.log_interval = 1
    process_config_with_overrides(config, cli_overrides=sys.argv[1:])
    pretrain(config, forward_step)


if __name__ == "__main__":
    main()
