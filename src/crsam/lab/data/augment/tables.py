"""Operations that map each byte to a byte: one table of 256 for every image and channel.

Each is a function of the images and a magnitude of shape (N,), and returns bytes of shape (N, C,
256), or 1 in place of N or C where all share a table. They are those of Pillow's ``ImageOps`` and
``ImageEnhance``, byte for byte.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crsam.lab.data.augment.blend import blend, mean_grey


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Each byte replaced by its entry in the table of its image and channel.

    Args:
        images: Bytes of shape (N, C, H, W).
        table: Bytes that broadcast to (N, C, 256).

    Example:
        >>> x = torch.tensor([[[[0, 1], [2, 255]]]], dtype=torch.uint8)
        >>> look_up(x, invert(x, torch.zeros(1))).flatten().tolist()
        [255, 254, 253, 0]
    """
    n, channels = images.shape[:2]
    table = table.expand(n, channels, 256)
    return table.gather(2, images.flatten(2).long()).view(images.shape)


def identity(images: Tensor, magnitude: Tensor) -> Tensor:
    return _bytes(images).to(torch.uint8)


def autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretched so that the darkest byte of a channel is 0 and the brightest 255."""
    pixels = images.flatten(2)
    low = pixels.amin(2, keepdim=True).double()
    span = pixels.amax(2, keepdim=True) - low
    # Pillow's operations, in its order: some brightest bytes come out as 254. (255 / tensor would
    # multiply by the reciprocal, which is not the same.)
    scale = torch.full_like(span, 255) / span.clamp(min=1)
    values = _bytes(images)
    stretched = (values * scale - low * scale).clamp_(0, 255)
    return torch.where(span > 0, stretched.to(torch.uint8), values.to(torch.uint8))


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    """A flat histogram of each channel, as far as bytes allow."""
    pixels = images.flatten(2).long()
    shape = (*pixels.shape[:2], 256)
    counts = torch.zeros(shape, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, counts.new_ones(()).expand_as(pixels))
    of_brightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - of_brightest) // 255
    below = counts.cumsum(2, dtype=torch.int32) - counts
    flat = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, flat, _bytes(images)).to(torch.uint8)


def invert(images: Tensor, magnitude: Tensor) -> Tensor:
    return (255 - _bytes(images)).to(torch.uint8)


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """The highest bits alone; the magnitude is their number, 0 to 8."""
    dropped = 8 - _of_image(magnitude).to(torch.int32).clamp(0, 8)
    return ((_bytes(images) >> dropped) << dropped).to(torch.uint8)


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Inverted from the magnitude on, a byte or 256."""
    values = _bytes(images)
    return torch.where(values < _of_image(magnitude), values, 255 - values).to(torch.uint8)


def solarize_add(images: Tensor, magnitude: Tensor) -> Tensor:
    """The whole part of the magnitude added to the bytes below 128."""
    values = _bytes(images)
    raised = (values + _of_image(magnitude).to(torch.int32)).clamp(0, 255)
    return torch.where(values < 128, raised, values).to(torch.uint8)


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Between black at magnitude 0 and the image at 1, or beyond."""
    values = _bytes(images)
    return blend(torch.zeros_like(values), values, _of_image(magnitude))


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Between its mean grey at magnitude 0 and the image at 1, or beyond."""
    return blend(mean_grey(images).view(-1, 1, 1), _bytes(images), _of_image(magnitude))


def _bytes(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.int32, device=images.device).view(1, 1, 256)


def _of_image(magnitude: Tensor) -> Tensor:
    return magnitude.view(-1, 1, 1)
