"""Collectives as transfers, and those on an engine."""
