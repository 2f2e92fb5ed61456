"""The density of the Hessian's eigenvalues at a run's model, as arrays beside its checkpoint."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from crsam import _files, curvature
from crsam.lab.data.batches import in_order
from crsam.lab.experiment.measure import Setting, losses, sample_of
from crsam.lab.experiment.restore import Split, restored
from crsam.lab.train.distributed import World
from crsam.lab.train.evaluate import evaluating


def spectrum_run(
    folder: str | Path,
    *,
    split: Split = "train",
    samples: int = 5000,
    how: Setting | None = None,
    world: World | None = None,
) -> Path:
    """Writes ``spectrum-SPLIT.npz``: ``nodes`` and ``weights`` of `spectral_density`.

    Args:
        folder: Of the run.
        split: Which images.
        samples: At most so many of them.
        how: Its seed and batch size.
        world: Where to compute.

    Returns:
        The file.
    """
    world, how = world or World(), how or Setting()
    run = restored(folder, world)
    images = sample_of(run.images(split), samples)
    batches = list(in_order(images, run.splits.feed, how.batch_size))
    with evaluating(run.model):
        found = curvature.spectral_density(run.model, losses, batches, seed=how.seed, progress=True)
    about = {"split": split, "samples": len(images), "seed": how.seed, "step": run.step}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        nodes=found.nodes.numpy(),
        weights=found.weights.numpy(),
        num_weights=np.array(found.num_weights),
        about=np.array(json.dumps(about)),
    )
    file = Path(folder) / f"spectrum-{split}.npz"
    _files.write(file, buffer.getvalue())
    return file
