"""The live server: this machine only, reading only, and nothing but the page."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crsam.errors import UserError
from crsam.lab.report.page.server import Server, Watcher
from lab.report.folders import add_line, make_run

SECRET = "a secret outside"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A watched folder with a run, and links out of it."""
    inside = tmp_path / "inside"
    run = make_run(inside / "sam/seed0", "sam")
    (tmp_path / "secret.json").write_text(json.dumps({"command": SECRET, "hardware": SECRET}))
    (run / "environment.json").unlink()
    (run / "environment.json").symlink_to(tmp_path / "secret.json")
    outside = make_run(tmp_path / "outside/seed0", "sgd")
    (outside / "recipe.toml").write_text(f'method = "{SECRET}"\n')
    (inside / "linked").symlink_to(tmp_path / "outside")
    (inside / "notes.txt").write_text(SECRET)
    return inside


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: Server, path: str = "/", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_it_answers_with_the_page_and_its_content(server: Server) -> None:
    answer, page = ask(server)
    assert answer.status == 200
    assert b'data-live="true"' in page
    assert b"connect-src 'self'" in page
    answer, body = ask(server, "/content.json")
    (run,) = json.loads(body)["runs"]
    assert run["name"] == "seed0"
    assert run["state"] == "done"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in answer.headers
    head, nothing = ask(server, "/content.json", "HEAD")
    assert (head.status, nothing) == (200, b"")
    assert head.headers["Content-Length"] == answer.headers["Content-Length"]


@pytest.mark.parametrize(
    "path",
    [
        "/notes.txt", "/../secret.json", "/%2e%2e/secret.json", "/..%2fsecret.json",
        "/%252e%252e%252fsecret.json", "/sam/seed0/environment.json", "/linked/seed0/recipe.toml",
        "/..\\secret.json", "//etc/passwd", "/etc/passwd", "/content.json/../notes.txt",
        "/%00", "/content.json%00", "/.", "/content.json?x=../notes.txt", "file:///etc/passwd",
        "http://evil.example/", "*", "content.json",
    ],
)  # fmt: skip
def test_no_file_can_be_had_by_any_name(server: Server, path: str) -> None:
    answer, body = ask(server, path)
    assert answer.status in (404, 421)
    assert SECRET.encode() not in body
    assert b"root:" not in body


def test_what_links_out_of_the_folder_is_in_no_answer(server: Server) -> None:
    for path in ("/", "/content.json"):
        body = ask(server, path)[1]
        assert SECRET.encode() not in body
        assert b"link out of the folder" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_written(server: Server, folder: Path, method: str) -> None:
    before = sorted(folder.rglob("*"))
    for path in ("/", "/content.json", "/notes.txt"):
        answer, _ = ask(server, path, method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"
    assert sorted(folder.rglob("*")) == before
    assert (folder / "notes.txt").read_text() == SECRET


def test_other_hosts_are_refused(server: Server) -> None:
    port = server.server_port
    for host in (
        "evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "localhost:1",
        f"localhost:{port}.evil.example", "", f"0.0.0.0:{port}", f"x@localhost:{port}", "localhost",
    ):  # fmt: skip
        for path in ("/", "/content.json"):
            answer, body = ask(server, path, Host=host)
            assert answer.status == 421, host
            assert b"seed0" not in body
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"LocalHost:{port}"):
        assert ask(server, Host=host)[0].status == 200


def test_a_request_without_host_or_with_two_is_refused(server: Server) -> None:
    host = f"Host: localhost:{server.server_port}\r\n"
    for head in ("", host + "Host: evil.example\r\n", host + host):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as one:
            one.sendall(f"GET / HTTP/1.1\r\n{head}\r\n".encode())
            assert b" 421 " in one.recv(200).splitlines()[0]


def test_it_listens_on_this_machine_only(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in addresses - {"127.0.0.1", "127.0.1.1", "::1"}:
        with pytest.raises((ConnectionRefusedError, TimeoutError)):
            socket.create_connection((address, server.server_port), timeout=2)


def test_news_is_told_and_what_is_known_is_not_sent_again(server: Server, folder: Path) -> None:
    first, _ = ask(server, "/content.json")
    tag = first.headers["ETag"]
    same, nothing = ask(server, "/content.json", If_None_Match=tag)
    assert (same.status, nothing) == (304, b"")
    add_line(folder / "sam/seed0", '{"kind": "train", "epoch": 7, "loss": 0.125}\n')
    make_run(folder / "crsam/seed0", "crsam")
    news, body = ask(server, "/content.json", If_None_Match=tag)
    assert news.status == 200
    runs = json.loads(body)["runs"]
    assert [run["name"] for run in runs] == ["sam/seed0", "crsam/seed0"]
    assert runs[0]["series"]["train"]["y"]["loss"][-1] == 0.125
    (folder / "sam/seed0/result.json").unlink()
    assert json.loads(ask(server, "/content.json")[1])["runs"][0]["state"] == "unfinished"


def test_runs_in_which_nothing_changed_are_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crsam.lab.report.page import server as module

    make_run(folder / "crsam/seed0", "crsam")
    read: list[str] = []
    real = module.read_run
    monkeypatch.setattr(
        module, "read_run", lambda f, *a: (read.append(f.parent.name), real(f, *a))[1]
    )
    watcher = Watcher(folder)
    watcher.answer()
    watcher.answer()
    assert sorted(read) == ["crsam", "sam"]
    add_line(folder / "crsam/seed0", "{}\n")
    watcher.answer()
    assert read[2:] == ["crsam"]


def test_an_empty_folder_is_waited_for(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    assert watcher.content()["runs"] == []
    make_run(tmp_path / "seed0")
    assert len(watcher.content()["runs"]) == 1


def test_many_quick_refreshes_leave_no_thread_and_no_file_open(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    ask(server)
    before = held()
    for k in range(50):
        ask(server, "/content.json" if k % 2 else "/")
        half = socket.create_connection(("127.0.0.1", server.server_port))
        half.sendall(b"GET /")  # someone who reloads before the answer
        half.close()
    until = time.monotonic() + 10
    while held() > before and time.monotonic() < until:
        time.sleep(0.02)
    after = held()
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_and_a_missing_folder_are_told(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"port {server.server_port} is in use"):
        Server(tmp_path, server.server_port)
    with pytest.raises(UserError, match="there is no folder"):
        Server(tmp_path / "nowhere", 0)


def test_the_command_says_where_and_ends_with_ctrl_c(folder: Path) -> None:
    command = [sys.executable, "-u", "-m", "crsam", "report", "--serve", str(folder), "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    said = running.stdout.readline()
    port = int(said.split("http://127.0.0.1:")[1].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()
    running.send_signal(2)
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (0, "")
