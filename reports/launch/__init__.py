"""Launch files of a job: what starts it under each framework, and what each cannot express."""

from reports.launch.launch import Launch
from reports.launch.megatron_lm import MegatronCommand, megatron_launch

__all__ = ["Launch", "MegatronCommand", "megatron_launch"]
