"""The commands that answer a question: from Hydra's configuration to what is shown."""
