"""Files are replaced, and nothing else is."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crsam._files import write
from crsam.errors import UserError
from crsam.lab.cli import app
from lab.report.folders import make_run


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    """A node of its own that is the same device as ``/dev/null``."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")


def listening(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def link(path: Path) -> None:
    (path.parent / "target").write_bytes(b"somebody else's")
    path.symlink_to("target")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


NODES = {
    "pipe": (pipe, "it is a pipe"),
    "device": (device, "it is a device"),
    "socket": (listening, "it is a socket"),
    "folder": (Path.mkdir, "it is a folder"),
    "link": (link, "it is a symbolic link to target"),
    "dangling link": (dangling, "it is a symbolic link to nowhere"),
}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("suffix", ["", ".tmp"], ids=["itself", "beside"])
def test_what_is_not_a_regular_file_is_not_replaced(name: str, suffix: str, tmp_path: Path) -> None:
    make, said = NODES[name]
    node = tmp_path / f"report.html{suffix}"
    make(node)
    before = node.lstat()
    with pytest.raises(UserError, match=said) as caught:
        write(tmp_path / "report.html", b"new")
    assert str(caught.value).startswith(f"cannot write {node}: {said}")
    after = node.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    if name == "link":
        assert (tmp_path / "target").read_bytes() == b"somebody else's"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_and_what_a_killed_writer_left_beside_it_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    (tmp_path / "report.html.tmp").write_bytes(b"half")
    for content in (b"one", b"two"):
        write(file, content)
        assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", NODES)
def test_report_refuses_them_in_one_line(name: str, tmp_path: Path) -> None:
    make, said = NODES[name]
    make_run(tmp_path / "run/seed0", "sam")
    make(tmp_path / "out")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    assert done.exit_code != 0
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith(f"cannot write {tmp_path / 'out'}: {said}")
