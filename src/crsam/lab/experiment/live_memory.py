"""The peak of live tensor memory: the allocator's own count on CUDA, a dispatch mode on CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage born under it, once each, from birth to death.

    Views share a storage and what autograd saves keeps one alive, so both count as they should.
    Unseen is what a kernel allocates and frees within itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.untyped_storage()._cdata not in given:  # no view of something older
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen.add(key)
            self.live += num_bytes
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, num_bytes).atexit = False

    def _forget(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self.live -= num_bytes


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yields a function: the bytes alive at the peak, of all that was born within.

    On CUDA it is the allocator's count, less what was there before.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
    else:
        with LiveStorages() as mode:
            yield lambda: mode.peak
