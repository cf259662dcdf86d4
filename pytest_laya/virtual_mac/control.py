"""The handle a test holds on its virtual Mac."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from laya_apple.platform import HOOK_VARIABLE
from pytest_laya.virtual_mac.declared import make_profile
from pytest_laya.virtual_mac.disk import install_disk_faults
from pytest_laya.virtual_mac.faults import make_fault
from pytest_laya.virtual_mac.importing import is_installed, missing_modules, uninstall_bridge
from pytest_laya.virtual_mac.machine import start
from pytest_laya.virtual_mac.state import STATE_VARIABLE, State, read_events, read_state, write_state
from pytest_laya.virtual_mac.threads import THREAD_VARIABLES

if TYPE_CHECKING:
    import pytest

    from laya_apple.platform import Platform

HOOK = "pytest_laya.virtual_mac:platform"


class VirtualMac:
    """A virtual Mac for one test, with faults that every process of the test sees.

    ``VirtualMac(directory, monkeypatch)``: ``directory`` is a folder of the test's own (``tmp_path``) for the
    state and the event log; ``monkeypatch`` is pytest's, which undoes the environment and the process's
    modules. The profile is ``instant`` until :meth:`profile` says otherwise. Call :meth:`close` (or leave the
    ``with`` block) before the monkeypatch is undone::

        @pytest.fixture
        def virtual_mac(tmp_path, monkeypatch):
            with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as mac:
                yield mac

    Processes started by the test inherit everything. Code of ``laya_apple`` is never replaced.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._next_id = 1
        # A session on the virtual Mac goes on needing the bridge, even where this is its first user.
        self._was_installed = is_installed() or os.environ.get(HOOK_VARIABLE) == HOOK
        self._hidden: dict[str, ModuleType | None] = {}
        self._versions: dict[str, str] = {}
        write_state(directory, State(profile="instant", owner_pid=os.getpid()))
        monkeypatch.setenv(STATE_VARIABLE, str(directory))
        monkeypatch.setenv(HOOK_VARIABLE, HOOK)
        for name in THREAD_VARIABLES:
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        self._platform = start()

    @property
    def platform(self) -> Platform:
        """The platform every process of the test sees."""
        return self._platform

    @property
    def directory(self) -> Path:
        """Where the state and the event log are."""
        return self._directory

    def fault(self, name: str, /, **args: Any) -> None:
        """Add a fault (:data:`pytest_laya.virtual_mac.faults.FAULTS` lists names and arguments).

        Faults add up; several of one name concern several buckets. Raises ValueError for an unknown one.
        """
        state = read_state()
        fault = make_fault(self._next_id, name, args)
        self._next_id += 1
        self._write(State(state.profile, (*state.faults, fault), state.owner_pid))
        self._apply(name, fault.args)

    def clear(self, name: str | None = None) -> None:
        """Take back every fault, or those of one name. Calls they hold are let go with an error."""
        state = read_state()
        kept = tuple(f for f in state.faults if name is not None and f.name != name)
        self._write(State(state.profile, kept, state.owner_pid))
        self._restore_modules()

    def profile(self, profile: str | Mapping[str, Any]) -> None:
        """Declare the device times: ``instant``, ``m4max``, a table or a JSON file; else ValueError."""
        table = make_profile(profile).table
        state = read_state()
        stored = table.to_dict() if isinstance(profile, Mapping) and table is not None else profile
        self._write(State(stored, state.faults, state.owner_pid))

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """What happened so far, in every process.

        Each has ``event`` (``load``, ``compile``, ``plan``, ``predict``, ``forward`` for the GPU, ``fault``,
        ``step``, ``overruns``), ``pid`` and ``monotonic_ns``.
        """
        return [e for e in read_events(self._directory) if event is None or e["event"] == event]

    def change_file(self, path: Path, what: str = "content") -> None:
        """Change one thing about a file, as a stamp might or might not notice.

        ``content`` flips the last byte and keeps size and mtime; ``size`` appends a byte and keeps mtime;
        ``mtime`` moves it on by a second; ``inode`` puts an identical copy in its place with the same mtime.
        """
        before = path.stat()
        data = path.read_bytes()
        if what == "content":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif what == "size":
            path.write_bytes(data + b"\0")
        elif what == "inode":
            copy = path.with_name(path.name + ".copy")
            copy.write_bytes(data)
            copy.chmod(before.st_mode & 0o7777)
            os.replace(copy, path)
        elif what != "mtime":
            raise ValueError(f"change_file changes content, size, mtime or inode, not {what!r}")
        moved_ns = 1_000_000_000 if what == "mtime" else 0
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + moved_ns))

    def close(self) -> None:
        """Clear the faults and, where this test brought the bridge, take it away."""
        self.clear()
        if not self._was_installed:
            uninstall_bridge()

    def __enter__(self) -> VirtualMac:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write(self, state: State) -> None:
        write_state(self._directory, state)

    def _apply(self, name: str, args: Mapping[str, Any]) -> None:
        """Make the fault hold in this process too, where modules may be loaded already."""
        install_disk_faults()
        for missing in missing_modules():
            for loaded in {missing, *(n for n in sys.modules if n.partition(".")[0] == missing)}:
                self._hidden.setdefault(loaded, sys.modules.get(loaded))
                sys.modules[loaded] = None  # type: ignore[assignment]
        if name == "other_coremltools":
            for loaded in ("coremltools", "coremltools.version"):
                module = sys.modules.get(loaded)
                if module is not None:
                    self._versions.setdefault(loaded, module.__version__)
                    module.__version__ = args["version"]  # type: ignore[attr-defined]

    def _restore_modules(self) -> None:
        """Take back what :meth:`_apply` did for faults that no longer stand."""
        still_missing = missing_modules()
        for name, module in list(self._hidden.items()):
            if name.partition(".")[0] in still_missing:
                continue
            del self._hidden[name]
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        if not any(f.name == "other_coremltools" for f in read_state().faults):
            for name, version in self._versions.items():
                module = sys.modules.get(name)
                if module is not None:
                    module.__version__ = version  # type: ignore[attr-defined]
            self._versions.clear()
