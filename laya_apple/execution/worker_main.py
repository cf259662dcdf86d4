"""The worker process: ``python -m laya_apple.execution.worker_main REQUESTS_FD REPLIES_FD PARENT_PID``.

Loads one backend as the first frame says, answers with its facts, then serves one request at a time until
its requests end. Started by ``transports.ProcessTransport`` only.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TextIO

from laya_apple.errors import LayaAppleError
from laya_apple.platform import current_platform

PARENT_POLL_S = 0.5
_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def main(argv: list[str]) -> int:
    """Serve until the parent closes its end, or dies. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive_not, args=(int(argv[2]),), name="parent-watch", daemon=True).start()
    platform = current_platform()
    # Imported here, after the platform's hook has run.
    from laya_apple.execution import wire
    from laya_apple.execution.loading import load_backend, run_forward

    reader = wire.FrameReader(socket.socket(fileno=int(argv[0])))
    replies = socket.socket(fileno=int(argv[1]))
    first = reader.next()
    if first is None:
        return 0
    request = pickle.loads(first)
    own = _OwnWarnings()
    try:
        with own:
            backend = load_backend(request, platform)
            backend.warm()
    except Exception as error:  # reraise: in the parent, as the same type
        replies.sendall(wire.frame(pickle.dumps((wire.as_failure(error), own.caught))))
        return 1
    # What loading has made stays; collections need not walk it again.
    gc.collect()
    gc.freeze()
    replies.sendall(wire.frame(pickle.dumps((backend.info, own.caught))))
    while (payload := reader.next()) is not None:
        request_id, rows = wire.unpack_rows(payload)
        start_ns = time.monotonic_ns()
        try:
            outputs = run_forward(backend, request.device, rows)
            reply = wire.pack_outputs(request_id, start_ns, time.monotonic_ns(), outputs)
        except LayaAppleError as error:  # reraise: in the parent, through the request's Future
            reply = wire.pack_failure(request_id, start_ns, time.monotonic_ns(), error)
        try:
            replies.sendall(reply)
        except OSError:  # closed: the parent is gone, and this process with it
            break
    backend.close()
    return 0


class _OwnWarnings:
    """Keeps the runtime's own warnings for the parent, which issues them again; shows all others here."""

    def __init__(self) -> None:
        self.caught: list[tuple[str, str]] = []
        self._show = warnings.showwarning

    def __enter__(self) -> None:
        self._show = warnings.showwarning
        warnings.showwarning = self._handle

    def __exit__(self, *_: object) -> None:
        warnings.showwarning = self._show

    def _handle(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if filename.startswith(_PACKAGE):
            self.caught.append((category.__name__, str(message)))
        else:
            self._show(message, category, filename, lineno, file, line)


def _outlive_not(parent_pid: int) -> None:
    """End this process once its parent is gone, even while a forward hangs."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
