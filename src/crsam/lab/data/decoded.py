"""Images that are decoded whenever they are shown: sets of any size, of photographs of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from crsam.errors import UserError
from crsam.lab.data import decoder
from crsam.lab.data.decoder import View
from crsam.lab.data.images import Held, Images, Part, Shown, check_labels
from crsam.lab.data.listing import Listing
from crsam.lab.data.workers import AHEAD, Decoders, Failure, num_workers
from crsam.progress import bar

TRIES = 16
"""Images in a row that must be unreadable for it to be an error."""
FEW = 256
"""Images for which no processes are started."""
CHUNK = 1024
"""Images that are decoded at a time, to be held."""


@dataclass(frozen=True, eq=False)
class Decoded(Images):
    """Images that are decoded by processes of their own, ahead of whoever asks for them.

    What is shown is a function of the image and, where it is a random window, of a seed; it does
    not depend on the number of processes. An image that cannot be read is named, counted, and the
    next one of the set shown in its place, with its own label.

    Args:
        listing: Where all images are.
        labels: Whole numbers, one for each image of the set. Images are shown on their device.
        view: What is shown of an image.
        rows: Which of the listed images are the set, in this order; None: all.
        workers: Processes that decode; 0: this one. None: as many as there are cores for it.
    """

    listing: Listing
    labels: Tensor
    view: View
    rows: Tensor | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.listing if self.rows is None else self.rows))

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.view.height, self.view.width

    def fetch(self, indices: Tensor) -> Tensor:
        (shown,) = self.stream([Part(indices.cpu())], len(indices))
        return shown.pixels

    def part(self, indices: Tensor) -> Decoded:
        indices = indices.cpu()
        rows = torch.arange(len(self)) if self.rows is None else self.rows
        return replace(self, labels=self.labels[indices.to(self.device)], rows=rows[indices])

    def with_labels(self, labels: Tensor) -> Decoded:
        return replace(self, labels=labels.to(self.device))

    def to(self, device: torch.device) -> Decoded:
        return replace(self, labels=self.labels.to(device))

    def stream(self, parts: Iterable[Part], most: int) -> Generator[Shown, None, None]:
        workers = num_workers() if self.workers is None else self.workers
        first = list(islice(parts := iter(parts), AHEAD))
        if self.workers is None and len(first) < AHEAD and sum(len(p.rows) for p in first) <= FEW:
            workers = 0
        onto_device = _onto(self.device)
        with Decoders(self.view, most, workers) as decoders:
            waiting: deque[Part] = deque()

            def submit(part: Part) -> None:
                listed = part.rows if self.rows is None else self.rows[part.rows]
                seeds = [None] * len(listed) if part.seeds is None else part.seeds.tolist()
                decoders.submit(self.listing.sources(listed), seeds)
                waiting.append(part)

            for part in first:
                submit(part)
            while waiting:
                pixels, failures = decoders.collect()
                rows = self._replaced(waiting.popleft(), pixels, failures)
                shown = Shown(onto_device(pixels), rows.to(self.device, non_blocking=True))
                for part in islice(parts, 1):
                    submit(part)
                yield shown

    def _listed(self, row: int) -> int:
        return row if self.rows is None else int(self.rows[row])

    def _replaced(self, part: Part, pixels: Tensor, failures: list[Failure]) -> Tensor:
        """Puts others in the place of what failed; which images are shown."""
        rows = part.rows.clone()
        for failure in failures:
            i = failure.position
            seed = None if part.seeds is None else int(part.seeds[i])
            rows[i], content = self._next_readable(int(rows[i]), seed, failure)
            pixels[i] = torch.frombuffer(bytearray(content), dtype=torch.uint8).view_as(pixels[i])
        return rows

    def _next_readable(self, row: int, seed: int | None, failure: Failure) -> tuple[int, bytes]:
        listing, bad, why = self.listing, self._listed(row), failure.reason
        if failure.wrong_size:
            raise UserError(
                f"{listing.name(bad)} {why} where others have {self.view.width} × "
                f"{self.view.height}: give image_size, to which all are scaled"
            )
        for _ in range(min(TRIES, len(self))):
            listing.broken.add(bad, len(listing), listing.name(bad), why)
            row = (row + 1) % len(self)
            bad = self._listed(row)
            try:
                (source,) = listing.sources(torch.tensor([bad]))
                return row, decoder.pixels(source, self.view, seed)
            except Exception as error:  # of a damaged file, a decoder may raise anything
                why = decoder.reason(error)
        raise UserError(
            f"{listing.name(bad)} cannot be read as an image, nor can those before it: {why}"
        )


def hold(images: Decoded, label: str) -> Held:
    """All images of a set, decoded now.

    Args:
        images: The set.
        label: What they are, for the progress bar.
    """
    parts = [Part(rows) for rows in torch.split(torch.arange(len(images)), CHUNK)]
    pixels = torch.empty(len(images), *images.shape, dtype=torch.uint8)
    labels, done = images.labels.clone(), 0
    with bar(f"decoding {label}", len(images)) as advance:
        for shown in images.stream(parts, CHUNK):
            there = slice(done, done + len(shown.rows))
            pixels[there], labels[there] = shown.pixels, images.labels[shown.rows]
            done = there.stop
            advance(len(shown.rows))
    return Held(pixels, labels)


class _onto:
    """Carries bytes of shape (n, H, W, 3) to a device as (n, 3, H, W), and leaves none behind.

    A GPU copies them in a stream of its own: in that of the training it would make the host wait
    until all steps are done that have been launched.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copying: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, pixels: Tensor) -> Tensor:
        if self.copying is None:
            return pixels.to(self.device).permute(0, 3, 1, 2).contiguous()
        training = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.copying):
            there = pixels.to(self.device, non_blocking=True)
        training.wait_stream(self.copying)
        there.record_stream(training)
        return there.permute(0, 3, 1, 2).contiguous()
