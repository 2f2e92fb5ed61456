"""What only a GPU can show. Skipped elsewhere."""

from __future__ import annotations

import pytest
import torch

from crsam.lab.data.augment import Mixup, Op, apply_op, augmentations, make_augment, normalize
from lab.data.augment.samples import random_images, random_magnitudes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name.lower())
def test_equals_the_cpu(op: Op) -> None:
    x, magnitudes = random_images(200, (32, 32)), random_magnitudes(op, 200)
    out = apply_op(x.cuda(), op, magnitudes.cuda())
    assert torch.equal(out.cpu(), apply_op(x, op, magnitudes))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", augmentations())
def test_nothing_waits_for_the_device_and_a_graph_captures_it(name: str) -> None:
    augment, x = make_augment(name), random_images(64, (32, 32)).cuda()
    y = torch.eye(64, device="cuda")
    eager, captured = (torch.Generator("cuda").manual_seed(0) for _ in range(2))
    mixup = Mixup(0.2)

    def step(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return mixup(normalize(augment(x, g), (0.5,), (0.25,)), y, g)

    step(eager)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(eager)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(captured)
    with torch.cuda.graph(graph):
        images, targets = step(captured)
    eager.manual_seed(0)
    captured.manual_seed(0)
    for _ in range(3):
        graph.replay()
        for ours, expected in zip((images, targets), step(eager)):
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)
