"""All corruptions of a photograph on one sheet: a column each, severities downwards.

python examples/corruptions.py                          # scikit-learn's flower
python examples/corruptions.py mine.jpg --out mine.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from sklearn.datasets import load_sample_image

from crsam.lab.robustness import corrupt, corruptions

EDGE, HEAD = 2, 24


def sheet(image: np.ndarray, cell: int) -> Image.Image:
    """The image in the first row, its corruptions of severities 1 to 5 below."""
    names, step = corruptions(), cell + EDGE
    page = Image.new("RGB", (len(names) * step, HEAD + 6 * step), "white")
    pen = ImageDraw.Draw(page)
    for column, name in enumerate(names):
        pen.multiline_text((column * step + 2, 0), name.replace("_", "\n"), "black", spacing=0)
        for severity in range(6):
            found = image if severity == 0 else corrupt(image, name, severity, key=name)
            picture = Image.fromarray(found).resize((cell, cell), Image.Resampling.LANCZOS)
            page.paste(picture, (column * step, HEAD + severity * step))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photo", type=Path, nargs="?", help="any image; else a flower")
    parser.add_argument("--out", type=Path, default=Path("corruptions.jpg"))
    parser.add_argument("--cell", type=int, default=76, help="pixels on the sheet")
    asked = parser.parse_args()
    if asked.photo is None:
        photo = Image.fromarray(load_sample_image("flower.jpg"))
    else:
        photo = Image.open(asked.photo).convert("RGB")
    image = np.asarray(ImageOps.fit(photo, (224, 224)))
    sheet(image, asked.cell).save(asked.out, quality=88)
    print(f"{asked.out}: {len(corruptions())} corruptions, 5 severities")


if __name__ == "__main__":
    main()
