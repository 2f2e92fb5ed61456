"""Images that cannot be read: named, counted, and too many of them an error."""

from __future__ import annotations

from collections.abc import Iterable

from crsam.errors import UserError
from crsam.progress import say

SHARE = 0.01
"""Of a set that may be unreadable."""
FEW = 10
"""Images that may be, however small the set."""
NAMED = 100
"""Images that are named; the others are counted."""


class Broken:
    """The images of a set that were found to be unreadable.

    Example:
        >>> broken = Broken()
        >>> broken.learn([7])  # another process has named it
        >>> broken.add(7, 1000, "ant/7.jpg", "image file is truncated")
        >>> len(broken)
        1
    """

    def __init__(self) -> None:
        self.found: set[int] = set()

    def __len__(self) -> int:
        return len(self.found)

    def learn(self, images: Iterable[int]) -> None:
        """Takes over what other processes found."""
        self.found.update(images)

    def add(self, image: int, total: int, name: str, reason: str) -> None:
        """Names an image if it is new.

        Args:
            image: Its number in the set.
            total: Of the images in the set.
            name: What to call it.
            reason: Why it cannot be read.

        Raises:
            UserError: If they have become too many.
        """
        if image in self.found:
            return
        self.found.add(image)
        if len(self.found) > max(FEW, SHARE * total):
            raise UserError(
                f"{len(self.found)} of {total} images cannot be read, the last of them {name}: "
                f"{reason}"
            )
        if len(self.found) <= NAMED:
            say(f"{name} cannot be read as an image: {reason}; the next one is shown instead")
