"""Attacks on the project: random jobs, wrong input, kills, damaged stores and fuzzed files."""
