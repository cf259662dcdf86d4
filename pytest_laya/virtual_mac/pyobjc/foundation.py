"""Stands in for ``Foundation``: URLs, errors, and the containers that are handed to Core ML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_laya.virtual_mac.pyobjc.objective_c import NSObject

__all__ = ["NSURL", "NSArray", "NSDictionary", "NSError", "NSNumber"]


class NSNumber(int):
    """A number object; PyObjC shows it as a Python number."""

    @classmethod
    def numberWithInteger_(cls, value: int) -> NSNumber:
        return cls(value)


class NSArray(tuple[Any, ...]):
    """An immutable array; PyObjC shows it as a sequence."""

    @classmethod
    def arrayWithArray_(cls, values: Iterable[Any]) -> NSArray:
        return cls(values)


class NSDictionary(dict[Any, Any]):
    """A dictionary; PyObjC shows it as a mapping."""

    @classmethod
    def dictionaryWithDictionary_(cls, values: Mapping[Any, Any]) -> NSDictionary:
        return cls(values)


class NSURL(NSObject):
    """A file URL."""

    _path: str

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        made = cls.alloc()
        made._path = path
        return made

    @classmethod
    def fileURLWithPath_isDirectory_(cls, path: str, is_directory: bool) -> NSURL:
        return cls.fileURLWithPath_(path)

    def path(self) -> str:
        return self._path


class NSError(NSObject):
    """An error object, as an out-argument or a completion handler receives it."""

    _domain: str
    _code: int
    _info: dict[str, Any]

    @classmethod
    def errorWithDomain_code_userInfo_(cls, domain: str, code: int, info: dict[str, Any] | None) -> NSError:
        made = cls.alloc()
        made._domain, made._code, made._info = domain, code, dict(info or {})
        return made

    def domain(self) -> str:
        return self._domain

    def code(self) -> int:
        return self._code

    def userInfo(self) -> dict[str, Any]:
        return self._info

    def localizedDescription(self) -> str:
        return str(self._info.get("NSLocalizedDescription", f"{self._domain} error {self._code}"))

    def __repr__(self) -> str:
        return f"Error Domain={self._domain} Code={self._code} {self.localizedDescription()!r}"
