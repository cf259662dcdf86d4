"""Fixtures that several unit tests share."""

from __future__ import annotations

from artifact_files import built, mac, registered
from transfer_files import archive, embedded, importing

__all__ = ["archive", "built", "embedded", "importing", "mac", "registered"]
