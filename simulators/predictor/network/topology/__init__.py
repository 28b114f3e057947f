"""What the links are, what they carry, and which of them a flow crosses."""
