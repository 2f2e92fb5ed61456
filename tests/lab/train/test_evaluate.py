"""Loss and accuracy of a set."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crsam.lab.data.batches import Feed
from crsam.lab.data.images import Held
from crsam.lab.train.evaluate import evaluate


def test_unequal_batches_weigh_by_their_size_and_modes_stay_as_they_were() -> None:
    torch.manual_seed(0)
    images = Held(torch.randint(256, (23, 1, 4, 4), dtype=torch.uint8), torch.randint(3, (23,)))
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    model.train()
    model[1].eval()  # someone froze it
    statistics = model[1].running_mean.clone()
    feed = Feed((0.5,), (0.5,), 3)
    score = evaluate(model, images, feed, batch_size=10)
    assert [m.training for m in model] == [True, False, True, True]
    assert torch.equal(model[1].running_mean, statistics)
    with torch.no_grad():
        logits = model.eval()((images.images / 255 - 0.5) / 0.5)
    assert score.loss == pytest.approx(F.cross_entropy(logits, images.labels).item(), rel=1e-5)
    right = (logits.argmax(1) == images.labels).double().mean().item()
    assert score.accuracy == pytest.approx(100 * right)
