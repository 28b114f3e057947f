"""Live mode: emulated ranks run as processes against one simulator with virtual clocks."""
