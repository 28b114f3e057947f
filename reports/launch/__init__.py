"""Launch files of a job: what starts it under each framework, and what each cannot express."""

from trainscout.reports.launch.directory import (
    FRAMEWORKS,
    check_framework,
    format_launch,
    launch_note,
    launch_record,
    launch_texts,
    launches,
    write_launches,
)
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.megatron_lm import launch as megatron_launch

__all__ = [
    "FRAMEWORKS",
    "Launch",
    "check_framework",
    "format_launch",
    "launch_note",
    "launch_record",
    "launch_texts",
    "launches",
    "megatron_launch",
    "write_launches",
]
