"""Processes that decode: what they give does not depend on their number, and none is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from crsam.errors import UserError
from crsam.lab.data import workers
from crsam.lab.data.augment import Inception
from crsam.lab.data.decoded import Decoded
from crsam.lab.data.decoder import Source, View
from crsam.lab.data.folder import read_folder
from crsam.lab.data.images import Part
from crsam.lab.data.workers import Decoders, num_workers
from lab.data.photos import write_photos

PROGRAM = """
import os, sys, time
from pathlib import Path
from crsam.lab.data.decoder import Source, View
from crsam.lab.data.workers import Decoders

decoders = Decoders(View(8, 8), most=4, workers=2)
decoders.submit([Source(sys.argv[1])] * 4, [None] * 4)
decoders.collect()
pids = [process.pid for process in decoders._processes]
if "fork" in sys.argv:  # it holds the pipes open for a while
    pids.append(os.fork())
if pids[-1]:
    print(*pids, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=20)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(is_running, pids)):
        time.sleep(0.02)
    return not any(map(is_running, pids))


def photos(root: Path, workers: int) -> Decoded:
    images = read_folder(root, image_size=16, windows=Inception(), workers=workers).train
    assert isinstance(images, Decoded)
    return images


def test_what_is_shown_does_not_depend_on_the_number_of_processes(root: Path) -> None:
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    parts = [Part(rows[:37], rows[:37]), Part(rows[37:]), *[Part(rows[:9], rows[:9] + 7)] * 6]
    first, *others = ([*photos(root, count).stream(parts, 37)] for count in (0, 1, 3))
    assert len({shown.pixels.sum().item() for shown in first}) == 3
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a.pixels, b.pixels)
            assert torch.equal(a.rows, b.rows)


def test_a_large_set_is_held_by_the_work_of_many_and_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = workers._start
    monkeypatch.setattr(workers, "_start", lambda *fds: (started.append(1), real(*fds))[1])
    alone, many = (read_folder(root, image_size=16, workers=count).train for count in (0, 2))
    rows = torch.arange(60)
    assert torch.equal(alone.fetch(rows), many.fetch(rows))
    assert len(started) == 4  # two for each half


def test_batches_are_decoded_ahead_of_whoever_asks(root: Path) -> None:
    taken = []

    def parts() -> object:
        for i in range(20):
            taken.append(i)
            yield Part(torch.arange(3))

    stream = photos(root, 1).stream(parts(), 3)
    next(stream)
    assert len(taken) == workers.AHEAD + 1
    next(stream)
    assert len(taken) == workers.AHEAD + 2


def test_nothing_is_left_when_a_stream_is_given_up(root: Path) -> None:
    before = set(children(os.getpid()))  # of other tests: torch.compile has one
    stream = photos(root, 2).stream([Part(torch.arange(30))] * 9, 30)
    next(stream)
    pids = set(children(os.getpid())) - before
    assert len(pids) >= 2
    stream.close()
    assert not pids & set(children(os.getpid()))
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in photos(root, 2).stream([Part(torch.arange(3))], 3):
        pass
    assert len(os.listdir("/proc/self/fd")) == open_files


def children(pid: int) -> list[int]:
    """Ended ones that nobody waited for among them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def started(root: Path, *words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with two that decode, which knows nothing of ``__main__``."""
    path = os.pathsep.join(place for place in sys.path if place)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root / "train/ant/0.jpg"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert program.stdout is not None
    return program, [int(word) for word in program.stdout.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_their_parent_however_it_ends(
    number: signal.Signals, root: Path
) -> None:
    program, pids = started(root)
    assert len(pids) == 2
    assert all(map(is_running, pids))
    program.send_signal(number)
    told = program.communicate(timeout=20)[1]
    assert gone(pids)
    assert told.count("Traceback") == (number == signal.SIGINT)  # the parent's own, and no other


def test_they_end_even_if_a_fork_of_their_parent_lives_on(root: Path) -> None:
    program, (*pids, fork) = started(root, "fork")
    program.kill()
    try:
        assert gone(pids)
        assert is_running(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        program.communicate(timeout=20)


def test_signals_to_all_processes_do_not_reach_those_that_decode(root: Path) -> None:
    with Decoders(View(8, 8), most=4, workers=2) as decoders:
        for process in decoders._processes:
            for number in (signal.SIGINT, signal.SIGTERM):
                process.send_signal(number)
        decoders.submit([Source(str(root / "train/ant/0.jpg"))] * 4, [None] * 4)
        assert decoders.collect()[1] == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_process_that_was_killed_is_told_not_waited_for(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOOK", 0.05)
    os.mkfifo(tmp_path / "endless.tar")
    with Decoders(View(8, 8), most=2, workers=2) as decoders:
        decoders.submit([Source(str(tmp_path / "endless.tar"), 0, 9)] * 2, [None] * 2)
        time.sleep(0.5)  # for each of them to have its image
        for process in decoders._processes[:count]:
            process.kill()
        words = "one of 2 processes that decode images was ended by signal 9, perhaps for want of"
        with pytest.raises(UserError, match=words):
            decoders.collect()
        os.close(os.open(tmp_path / "endless.tar", os.O_RDWR))  # the other one comes to an end


def test_cores_are_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setattr(workers, "_quota", lambda: 9.5)
    assert num_workers() == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert num_workers() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert num_workers() == 1
