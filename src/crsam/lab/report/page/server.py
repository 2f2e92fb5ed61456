"""The page of a folder of running experiments, live, for this machine only.

It answers two addresses with what it has read itself, the page and its content: no name in a
request is ever looked up on the disk. What runs link to outside the folder is not read.
"""

from __future__ import annotations

import errno
import hashlib
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from crsam.errors import UserError
from crsam.lab.report.page import LARGEST, POINTS, as_json, page
from crsam.lab.report.page.content import Content, content_of
from crsam.lab.report.runs import Run, read_run, run_folders, short_names

LOCAL = ("localhost", "127.0.0.1")
"""Names by which a browser on this machine may ask; others may be a stranger's that points here."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Watcher:
    """Reads a folder again and again; runs in which nothing changed are not read twice.

    Args:
        folder: Of runs; it may still be empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[Any, Run]] = {}
        self._stamps: Any = None
        self._content: Content = {}
        self._answer = (b"", "")

    def content(self) -> Content:
        """What the page shows now."""
        with self._lock:
            self._look()
            return self._content

    def answer(self) -> tuple[bytes, str]:
        """The content as JSON, and its ETag."""
        with self._lock:
            self._look()
            return self._answer

    def _look(self) -> None:
        folders = [f for f in run_folders(self.folder, self.folder) if f != self.folder or _any(f)]
        stamps = {folder: _stamp(folder) for folder in folders}
        if stamps == self._stamps:
            return
        known = {}
        for folder, name in zip(folders, short_names(folders)):
            before = self._known.get(folder)
            stamp = (stamps[folder], name)
            fresh = before is None or before[0] != stamp
            run = read_run(folder, name, self.folder) if fresh or before is None else before[1]
            known[folder] = (stamp, run)
        self._known, self._stamps = known, stamps
        for most in POINTS:
            runs = [run for _, run in known.values()]
            self._content = content_of(runs, title=self.folder.name, most=most)
            body = as_json(self._content).encode()
            if len(body) < LARGEST:
                break
        self._answer = body, f'"{hashlib.sha256(body).hexdigest()[:20]}"'


class Server(ThreadingHTTPServer):
    """Answers on this machine's own address and no other.

    Args:
        folder: To watch.
        port: 0: any that is free.

    Raises:
        UserError: If there is no such folder, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: str | Path, port: int) -> None:
        if not Path(folder).is_dir():
            raise UserError(f"there is no folder {folder}")
        self.watcher = Watcher(Path(folder))
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            reason = "is in use" if error.errno == errno.EADDRINUSE else "is not allowed"
            raise UserError(f"port {port} {reason}: give another --port, or 0 for any") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says what went wrong, unless it is only that someone did not wait for the answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page and its content; everything else is refused."""

    server: Server
    server_version = "crsam"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if not self._is_local():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "ask for 127.0.0.1 or localhost")
        elif self.path == "/":
            text = page(self.server.watcher.content(), live=True)
            self._send(HTTPStatus.OK, text, "text/html; charset=utf-8", body)
        elif self.path == "/content.json":
            text, tag = self.server.watcher.answer()
            same = self.headers.get("If-None-Match") == tag
            status = HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK
            self._send(status, b"" if same else text, "application/json", body, ETag=tag)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only the page itself")

    def __getattr__(self, name: str) -> Callable[[], None]:
        # The base class looks for do_POST, do_PUT, … and would answer that it knows no such thing.
        if name.startswith("do_"):
            return lambda: self._refuse(
                HTTPStatus.METHOD_NOT_ALLOWED, "read only", Allow="GET, HEAD"
            )
        raise AttributeError(name)

    def _is_local(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        allowed = {f"{name}:{self.server.server_port}" for name in LOCAL}
        if self.server.server_port == 80:
            allowed |= set(LOCAL)
        return len(hosts) == 1 and hosts[0].lower() in allowed

    def _refuse(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        text = f"{status.value} {status.phrase}: {reason}\n".encode()
        self._send(status, text, "text/plain; charset=utf-8", self.command != "HEAD", **headers)

    def _send(self, status: HTTPStatus, text: bytes, kind: str, body: bool, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request every two seconds is no news."""


def serve(folder: str | Path, port: int, said: Callable[[str], None] = print) -> None:
    """Serves the live page of a folder until Ctrl-C.

    Args:
        folder: Of runs; it may still be empty.
        port: 0: any that is free.
        said: Told the address once it answers.
    """
    with Server(folder, port) as server:
        said(f"{folder} is watched at {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            said("ended")


def _any(folder: Path) -> bool:
    try:
        return any(entry.name != ".lock" for entry in folder.iterdir())
    except OSError:
        return False


def _stamp(folder: Path) -> list[Any]:
    """Changes whenever a file in the folder does."""
    try:
        return [(entry.name, *_written(entry)) for entry in sorted(folder.iterdir())]
    except OSError:
        return []


def _written(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:  # a link to nothing, or gone in between
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
