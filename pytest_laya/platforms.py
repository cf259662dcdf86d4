"""Which machine the session runs on: the real one, or the virtual Mac.

The choice is an environment variable, set before anything imports ``laya_apple``, so that worker processes
and xdist workers on this host inherit it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass

HOOK_VARIABLE = "LAYA_APPLE_PLATFORM"
"""The runtime's documented hook; spelled here too because loading the plugin must not load the runtime."""

VIRTUAL_HOOK = "pytest_laya.virtual_mac:platform"


@dataclass(frozen=True)
class Choice:
    """What ``LAYA_APPLE_PLATFORM`` is set to for the session; empty for the real machine."""

    hook: str

    @property
    def virtual(self) -> bool:
        """True for this package's virtual Mac."""
        return self.hook == VIRTUAL_HOOK

    @property
    def line(self) -> str:
        """For the header and the summary."""
        if self.virtual:
            return "virtual Mac, synthetic: a stand-in for an Apple-silicon Mac with declared device times"
        return f"{HOOK_VARIABLE}={self.hook}" if self.hook else "real machine"


def is_apple_silicon_mac() -> bool:
    """True on a real Apple-silicon Mac."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def choose(option: str, given: bool, before: str | None) -> Choice:
    """The platform for ``--laya-platform OPTION``.

    A hook already in the environment (``before``) stands unless the command line says otherwise (``given``).
    """
    if not given and before:
        return Choice(before)
    virtual = option == "virtual" or (option == "auto" and not is_apple_silicon_mac())
    return Choice(VIRTUAL_HOOK if virtual else "")


def set_hook(hook: str, environ: MutableMapping[str, str]) -> None:
    """Set the hook for this process and its children; empty removes it."""
    if hook:
        environ[HOOK_VARIABLE] = hook
    else:
        environ.pop(HOOK_VARIABLE, None)
