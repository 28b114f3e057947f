"""Launch files of a job: what starts it under each framework, and what each cannot express."""

from reports.launch.directory import (
    FRAMEWORKS,
    check_framework,
    launch_note,
    launch_record,
    launch_texts,
    launch_words,
    launches,
    write_launches,
)
from reports.launch.launch import Launch
from reports.launch.megatron_lm import MegatronCommand, megatron_launch

__all__ = [
    "FRAMEWORKS",
    "Launch",
    "MegatronCommand",
    "check_framework",
    "launch_note",
    "launch_record",
    "launch_texts",
    "launch_words",
    "launches",
    "megatron_launch",
    "write_launches",
]
