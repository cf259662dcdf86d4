"""Puts the bridge under Core ML Tools without importing either.

One finder at the head of ``sys.meta_path`` answers for a few names:

* ``coremltools.libcoremlpython``: the native bridge, ours. It is built only when Core ML Tools asks for it.
* ``coremltools.models.utils``: the real module, and right after it ran, its ``_macos_version`` is ours. Every
  other module binds that name from this one while Core ML Tools is imported, so setting it here, before they
  run, reaches all of them; setting it later would miss those that had already bound the old one.
* ``coremltools.version``: the real module; fault ``other_coremltools`` changes what it says.
* ``CoreML``, ``Foundation``, ``objc``: stand-ins for PyObjC.

Where Core ML Tools was imported first, the same names are bound in the modules already loaded.
``uninstall_bridge`` undoes all of it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_laya.virtual_mac.faults import standing

BRIDGE = "coremltools.libcoremlpython"
UTILS = "coremltools.models.utils"
BRIDGE_IMPLEMENTATION = "pytest_laya.virtual_mac.bridge"
PYOBJC = {
    "CoreML": "pytest_laya.virtual_mac.pyobjc.coreml",
    "Foundation": "pytest_laya.virtual_mac.pyobjc.foundation",
    "objc": "pytest_laya.virtual_mac.pyobjc.objective_c",
}
CORE_ML_MACOS = (26, 0)
"""What Core ML Tools is told; it only compares it with the versions it needs."""

_PROXIES = (
    "_MLModelProxy",
    "_MLComputePlanProxy",
    "_MLModelAssetProxy",
    "_MLCPUComputeDeviceProxy",
    "_MLGPUComputeDeviceProxy",
    "_MLNeuralEngineComputeDeviceProxy",
)


def core_ml_macos_version() -> tuple[int, ...]:
    """Stands in for Core ML Tools' own look-up of the macOS version."""
    return CORE_ML_MACOS


class _AliasLoader(Loader):
    """Loads a module of ours under the name the importer asked for."""

    def __init__(self, implementation: str) -> None:
        self._implementation = implementation

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        source = importlib.import_module(self._implementation)
        module = ModuleType(spec.name, source.__doc__)
        for name in source.__all__:
            setattr(module, name, getattr(source, name))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Everything is bound already."""


class _AdjustingLoader(Loader):
    """Runs the real loader, then sets one name of the module."""

    def __init__(self, real: Loader, name: str, value: Any) -> None:
        self._real, self._name, self._value = real, name, value

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        if self._name == "_macos_version":
            _INSTALLED.macos_version = vars(module)[self._name]
        setattr(module, self._name, self._value)


class _Distribution(importlib.metadata.Distribution):
    """Core ML Tools' installed metadata with another version."""

    def __init__(self, version: str) -> None:
        self._version = version

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: coremltools\nVersion: {self._version}\n"
        return None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == BRIDGE:
            return ModuleSpec(fullname, _AliasLoader(BRIDGE_IMPLEMENTATION))
        if fullname in PYOBJC:
            return ModuleSpec(fullname, _AliasLoader(PYOBJC[fullname]))
        if fullname == UTILS:
            return self._adjusted(fullname, path, "_macos_version", core_ml_macos_version)
        if fullname == "coremltools.version" and (fault := standing("other_coremltools")) is not None:
            return self._adjusted(fullname, path, "__version__", fault.args["version"])
        return None

    def _adjusted(
        self, fullname: str, path: Sequence[str] | None, name: str, value: Any
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _AdjustingLoader(spec.loader, name, value)
                return spec
        return None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        fault = standing("other_coremltools")
        if fault is not None and context is not None and context.name == "coremltools":
            yield _Distribution(fault.args["version"])


@dataclass
class _Installation:
    """What was put in place in this process, so that it can be undone."""

    finder: _Finder | None = None
    pyobjc: dict[str, ModuleType] = field(default_factory=dict)
    """Real PyObjC modules that were loaded before us."""
    macos_version: Callable[[], tuple[int, ...]] | None = None
    """Core ML Tools' own look-up."""


_INSTALLED = _Installation()


def is_installed() -> bool:
    """True while this process runs on the bridge."""
    return _INSTALLED.finder in sys.meta_path


def install_bridge() -> None:
    """Make Core ML Tools of this process use the bridge. Idempotent; loads nothing that is not loaded.

    Whoever restores an older ``sys.meta_path`` (pytest's pytester does) takes the bridge away; then this
    brings it back.
    """
    if not is_installed():
        _INSTALLED.finder = _Finder()
        sys.meta_path.insert(0, _INSTALLED.finder)
        importlib.invalidate_caches()
        for name in PYOBJC:
            loaded = sys.modules.get(name)
            if loaded is not None:
                _INSTALLED.pyobjc[name] = sys.modules.pop(name)
        utils = sys.modules.get(UTILS)
        if utils is not None:
            if utils._macos_version is not core_ml_macos_version:
                _INSTALLED.macos_version = utils._macos_version
            sys.modules.pop(BRIDGE, None)
            _bind(importlib.import_module(BRIDGE), core_ml_macos_version)
    for name in missing_modules():
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def missing_modules() -> tuple[str, ...]:
    """Names that a standing fault says are not installed."""
    found: tuple[str, ...] = ()
    if standing("coremltools_missing") is not None:
        found += ("coremltools",)
    if standing("pyobjc_missing") is not None:
        found += tuple(PYOBJC)
    return found


def uninstall_bridge() -> None:
    """Undo :func:`install_bridge`: Core ML Tools, if loaded, has its native bridge again, if any."""
    if not is_installed():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _INSTALLED.finder]
    for name in PYOBJC:
        sys.modules.pop(name, None)
    sys.modules.update(_INSTALLED.pyobjc)
    sys.modules.pop(BRIDGE, None)
    if sys.modules.get(UTILS) is not None and _INSTALLED.macos_version is not None:
        try:
            native: ModuleType | None = importlib.import_module(BRIDGE)
        except ImportError:  # not a Mac: Core ML Tools has none, as before
            native = None
        _bind(native, _INSTALLED.macos_version)
    _INSTALLED.finder = None
    _INSTALLED.pyobjc = {}
    _INSTALLED.macos_version = None


def _bind(bridge: ModuleType | None, macos_version: Callable[[], tuple[int, ...]]) -> None:
    """Bind the bridge's names wherever loaded modules of Core ML Tools hold them."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("coremltools.") or module is None or name == BRIDGE:
            continue
        for proxy in _PROXIES:
            if proxy in vars(module):
                setattr(module, proxy, getattr(bridge, proxy, None))
        if "_macos_version" in vars(module):
            module._macos_version = macos_version  # type: ignore[attr-defined]
