"""From a launch command to processes that each are an emulated rank."""
