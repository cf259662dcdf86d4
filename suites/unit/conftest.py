"""Fixtures that several unit tests share."""

from __future__ import annotations

from artifact_files import built, mac, registered

__all__ = ["built", "mac", "registered"]
