"""The configuration reference: pages generated from dataclasses, checks and ``conf/``."""
