"""Reads, cuts and scales images, here or for another process, into memory that both share.

Run as a program it imports Pillow and the standard library, nothing else: it starts in a twentieth
of a second where a process with torch takes seconds and 200 MB, it is no fork of one that has
threads and a GPU, and the user's script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import fcntl
import functools
import io
import marshal
import math
import mmap
import os
import random
import select
import stat
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

TASK = struct.Struct("<iqi")
"""Number, and where in the shared memory it is written: first byte, length."""
TRIES = 10
"""Windows that are drawn before the middle is taken."""
LARGEST = 256 << 20
"""Most bytes of an encoded image, unpacked: a small archive can unpack to gigabytes."""
LONGEST = 160
"""Letters of a reason."""
TAKING, ANSWERING = 0, 1
"""Bytes of the shared memory that stand for the two pipes, for a process to lock."""
WATCH = 2.0
"""Seconds after which an idle process looks whether its parent is still there."""


class Source(NamedTuple):
    """Where the bytes of an image are."""

    path: str
    offset: int = -1
    """Of the first byte; −1: the file is the image."""
    size: int = 0
    zipped: bool = False
    """Whether `offset` is that of a zip member's header, and `size` that of what is packed."""


class View(NamedTuple):
    """What is shown of an image, and how large."""

    width: int
    height: int
    scaled: bool = True
    """Whether images are brought to that size; else they must have it."""
    middle: float | None = None
    """Share of the scaled shorter side that is shown; None: the largest window of this shape."""
    least: float | None = None
    """The smallest area of a random window, as a share of the image's; None: none is random."""
    shape: float = 4 / 3
    """The widest ratio of its sides; the narrowest is one over it."""
    draft: bool | None = None
    """Whether JPEGs may be decoded at 1/2, 1/4 or 1/8, if that is no less than is needed; None: for
    random windows alone, since it changes pixels a little."""

    @property
    def num_bytes(self) -> int:
        return 3 * self.width * self.height


class WrongSize(Exception):
    """An image that is not to be scaled has another size than the rest."""


Size = tuple[int, int]
"""Width and height."""
Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge."""


def pixels(source: Source, view: View, seed: int | None = None) -> bytes:
    """An image, row by row, three bytes a pixel.

    Args:
        source: Where it is.
        view: What is shown of it.
        seed: Of the random window, where the view has such; None: the middle.

    Raises:
        WrongSize: See there.
        Exception: Whatever a decoder raises for a damaged file.
    """
    return shown(read(source), view, seed).tobytes()


def shown(content: bytes, view: View, seed: int | None) -> Image.Image:
    """A window, or the middle, of an encoded image. A rotation noted in it is ignored, as usual."""
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(content))
    size = (view.width, view.height)
    if not view.scaled:
        if image.size != size:
            raise WrongSize(f"has {image.width} × {image.height} pixels")
        return in_colour(image)
    if view.least is not None and seed is not None:
        box = random_window(*image.size, seed, view.least, view.shape)
        scale = _drafted(image, box, size) if view.draft is not False else 1
        image = in_colour(image)
        if scale == 1:
            return image.crop(box).resize(size, Image.Resampling.BILINEAR)
        return _scaled(image, box, size, scale)
    whole, side = image.size, min(image.size)
    short = round(view.width / (view.middle or 1))
    scale = _drafted(image, (0, 0, side, side), (short, short)) if view.draft else 1
    return middle_of(in_colour(image), view, whole, scale)


def middle_of(image: Image.Image, view: View, whole: Size, scale: int = 1) -> Image.Image:
    """What a model is judged on, of an image of the size `whole`, decoded `scale` times smaller."""
    size, side = (view.width, view.height), min(whole)
    if view.middle is None:
        left, top = ((length - side) / 2 for length in whole)
        return _scaled(image, (left, top, left + side, top + side), size, scale)
    short = round(view.width / view.middle)
    width, height = (short * length // side for length in whole)
    image = _scaled(image, (0, 0, *whole), (width, height), scale)
    left, top = round((width - view.width) / 2), round((height - view.height) / 2)
    return image.crop((left, top, left + view.width, top + view.height))


def in_colour(image: Image.Image) -> Image.Image:
    """Decoded, in RGB."""
    if image.mode.startswith(("I", "F")):
        raise ValueError("more than 8 bits a pixel: convert it to 8")
    if "transparency" in image.info:  # by way of RGBA, or Pillow warns of palettes
        image = image.convert("RGBA")
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()
    return image


def random_window(
    width: int, height: int, seed: int, least: float, shape: float
) -> tuple[int, int, int, int]:
    """A window of random area and shape: what everybody trains on ImageNet with.

    Szegedy et al., "Going Deeper with Convolutions", 2015. Where ten draws do not fit into the
    image it is the largest window in the middle of an allowed shape.

    Example:
        >>> random_window(500, 375, 3, 1.0, 4 / 3)
        (0, 0, 500, 375)
    """
    draw = random.Random(seed)
    for _ in range(TRIES):
        area = width * height * draw.uniform(least, 1)
        ratio = math.exp(draw.uniform(-math.log(shape), math.log(shape)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, round(height * shape)), min(height, round(width * shape))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _drafted(image: Image.Image, box: Box, size: Size) -> int:
    """Lets a JPEG be decoded smaller, such that `box` has at least `size`; how many times."""
    width = image.width
    least = [
        math.ceil(whole * wanted / (high - low))
        for whole, wanted, low, high in zip(image.size, size, box[:2], box[2:])
    ]
    image.draft(image.mode, (least[0], least[1]))  # of other formats, this does nothing
    return round(width / image.width)


def _scaled(image: Image.Image, box: Box, size: Size, scale: int) -> Image.Image:
    """A part of an image that has been decoded `scale` times smaller.

    The decoder rounds sizes up: the part is one of the whole as it was, not of what was decoded.
    """
    from PIL import Image

    left, top, right, bottom = (edge / scale for edge in box)
    return image.resize(size, Image.Resampling.BILINEAR, box=(left, top, right, bottom))


def read(source: Source) -> bytes:
    """The bytes of an encoded image.

    Raises:
        ValueError: If there are more than `LARGEST`, whatever the archive says of their number, or
            if they are not in a file or a zip member that can be read.
    """
    if source.offset < 0:
        about = os.stat(source.path)
        if not stat.S_ISREG(about.st_mode):  # a pipe or a device would have no end
            raise ValueError("it is not a regular file")
        _check_size(about.st_size)
        with open(source.path, "rb", buffering=0) as file:
            return file.readall()
    about = os.stat(source.path)
    file_number = _opened(source.path, about.st_ino, about.st_mtime_ns)
    if not source.zipped:
        return _range(file_number, source.offset, source.size)
    header = _range(file_number, source.offset, 30)
    flags, method, name, extra = struct.unpack("<6xHH16xHH", header)
    packed = _range(file_number, source.offset + 30 + name + extra, source.size)
    if header[:4] != b"PK\3\4" or flags & 1 or method not in (0, 8):
        raise ValueError("not a zip member that is stored or deflated, without a password")
    return _inflated(packed) if method == 8 else packed


def _inflated(packed: bytes) -> bytes:
    """What a deflated zip member unpacks to."""
    unpacking = zlib.decompressobj(-15)
    found = unpacking.decompress(packed, LARGEST + 1)
    _check_size(len(found))
    if not unpacking.eof:
        raise ValueError("its packed bytes end too early")
    return found


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MiB, the most that an image may have")


def _range(file_number: int, offset: int, size: int) -> bytes:
    _check_size(size)
    found = os.pread(file_number, size, offset)
    while 0 < len(found) < size:  # the system may give less than is asked for
        more = os.pread(file_number, size - len(found), offset + len(found))
        if not more:
            break
        found += more
    if len(found) < size:
        raise ValueError("the archive ends before it")
    return found


@functools.lru_cache(maxsize=4096)
def _opened(path: str, number: int, changed: int) -> int:
    """Archives stay open, until others lie there: of large ones, thousands of images are read."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def reason(error: Exception) -> str:
    """Why an image cannot be read, in a few words."""
    if type(error).__name__ == "UnidentifiedImageError":  # whose text has an address in memory
        return "its bytes are of no format that is known"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:LONGEST] or type(error).__name__


def main() -> None:
    """Does tasks until there are none: ``decoder.py PARENT MEMORY TASKS RESULTS``.

    The last three are file descriptors. A task is a view and, for each image, its source, seed and
    place in the memory. What is said of it is its number and the images that cannot be read.
    """
    parent, memory_file, task_pipe, result_pipe = (int(word) for word in sys.argv[1:5])
    memory = mmap.mmap(memory_file, 0)
    for number, first, length in _tasks(task_pipe, memory_file, parent):
        view, images = marshal.loads(memory[first : first + length])
        failed = decode_into(memory, View(*view), images)
        answer = marshal.dumps((number, failed))
        fcntl.lockf(memory_file, fcntl.LOCK_EX, 1, ANSWERING)
        try:
            with open(result_pipe, "wb", closefd=False) as pipe:
                pipe.write(struct.pack("<i", len(answer)) + answer)
        except BrokenPipeError:  # nobody is there any more
            return
        fcntl.lockf(memory_file, fcntl.LOCK_UN, 1, ANSWERING)


def decode_into(
    memory: mmap.mmap, view: View, images: Sequence[tuple[int, int | None, tuple[Any, ...]]]
) -> list[tuple[int, str, bool]]:
    """The places of images that cannot be read, why, and whether just for their size."""
    failed = []
    for place, seed, source in images:
        try:
            memory[place : place + view.num_bytes] = pixels(Source(*source), view, seed)
        except Exception as error:  # of a damaged file, a decoder may raise anything
            failed.append((place, reason(error), isinstance(error, WrongSize)))
    return failed


def _tasks(pipe: int, lock: int, parent: int) -> Iterator[tuple[int, int, int]]:
    """Each task goes to one of the processes: they take turns at the pipe."""
    while True:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, TAKING)
        while not select.select([pipe], [], [], WATCH)[0]:
            if os.getppid() != parent:  # whose pipe may be held open by a fork of it
                return
        task = os.read(pipe, TASK.size)
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, TAKING)
        if not task:
            return
        yield TASK.unpack(task)


if __name__ == "__main__":
    main()
