"""Packets where rates change, fluid where they do not."""
