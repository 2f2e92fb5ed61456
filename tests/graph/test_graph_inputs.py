"""The numbers that a CUDA graph reads anew at every replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crsam.graph.graph_inputs import GraphInputs


@pytest.mark.parametrize(
    "values",
    [
        [0.1, 0.2, 0.1],
        [0.1, torch.tensor(0.2), 0.1],  # a number after a tensor, equal to the number before it
        [torch.tensor(0.3), torch.tensor(0.2)],
    ],
)
def test_a_graph_reads_the_number_that_was_written_last(values: list[Any]) -> None:
    inputs = GraphInputs({"lr": values[0]}, torch.device("cpu"))
    place = inputs.tensors["lr"].data_ptr()
    for value in values:
        inputs.write({"lr": value})
        assert inputs.tensors["lr"].item() == pytest.approx(float(value))
    assert inputs.tensors["lr"].data_ptr() == place
