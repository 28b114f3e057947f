"""Addresses of databases and servers, as people may see them."""

from __future__ import annotations

import re


def without_password(address: str) -> str:
    """The address with the password of its URL, if it has one, replaced by stars."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", address)
