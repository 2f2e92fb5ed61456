"""Archives from servers that are helpful, forgetful, broken or absent."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crsam.errors import UserError
from crsam.lab.data import download
from crsam.lab.data.cifar import CIFAR10, read_cifar
from crsam.lab.data.download import Archive, obtain
from lab.data.cifar_files import write_cifar

FILES = {"one": np.random.default_rng(0).bytes(300_000), "two": b"2", "meta": b"names"}


@dataclass
class Server:
    """What is served and how; and what was asked for."""

    content: bytes
    address: str = ""
    ranges: bool = True
    answers: list[int] = field(default_factory=list)
    """Codes of the first answers, which have no content."""
    break_after: list[int] = field(default_factory=list)
    """Bytes after which the first answers with content break off."""
    stalls: int = 0
    """How many of them then say nothing instead, and keep the connection."""
    asked: list[str | None] = field(default_factory=list)
    """The range of each request."""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers["Range"]
        self.asked.append(wanted)
        if self.answers:
            request.send_error(self.answers.pop(0))
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        start = start if self.ranges else 0
        if start and start >= len(self.content):
            request.send_error(416)
            return
        rest = self.content[start:]
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(rest)))
        if start:
            end, total = len(self.content) - 1, len(self.content)
            request.send_header("Content-Range", f"bytes {start}-{end}/{total}")
        request.end_headers()
        request.wfile.write(rest[: self.break_after.pop(0)] if self.break_after else rest)
        if self.stalls:
            self.stalls -= 1
            time.sleep(0.6)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setenv("no_proxy", "*")
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(content: bytes, **how: Any) -> Server:
        server = Server(content, **how)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None: ...

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.address = f"http://127.0.0.1:{http.server_port}/set.tar.gz"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        running.append((http, thread))
        return server

    yield start
    for http, thread in running:
        http.shutdown()
        thread.join()
        http.server_close()


def packed(files: dict[str, bytes] = FILES, folder: str = "set", **links: str) -> bytes:
    """An archive of these files, and of links from a name to a target."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}" if folder else name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return memory.getvalue()


GOOD = packed()
assert len(GOOD) > download.BLOCK  # several blocks


def archive_at(address: str, content: bytes = GOOD) -> Archive:
    return Archive(address, hashlib.md5(content).hexdigest(), "set", tuple(FILES))


def assert_unpacked(root: Path, *beside: str) -> None:
    """The files are there, and nothing else is."""
    assert {p.name: p.read_bytes() for p in (root / "set").iterdir()} == FILES
    assert sorted(p.name for p in root.iterdir()) == sorted(["set", *beside])


def error_of(archive: Archive, root: Path) -> str:
    with pytest.raises(UserError) as caught:
        obtain(archive, root, waits=(0, 0))
    assert "\n" not in str(caught.value)
    assert not (root / "set").exists()
    return str(caught.value)


def test_an_archive_is_fetched_and_unpacked_and_leaves_nothing_behind(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(GOOD)
    root = tmp_path / "made" / "for it"
    assert obtain(archive_at(server.address), root) == root / "set"
    assert_unpacked(root)
    assert server.asked == [None]


def test_what_came_before_is_not_fetched_again(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(GOOD)
    (tmp_path / "set.tar.gz.part").write_bytes(GOOD[:1000])
    obtain(archive_at(server.address), tmp_path)
    assert_unpacked(tmp_path)
    assert server.asked == ["bytes=1000-"]


def test_a_server_without_ranges_starts_over(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(GOOD, ranges=False)
    (tmp_path / "set.tar.gz.part").write_bytes(GOOD[:1000])
    obtain(archive_at(server.address), tmp_path)
    assert_unpacked(tmp_path)
    assert server.asked == ["bytes=1000-"]


def test_a_broken_connection_is_resumed_as_often_as_something_came(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(GOOD, break_after=[40_000] * 5)
    obtain(archive_at(server.address), tmp_path, waits=(0, 0))
    assert_unpacked(tmp_path)
    assert server.asked == [None, *(f"bytes={40_000 * i}-" for i in range(1, 6))]


def test_a_broken_connection_without_ranges_is_tried_again(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(GOOD, ranges=False, break_after=[40_000])
    obtain(archive_at(server.address), tmp_path, waits=(0, 0))
    assert_unpacked(tmp_path)


@pytest.mark.parametrize("ranges", [True, False])
def test_it_gives_up_where_no_more_comes(
    serve: Callable[..., Server], tmp_path: Path, ranges: bool
) -> None:
    server = serve(GOOD, ranges=ranges, break_after=[40_000] + [0 if ranges else 40_000] * 50)
    message = error_of(archive_at(server.address), tmp_path)
    assert f"broke off after 40000 of {len(GOOD)} bytes" in message
    assert len(server.asked) == 4  # the one that brought something, and three that did not
    assert (tmp_path / "set.tar.gz.part").stat().st_size == 40_000


def test_a_connection_that_says_nothing_counts_as_broken(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server = serve(GOOD, break_after=[40_000], stalls=1)
    obtain(archive_at(server.address), tmp_path, waits=(0,))
    assert_unpacked(tmp_path)
    assert server.asked == [None, "bytes=40000-"]


def test_a_busy_server_is_asked_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(GOOD, answers=[503, 429])
    obtain(archive_at(server.address), tmp_path, waits=(0, 0))
    assert_unpacked(tmp_path)
    assert len(server.asked) == 3


def test_waits_grow_from_try_to_try(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    obtain(archive_at(serve(GOOD, answers=[503] * 3).address), tmp_path)
    assert waited == [1, 2, 4]


def test_an_address_that_does_not_exist_is_not_asked_again(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(GOOD, answers=[404])
    assert "404" in error_of(archive_at(server.address), tmp_path)
    assert len(server.asked) == 1


def test_without_a_network_the_error_says_what_to_fetch_and_where_to_put_it(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    archive = archive_at("http://127.0.0.1:1/set.tar.gz")
    message = error_of(archive, tmp_path)
    for part in (archive.address, "by hand", str(tmp_path), "set.tar.gz", "refused"):
        assert part in message
    (tmp_path / "set.tar.gz").write_bytes(GOOD)  # which is what it says
    obtain(archive, tmp_path)
    assert_unpacked(tmp_path, "set.tar.gz")


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    changed = GOOD[:-20] + bytes(20)
    server = serve(changed)
    message = error_of(archive_at(server.address), tmp_path)
    assert hashlib.md5(GOOD).hexdigest() in message
    assert hashlib.md5(changed).hexdigest() in message
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_archive_put_there_by_hand_is_refused_and_kept(tmp_path: Path) -> None:
    mine = tmp_path / "set.tar.gz"
    mine.write_bytes(b"something else")
    message = error_of(archive_at("http://127.0.0.1:1/set.tar.gz"), tmp_path)
    assert f"{mine} is not the archive" in message
    assert mine.read_bytes() == b"something else"


@pytest.mark.parametrize("before", [b"x" * 1000, b"x" * len(GOOD), b"x" * (len(GOOD) + 1)])
def test_a_part_of_another_file_is_replaced(
    serve: Callable[..., Server], tmp_path: Path, before: bytes
) -> None:
    server = serve(GOOD)
    (tmp_path / "set.tar.gz.part").write_bytes(before)
    obtain(archive_at(server.address), tmp_path)
    assert_unpacked(tmp_path)
    assert server.asked == [f"bytes={len(before)}-", None]


def test_a_part_that_is_whole_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(GOOD)
    obtain(archive_at("http://127.0.0.1:1/set.tar.gz"), tmp_path, waits=())
    assert_unpacked(tmp_path)


def test_only_the_expected_files_leave_the_archive(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    files = {f"set/{name}": content for name, content in FILES.items()}
    evil = {"../up": b"x", "set/../../up": b"x", str(outside): b"x", "set/more": b"x", "one": b"x"}
    content = packed({**evil, **files}, folder="")
    root = tmp_path / "root"
    obtain(archive_at(serve(content).address, content), root)
    assert_unpacked(root)
    assert [p.name for p in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("links", [{}, {"two": "/etc/passwd"}, {"two": "one"}], ids=str)
def test_an_archive_without_one_of_the_files_is_refused(
    serve: Callable[..., Server], tmp_path: Path, links: dict[str, str]
) -> None:
    content = packed({"one": b"1", "meta": b""}, **links)
    message = error_of(archive_at(serve(content).address, content), tmp_path)
    assert "lacks set/two" in message
    assert [p.name for p in tmp_path.iterdir()] == ["set.tar.gz.part"]


def test_a_set_that_is_half_unpacked_is_never_taken_for_the_set(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(GOOD)
    copied: list[str] = []

    def interrupted(source: Any, target: Any) -> None:
        if copied:
            raise KeyboardInterrupt
        copied.append(target.name)
        target.write(source.read())

    monkeypatch.setattr(shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        obtain(archive_at(server.address), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.tar.gz.part"]
    monkeypatch.undo()
    obtain(archive_at(server.address), tmp_path)
    assert_unpacked(tmp_path)
    assert server.asked == [None]  # the archive was whole


def test_of_two_at_once_only_one_fetches(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(GOOD, break_after=[1000], stalls=1)  # long enough for the other to come
    archive = archive_at(server.address)
    both = [
        threading.Thread(target=obtain, args=(archive, tmp_path), kwargs={"waits": (0,)})
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert_unpacked(tmp_path)
    assert server.asked == [None, "bytes=1000-"]


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "data"
    assert f"{root} cannot take the files" in error_of(archive_at("http://127.0.0.1:1/x"), root)


def test_cifar_is_fetched_once_and_then_found(serve: Callable[..., Server], tmp_path: Path) -> None:
    write_cifar(tmp_path / "made", each=1)
    files = {p.name: p.read_bytes() for p in (tmp_path / "made").iterdir()}
    content = packed({**files, "readme.html": b"not wanted"}, CIFAR10.archive.folder)
    server = serve(content)
    archive = replace(CIFAR10.archive, address=server.address, md5=hashlib.md5(content).hexdigest())
    layout = replace(CIFAR10, archive=archive)
    with pytest.raises(UserError, match="download"):
        read_cifar(layout, tmp_path / "root")
    for _ in range(2):
        assert len(read_cifar(layout, tmp_path / "root", download=True).train) == 5
    assert len(server.asked) == 1
    assert not (tmp_path / "root" / archive.folder / "readme.html").exists()


def test_progress_is_in_bytes_and_starts_at_what_is_there(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    moved: list[int] = []

    @contextmanager
    def bar(label: str, total: int, done: int = 0) -> Iterator[Any]:
        seen.append((label, total, done))
        yield lambda steps=1: moved.append(steps)

    monkeypatch.setattr(download, "bar", bar)
    (tmp_path / "set.tar.gz.part").write_bytes(GOOD[:1000])
    obtain(archive_at(serve(GOOD).address), tmp_path)
    assert seen == [("fetching set.tar.gz", len(GOOD), 1000), ("unpacking set.tar.gz", 3, 0)]
    assert sum(moved) == len(GOOD) - 1000 + 3
