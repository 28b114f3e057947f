"""Traces of ranks: what they consist of, how files hold them, how ranks are put together."""
