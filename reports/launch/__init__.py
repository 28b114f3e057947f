"""Launch files of a job: what starts it under each framework, and what each cannot express."""

from trainscout.reports.launch.directory import (
    FRAMEWORKS,
    check_framework,
    first_launch,
    format_launch,
    launch_note,
    launch_record,
    launch_texts,
    launches,
    megatron_launch,
    start_script,
    write_launches,
)
from trainscout.reports.launch.launch import Launch

__all__ = [
    "FRAMEWORKS",
    "Launch",
    "check_framework",
    "first_launch",
    "format_launch",
    "launch_note",
    "launch_record",
    "launch_texts",
    "launches",
    "megatron_launch",
    "start_script",
    "write_launches",
]
