"""Stands in for ``objc``: the object protocol, the variable-length list, the autorelease pool."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

__all__ = ["NSObject", "autorelease_pool", "error", "lookUpClass", "varlist"]


class error(Exception):
    """What PyObjC raises for an Objective-C exception."""


class NSObject:
    """The two-step construction of Objective-C."""

    @classmethod
    def alloc(cls) -> Self:
        return cls.__new__(cls)

    @classmethod
    def new(cls) -> Self:
        return cls.alloc().init()

    def init(self) -> Self:
        return self


class varlist:
    """A C array of unknown length: the caller says how much of it to see. Elements are bytes here."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def as_buffer(self, count: int) -> memoryview:
        """The first ``count`` elements, writable and shared with the owner."""
        return self._view[:count]

    def as_tuple(self, count: int) -> tuple[Any, ...]:
        return tuple(self._view[:count])

    def __getitem__(self, index: Any) -> Any:
        return self._view[index]


@contextlib.contextmanager
def autorelease_pool() -> Iterator[None]:
    """Python's own collection frees everything here."""
    yield


def lookUpClass(name: str) -> type:
    """The class of that name. Raises ``nosuchclass_error``'s base, :class:`error`, where there is none."""
    from pytest_laya.virtual_mac.pyobjc import coreml, foundation

    for module in (coreml, foundation):
        found = getattr(module, name, None)
        if isinstance(found, type):
            return found
    raise error(name)
