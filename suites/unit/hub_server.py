"""A Hugging Face hub of one repository on the loopback interface, as far as the library asks for it."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FakeHub:
    """Serves ``folder`` as ``repo`` at ``revision``; ``requests`` lists (method, path)."""

    def __init__(self, folder: Path, repo: str, revision: str) -> None:
        self.requests: list[tuple[str, str]] = []
        files = {
            path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()
        }
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Quiet."""

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                path = self.path.split("?")[0]
                hub.requests.append((self.command, path))
                resolve = f"/{repo}/resolve/{revision}/"
                if path.startswith(resolve) and path[len(resolve) :] in files:
                    content = files[path[len(resolve) :]].read_bytes()
                    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": revision}
                elif path == f"/api/models/{repo}/revision/{revision}":
                    siblings = [{"rfilename": name} for name in files]
                    content = json.dumps({"id": repo, "sha": revision, "siblings": siblings}).encode()
                    headers = {"Content-Type": "application/json"}
                elif path == f"/api/models/{repo}/tree/{revision}":
                    tree = [
                        {"type": "file", "path": name, "size": file.stat().st_size, "oid": "0" * 40}
                        for name, file in files.items()
                    ]
                    content = json.dumps(tree).encode()
                    headers = {"Content-Type": "application/json"}
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloaded(self) -> list[str]:
        """Names of the files that were fetched, sorted."""
        return sorted(
            path.split("/", 5)[5] for method, path in self.requests if method == "GET" and "/resolve/" in path
        )
