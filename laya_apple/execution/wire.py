"""Frames between a process and its worker, over private socket pairs.

A pair is made by the parent and one end is inherited by the worker alone: nothing else can connect to it,
so what comes out of it comes from this process's own child, the same interpreter. That is why pickle (set-up)
and marshal (requests: an order of magnitude fewer instructions than pickling dataclasses) are fit here.
"""

from __future__ import annotations

import marshal
import socket
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laya_apple import errors
from laya_apple.backends.base import RowOutput
from laya_apple.errors import LayaAppleError
from laya_apple.prompt.sequence import Row

SMALL_BYTES = 64 * 1024
"""A frame that surely fits the socket's buffer beside another one, so that sending it never blocks."""
BUFFER_BYTES = 256 * 1024
_HEADER = struct.Struct("=I")

Failure = tuple[str, str]
"""An exception as (type name, message)."""


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    return _HEADER.pack(len(payload)) + payload


class FrameReader:
    """Reads whole frames; one system call a frame when they are small, into memory that is used again."""

    def __init__(self, sock: socket.socket) -> None:
        self._receive = sock.recv_into
        self._buffer = bytearray(SMALL_BYTES)
        self._begin = self._end = 0

    def next(self) -> bytes | None:
        """The next frame's payload, or None when the other side is gone."""
        if self._begin == self._end:
            # First of all: whoever was just handed a result waits for this thread to let go of the
            # interpreter lock, which this call does.
            try:
                self._begin, self._end = 0, self._receive(self._buffer)
            except OSError:  # closed: the caller treats it as the other side's death
                return None
        if not self._fill(_HEADER.size):
            return None
        (size,) = _HEADER.unpack_from(self._buffer, self._begin)
        if not self._fill(_HEADER.size + size):
            return None
        begin = self._begin + _HEADER.size
        self._begin = begin + size
        return bytes(memoryview(self._buffer)[begin : self._begin])

    def _fill(self, wanted: int) -> bool:
        """Have at least ``wanted`` unread bytes in the buffer, contiguous."""
        if self._end - self._begin >= wanted:
            return True
        if self._begin + wanted > len(self._buffer):
            unread = self._buffer[self._begin : self._end]
            if wanted > len(self._buffer):
                self._buffer = bytearray(2 * wanted)
            self._buffer[: len(unread)] = unread
            self._begin, self._end = 0, len(unread)
        with memoryview(self._buffer) as view:
            while self._end - self._begin < wanted:
                try:
                    received = self._receive(view[self._end :])
                except OSError:  # closed: the caller treats it as the other side's death
                    return False
                if not received:
                    return False
                self._end += received
        return True


def pack_rows(request_id: int, rows: Sequence[Row]) -> bytes:
    """A request's frame."""
    return frame(marshal.dumps((request_id, [(row.ids, row.markers, row.qtype) for row in rows])))


def unpack_rows(payload: bytes) -> tuple[int, list[Row]]:
    request_id, rows = marshal.loads(payload)
    return request_id, [Row(ids, markers, qtype) for ids, markers, qtype in rows]


def pack_outputs(request_id: int, start_ns: int, end_ns: int, outputs: Sequence[RowOutput]) -> bytes:
    """A reply's frame: outputs as little blocks of float32."""
    rows = [(_float32(output.options), _float32(output.action)) for output in outputs]
    return frame(marshal.dumps((request_id, start_ns, end_ns, rows, None)))


def pack_failure(request_id: int, start_ns: int, end_ns: int, error: BaseException) -> bytes:
    return frame(marshal.dumps((request_id, start_ns, end_ns, (), as_failure(error))))


def unpack_reply(payload: bytes) -> tuple[int, int, int, list[RowOutput] | LayaAppleError]:
    """(request id, service start, service end, outputs or the error to raise)."""
    request_id, start_ns, end_ns, rows, failure = marshal.loads(payload)
    if failure is not None:
        return request_id, start_ns, end_ns, as_error(failure)
    outputs = [
        RowOutput(np.frombuffer(options, np.float32), np.frombuffer(action, np.float32))
        for options, action in rows
    ]
    return request_id, start_ns, end_ns, outputs


def as_failure(error: BaseException) -> Failure:
    return type(error).__name__, str(error)


def as_error(failure: Failure) -> LayaAppleError:
    """The runtime's own error of that name, else a LayaAppleError that names the type."""
    name, message = failure
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LayaAppleError):
        return kind(message)
    return LayaAppleError(f"{name}: {message}")


def _float32(values: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(values, dtype=np.float32).tobytes()
