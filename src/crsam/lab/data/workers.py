"""Processes that decode images into shared memory, batches ahead of whoever asks for them."""

from __future__ import annotations

import marshal
import math
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data import decoder
from crsam.lab.data.decoder import TASK, Source, View

AHEAD = 4
"""Batches that are decoded, or being decoded, beyond the one in use."""
TASK_IMAGES = 8
"""Images of a task, at most: few enough that processes end a batch together."""
MOST_TASKS = 512
"""Of a batch: all that can wait, and their answers, must fit into a pipe."""
TASK_BYTES = 8192
"""Room for the description of an image; the longest path that there can be has 4096."""
KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "PILLOW_BLOCKS_MAX": "4",
}
"""Has the C library and Pillow keep freed memory for the next image: a quarter faster."""
LOOK = 1.0
"""Seconds of silence after which processes are looked at."""


class Failure(NamedTuple):
    """An image that could not be decoded."""

    position: int
    """In its batch."""
    reason: str
    wrong_size: bool


class Request(NamedTuple):
    """A batch that is being decoded."""

    sources: Sequence[Source]
    seeds: Sequence[int | None]
    slot: int
    waiting: set[int]
    """Numbers of the tasks that are not done."""
    failures: list[Failure]


class Decoders:
    """A number of processes and the memory that they write batches to.

    They end with this object, and with this process however it ends. Ctrl-C and SIGTERM do not
    reach them: whoever started them decides what becomes of the batch.

    Args:
        view: What is shown of the images.
        most: Images of the largest batch.
        workers: How many processes; 0: images are decoded here, when they are asked for.

    Example:
        >>> from crsam.lab.data.decoder import Source, View
        >>> with Decoders(View(8, 8), most=1, workers=0) as decoders:
        ...     decoders.submit([Source("nowhere.jpg")], [None])
        ...     decoders.collect()[1]
        [Failure(position=0, reason='No such file or directory', wrong_size=False)]
    """

    def __init__(self, view: View, most: int, workers: int) -> None:
        self.view, self.workers = view, workers
        self._slot_bytes = most * view.num_bytes
        self._told_bytes = most * TASK_BYTES
        self._requests: deque[Request] = deque()
        self._free = list(range(AHEAD))
        self._by_task: dict[int, Request] = {}
        self._num_tasks = 0
        if workers == 0:
            self._memory = mmap.mmap(-1, max(1, AHEAD * self._slot_bytes))
            return
        file = _memory_file(AHEAD * (self._slot_bytes + self._told_bytes))
        self._memory = mmap.mmap(file, 0)
        (tasks, self._tasks), (self._results, results) = os.pipe(), os.pipe()
        self._processes = [_start(file, tasks, results) for _ in range(workers)]
        for ours in (file, tasks, results):
            os.close(ours)
        self._end = weakref.finalize(self, _end, self._processes, self._tasks, self._results)

    def __enter__(self) -> Decoders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        if self.workers:
            self._end()

    def submit(self, sources: Sequence[Source], seeds: Sequence[int | None]) -> None:
        """Has a batch decoded.

        Args:
            sources: Of its images.
            seeds: Of their windows; see `decoder.pixels`.
        """
        request = Request(sources, seeds, self._free.pop(), set(), [])
        self._requests.append(request)
        if self.workers == 0:
            return
        # At the end of a batch no process should be idle for long; nor ask for single images.
        each = max(1, min(TASK_IMAGES, len(sources) // (4 * self.workers)))
        each = max(each, math.ceil(len(sources) / MOST_TASKS))
        size, first = self.view.num_bytes, request.slot * self._slot_bytes
        at = self._told_from(request.slot)
        for start in range(0, len(sources), each):
            images = [
                (first + i * size, seeds[i], tuple(sources[i]))
                for i in range(start, min(start + each, len(sources)))
            ]
            told = marshal.dumps((tuple(self.view), images))
            self._memory[at : at + len(told)] = told
            self._num_tasks += 1
            self._by_task[self._num_tasks] = request
            request.waiting.add(self._num_tasks)
            try:
                os.write(self._tasks, TASK.pack(self._num_tasks, at, len(told)))
            except BrokenPipeError:
                self._check_alive()
                raise
            at += len(told)

    def collect(self) -> tuple[Tensor, list[Failure]]:
        """The batch that was submitted first, and those of its images that could not be decoded.

        Returns:
            Bytes of shape (n, H, W, 3), which the next `submit` may write over; what was not
            decoded is undefined in them.

        Raises:
            UserError: If a process was ended from outside.
        """
        request = self._requests.popleft()
        if self.workers == 0:
            self._decode_here(request)
        while request.waiting:
            self._hear()
        self._free.append(request.slot)
        first, n = request.slot * self._slot_bytes, len(request.sources)
        shape = (n, self.view.height, self.view.width, 3)
        if n == 0:
            return torch.empty(shape, dtype=torch.uint8), []
        pixels = torch.frombuffer(
            self._memory, dtype=torch.uint8, count=n * self.view.num_bytes, offset=first
        )
        return pixels.view(shape), sorted(request.failures)

    def _told_from(self, slot: int) -> int:
        """Where tasks of a slot are described: behind the pixels of all slots."""
        return len(self._memory) - (slot + 1) * self._told_bytes

    def _decode_here(self, request: Request) -> None:
        size, first = self.view.num_bytes, request.slot * self._slot_bytes
        places = [first + i * size for i in range(len(request.sources))]
        images = [(p, s, tuple(f)) for p, s, f in zip(places, request.seeds, request.sources)]
        self._note(request, decoder.decode_into(self._memory, self.view, images))

    def _hear(self) -> None:
        """Takes one answer of the processes."""
        while not select.select([self._results], [], [], LOOK)[0]:
            self._check_alive()
        (length,) = struct.unpack("<i", self._heard(4))
        number, failed = marshal.loads(self._heard(length))
        request = self._by_task.pop(number)
        request.waiting.discard(number)
        self._note(request, failed)

    def _heard(self, length: int) -> bytes:
        heard = b""
        while len(heard) < length:
            more = os.read(self._results, length - len(heard))
            if not more:  # all processes are gone, or about to be
                time.sleep(LOOK)
                self._check_alive()
            heard += more
        return heard

    def _note(self, request: Request, failed: Sequence[tuple[int, str, bool]]) -> None:
        first = request.slot * self._slot_bytes
        for place, reason, wrong_size in failed:
            position = (place - first) // self.view.num_bytes
            request.failures.append(Failure(position, reason, wrong_size))

    def _check_alive(self) -> None:
        for process in self._processes:
            if (code := process.poll()) is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                raise UserError(
                    f"one of {self.workers} processes that decode images {how}, perhaps for want "
                    "of memory; in training, data.workers is how many there are"
                )


def num_workers() -> int:
    """The cores that this process may use, shared with those of the same machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, int(min(cores or 1, _quota())) // local)


def _quota() -> float:
    """The cores that a container may use at a time, by Linux's control groups."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return math.inf


def _memory_file(size: int) -> int:
    """Memory without a name: it goes when its last user does, and no ``/dev/shm`` is too small."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("crsam", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, max(1, size))
    return file


def _start(memory: int, tasks: int, results: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-P", "-W", "ignore", decoder.__file__]
    words = [str(number) for number in (os.getpid(), memory, tasks, results)]
    path = os.pathsep.join(place for place in sys.path if place)
    # Blocked here, so from the very first: what a process is born with it keeps.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            pass_fds=(memory, tasks, results),
            env={**KEEP, **os.environ, "PYTHONPATH": path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(processes: list[subprocess.Popen[bytes]], *pipes: int) -> None:
    """Without a task to come they end by themselves; one that is stuck is made to."""
    for pipe in pipes:
        os.close(pipe)
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
