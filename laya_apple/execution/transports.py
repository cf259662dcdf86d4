"""The two ways a lane reaches a backend: a thread of this process, or a worker process."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from laya_apple.backends.base import Backend, BackendInfo
from laya_apple.errors import BackendUnavailableError, LayaAppleError
from laya_apple.execution import wire
from laya_apple.execution.loading import LoadRequest, load_backend, run_forward
from laya_apple.platform import current_platform

if TYPE_CHECKING:
    from laya_apple.execution.adaptive import Adaptive
    from laya_apple.execution.lane import Job, Lane

WORKER_MODULE = "laya_apple.execution.worker_main"


class ThreadTransport:
    """A backend on a thread of its own, which loads it, runs it and closes it."""

    depth = 1

    def __init__(self, request: LoadRequest, adaptive: Adaptive | None = None) -> None:
        self.ready: Future[BackendInfo] = Future()
        self._request = request
        self._adaptive = adaptive
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._abandoned = False

    @property
    def thread_ident(self) -> int | None:
        return self._thread.ident if self._thread else None

    def start(self, lane: Lane) -> None:
        # A daemon, so that a forward that never returns cannot keep the process alive.
        self._thread = threading.Thread(
            target=self._run, args=(lane,), name=f"laya-{lane.device}", daemon=True
        )
        self._thread.start()

    def accepts_behind_another(self, job: Job) -> bool:
        return False

    def prepare(self, job: Job) -> None:
        """Nothing to do: the rows are used as they are."""

    def send(self, job: Job) -> None:
        self._inbox.put(job)

    def abandon(self) -> None:
        """A running forward cannot be stopped; its answer is dropped and its thread ends with it."""
        self._abandoned = True
        self._inbox.put(None)

    def stop(self, grace_s: float) -> None:
        self._inbox.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # An abandoned thread may be stuck for good; a short wait only spares a healthy one.
            thread.join(0.1 if self._abandoned else grace_s)

    def describe(self) -> dict[str, Any]:
        return {"placement": "thread", "pid": os.getpid()}

    def _run(self, lane: Lane) -> None:
        try:
            backend = load_backend(self._request, current_platform())
            if self._adaptive is not None:
                self._adaptive.attach(backend)
            backend.warm()
        except BaseException as error:  # reraise: through the Future, to whoever loads
            self.ready.set_exception(error)
            return
        self.ready.set_result(backend.info)
        try:
            while (job := self._inbox.get()) is not None:
                self._serve(lane, backend, job)
                del job
        finally:
            if self._adaptive is not None:
                self._adaptive.close()
            backend.close()

    def _serve(self, lane: Lane, backend: Backend, job: Job) -> None:
        start_ns = time.monotonic_ns()
        try:
            if self._adaptive is not None:
                outputs = self._adaptive.run(backend, lane.device, job)
            else:
                outputs = run_forward(backend, lane.device, job.rows)
        except LayaAppleError as error:  # reraise: through the Future of this request
            lane.finished(start_ns, time.monotonic_ns(), error)
            return
        lane.finished(start_ns, time.monotonic_ns(), outputs)


class ProcessTransport:
    """A backend in a worker process, so that its work never holds this process's interpreter lock.

    The worker is a fresh interpreter (the caller's main module is not imported again) holding one end each
    of two private socket pairs, requests and replies. It ignores Ctrl-C, which is this process's to handle,
    and ends by itself when the sockets close or this process dies.
    """

    depth = 2

    def __init__(self, request: LoadRequest, *, send_timeout_s: float) -> None:
        self.ready: Future[BackendInfo] = Future()
        self._request = request
        self._send_timeout_s = send_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._replies: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loaded = False
        self._fault = ""
        self.load_warnings: list[tuple[str, str]] = []
        """(category name, message) of the runtime's own warnings at load, for the parent to issue again."""

    @property
    def thread_ident(self) -> int | None:
        return self._thread.ident if self._thread else None

    def start(self, lane: Lane) -> None:
        if not sys.executable:
            raise BackendUnavailableError("sys.executable is empty, so no worker process can be started")
        # One pair each way. On Linux, reading from a pair wakes whoever waits for data on its other end too,
        # so with a single one every request would wake this side's reader once for nothing.
        requests, their_requests = socket.socketpair()
        replies, their_replies = socket.socketpair()
        with their_requests, their_replies:
            for end in (requests, their_replies):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.BUFFER_BYTES)
            _limit_send_time(requests, self._send_timeout_s)
            self._requests, self._replies = requests, replies
            try:
                self._process = _spawn(their_requests.fileno(), their_replies.fileno())
            except OSError as error:  # reraise: names what could not be started
                requests.close()
                replies.close()
                raise BackendUnavailableError(
                    f"the {lane.device} worker process could not be started: {error}"
                ) from error
        self._thread = threading.Thread(
            target=self._run, args=(lane,), name=f"laya-{lane.device}-reader", daemon=True
        )
        self._thread.start()

    def accepts_behind_another(self, job: Job) -> bool:
        """A large frame waits until the worker is reading, or sending it could block the caller."""
        return len(job.frame) <= wire.SMALL_BYTES

    def prepare(self, job: Job) -> None:
        job.frame = wire.pack_rows(job.request_id, job.rows)

    def send(self, job: Job) -> None:
        assert self._requests is not None
        frame, job.frame = job.frame, b""
        try:
            self._requests.sendall(frame)
        except BlockingIOError:  # reraise: by the reader thread, which sees the worker end
            self._fault = f"did not read a request within {self._send_timeout_s:g} s"
            self.abandon()
        except OSError:  # reraise: by the reader thread, which sees the worker end
            self.abandon()

    def abandon(self) -> None:
        """Kill the worker; its reader thread then sees the socket end."""
        if self._process is not None:
            self._process.kill()

    def stop(self, grace_s: float) -> None:
        process, requests, replies = self._process, self._requests, self._replies
        if process is None or requests is None or replies is None:
            return
        with contextlib.suppress(OSError):
            requests.shutdown(socket.SHUT_RDWR)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:  # cleanup: it had its time
            process.kill()
            process.wait()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(grace_s)
        requests.close()
        replies.close()

    def describe(self) -> dict[str, Any]:
        return {"placement": "process", "pid": self._process.pid if self._process else None}

    def _run(self, lane: Lane) -> None:
        assert self._requests is not None
        assert self._replies is not None
        reader = wire.FrameReader(self._replies)
        with contextlib.suppress(OSError):  # A worker that died at once is noticed just below.
            self._requests.sendall(wire.frame(pickle.dumps(self._request)))
        error: LayaAppleError | None = None
        while (payload := reader.next()) is not None:
            if not self._loaded:
                error = self._greeted(payload)
                continue
            _, start_ns, end_ns, answer = wire.unpack_reply(payload)
            lane.finished(start_ns, end_ns, answer)
        death = BackendUnavailableError(self._obituary(lane.device))
        if not self._loaded:
            self.ready.set_exception(error or death)
        lane.die(death)

    def _greeted(self, payload: bytes) -> LayaAppleError | None:
        answer, self.load_warnings = pickle.loads(payload)
        if isinstance(answer, BackendInfo):
            self._loaded = True
            self.ready.set_result(answer)
            return None
        return wire.as_error(answer)

    def _obituary(self, device: str) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:  # closed: it let go of the socket but lives on, so it is ended
            self._process.kill()
            code = self._process.wait()
        how = f"exited with {code}"
        if code < 0:
            how = f"was killed by {_signal_name(-code)}"
        if self._fault:
            how = self._fault
        return f"the {device} worker (process {self._process.pid}) {how}; load the model again"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # closed: a signal without a name is shown by its number
        return f"signal {number}"


def _limit_send_time(sock: socket.socket, seconds: float) -> None:
    """A send that takes longer fails; a worker that never reads must not hold a caller for ever."""
    whole = int(seconds)
    microseconds = max(int((seconds - whole) * 1e6), 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, microseconds))


def _spawn(requests: int, replies: int) -> subprocess.Popen[bytes]:
    path = [entry or os.getcwd() for entry in sys.path]
    return subprocess.Popen(
        # -P: the worker's path is this process's path, not the current directory.
        [sys.executable, "-P", "-m", WORKER_MODULE, str(requests), str(replies), str(os.getpid())],
        pass_fds=(requests, replies),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        # A process group of its own: Ctrl-C in a terminal goes to this process alone.
        process_group=0,
    )
