"""One step on a batch: what the optimizer is given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

import crsam
from crsam.lab.data.batches import Batch
from crsam.lab.train.step import EagerStep, count_right

METHODS = ["sgd", *crsam.methods()]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def a_batch(num: int = 16) -> Batch:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(num, 2, 2, 2, dtype=torch.float64, generator=g)
    return Batch(x, torch.randint(3, (num,), generator=g))


def stepper(model: nn.Module, method: str, **options: Any) -> EagerStep:
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    if method == "sgd":
        return EagerStep(model, base, **options)
    ours = crsam.make(method, base, model=model)
    parts = (ours.ascent, ours.objective, ours.schedule)
    return EagerStep(model, ours, by_sample=any(p.needs_samples for p in parts), **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_through_it_and_tells_the_loss_of_the_first_pass(method: str) -> None:
    model, batch = net(), a_batch()
    step = stepper(model, method)
    losses = []
    for _ in range(15):
        with torch.no_grad():
            expected = F.cross_entropy(model(batch.inputs), batch.targets).item()
            right = (model(batch.inputs).argmax(1) == batch.targets).sum().item()
        loss, num_right = step(batch)
        # R-SAM takes its first pass at a random point near the weights.
        assert loss.item() == pytest.approx(expected, rel=1e-2 if method == "rsam" else 1e-12)
        assert num_right.item() == right
        losses.append(expected)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("method", ["sgd", "sam", "crsam", "gsam", "looksam"])
def test_micro_batches_together_are_the_whole_batch(method: str) -> None:
    models = [net() for _ in range(2)]
    for model, accumulate in zip(models, (1, 4)):
        step = stepper(model, method, accumulate=accumulate)
        for _ in range(5):
            step(a_batch())
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)  # the log form divides by small d


def test_clipping_comes_after_the_whole_gradient_is_there() -> None:
    ours, theirs, batch = net(), net(), a_batch()
    params = list(ours.parameters())
    step = stepper(ours, "sgd", accumulate=4, after_backward=lambda: clip_grad_norm_(params, 0.01))
    step(batch)
    F.cross_entropy(theirs(batch.inputs), batch.targets).backward()
    clip_grad_norm_(theirs.parameters(), 0.01)
    SGD(theirs.parameters(), lr=0.1, momentum=0.9).step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_autocast_computes_in_bfloat16_and_keeps_weights_and_loss_in_float32() -> None:
    model = net().float()
    batch = a_batch()._replace(inputs=a_batch().inputs.float())
    seen = []
    model[1].register_forward_hook(lambda m, i, out: seen.append(out.dtype))
    exact = copy.deepcopy(model)
    loss, _ = stepper(model, "sgd", autocast=torch.bfloat16)(batch)
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    expected, _ = stepper(exact, "sgd")(batch)
    assert 0 < abs(loss.item() - expected.item()) < 1e-2


def test_of_mixed_targets_the_likelier_class_counts() -> None:
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    assert count_right(logits, torch.tensor([[0.4, 0.6], [0.1, 0.9]])).item() == 1
    assert count_right(logits, torch.tensor([0, 1])).item() == 2
