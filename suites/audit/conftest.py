"""Fixtures of the audit: laya-mini's artifacts, built once a session, and a virtual Mac to break."""

import os
import sys
from pathlib import Path

import pytest

# The modules of this folder import each other by name, in the source tree and where the wheel put them;
# worker processes find the platform hooks the same way.
sys.path.insert(0, str(Path(__file__).parent))

from audit_case import PREBUILT, Home, build, link_tree


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A cache with verified artifacts of two lengths; ``LAYA_AUDIT_PREBUILT`` names one that exists."""
    named = os.environ.get(PREBUILT)
    if named:
        return Path(named)
    return build(tmp_path_factory.mktemp("audit-artifacts"))


@pytest.fixture
def home(built, virtual_mac, tmp_path, monkeypatch):
    """The built artifacts in a cache of the test's own, on a virtual Mac of its own."""
    cache = tmp_path / "cache"
    link_tree(built, cache)
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(cache))
    found = Home(virtual_mac, cache)
    yield found
    found.close()
