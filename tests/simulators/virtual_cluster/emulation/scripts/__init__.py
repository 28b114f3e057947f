"""Training scripts that tests run as emulated ranks. They know nothing of the emulator."""
