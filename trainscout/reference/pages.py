"""The generated pages of the documentation by file name."""

from __future__ import annotations

from hydra import initialize_config_module
from omegaconf import OmegaConf

from trainscout.commands.hydra_setup import run_directory
from trainscout.commands.schemas import register_commands
from trainscout.reference.choices_page import choices_page
from trainscout.reference.hardware_page import hardware_page
from trainscout.reference.settings_page import settings_page


def reference_pages() -> dict[str, str]:
    """What the generated pages of ``docs/`` have to contain."""
    register_commands()
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    with initialize_config_module("trainscout.conf", version_base="1.3"):
        return {
            "reference.md": settings_page(),
            "choices.md": choices_page(),
            "hardware.md": hardware_page(),
        }
