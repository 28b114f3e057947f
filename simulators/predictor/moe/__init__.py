"""Routing of tokens to experts: who gets how many, and what that means for a training recipe."""
