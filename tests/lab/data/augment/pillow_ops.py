"""The operations by Pillow, one image at a time: what ours must equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from crsam.lab.data.augment.ops import Op

pytest.importorskip("PIL", reason="needs Pillow, the reference")
from PIL import Image, ImageEnhance, ImageOps


def warp(image: Image.Image, *matrix: float) -> Image.Image:
    grey = 128 if image.mode == "L" else (128, 128, 128)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=grey)


def rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, fillcolor=128 if image.mode == "L" else (128, 128, 128))


def solarize_add(image: Image.Image, addition: float) -> Image.Image:
    table = [min(max(i + int(addition), 0), 255) if i < 128 else i for i in range(256)]
    return image.point(table * len(image.getbands()))


REFERENCE: dict[Op, Callable[[Image.Image, float], Image.Image]] = {
    Op.IDENTITY: lambda image, m: image,
    Op.SHEAR_X: lambda image, m: warp(image, 1, m, 0, 0, 1, 0),
    Op.SHEAR_Y: lambda image, m: warp(image, 1, 0, 0, m, 1, 0),
    Op.TRANSLATE_X: lambda image, m: warp(image, 1, 0, m, 0, 1, 0),
    Op.TRANSLATE_Y: lambda image, m: warp(image, 1, 0, 0, 0, 1, m),
    Op.ROTATE: rotate,
    Op.AUTOCONTRAST: lambda image, m: ImageOps.autocontrast(image),
    Op.EQUALIZE: lambda image, m: ImageOps.equalize(image),
    Op.INVERT: lambda image, m: ImageOps.invert(image),
    Op.POSTERIZE: lambda image, m: ImageOps.posterize(image, int(m)),
    Op.SOLARIZE: lambda image, m: ImageOps.solarize(image, m),  # type: ignore[arg-type]
    Op.SOLARIZE_ADD: solarize_add,
    Op.BRIGHTNESS: lambda image, m: ImageEnhance.Brightness(image).enhance(m),
    Op.CONTRAST: lambda image, m: ImageEnhance.Contrast(image).enhance(m),
    Op.COLOR: lambda image, m: ImageEnhance.Color(image).enhance(m),
    Op.SHARPNESS: lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
}


def by_pillow(images: Tensor, ops: Tensor, magnitudes: Tensor) -> Tensor:
    """`apply_op` by a loop over the images."""
    done = []
    for x, op, magnitude in zip(images, ops.tolist(), magnitudes.tolist()):
        image = Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).numpy())
        result = torch.from_numpy(np.array(REFERENCE[Op(op)](image, magnitude)))
        done.append(result.unsqueeze(0) if len(x) == 1 else result.permute(2, 0, 1))
    return torch.stack(done)
