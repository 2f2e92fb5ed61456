"""What one step knows: its parameters, hyper-parameters, memory, random numbers and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crsam import _sharded
from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors
from crsam.optim.checkpoint import Memory
from crsam.optim.parallel import Parallel

if TYPE_CHECKING:
    from crsam.optim.probe import Offset

Generators = Callable[[torch.device | str, int, int], torch.Generator]


def _new_generator(device: torch.device | str, stream: int, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


class Step:
    """The parts of a method see the optimizer through this.

    Args:
        params: The parameters that take part, in the order of the groups.
        groups: For each of them, its parameter group.
        values: ``values(group, name)`` is the group's value of a hyper-parameter.
        memory: What earlier steps kept, by parameter and name.
        numbers: What earlier steps kept as plain numbers.
        count: How many steps were taken before.
        seed: Of the random draws.
        parallel: How the model is spread over processes; None: it is not.
        leader: Where each micro-batch climbs on its own, the step of the first one, whose decisions
            hold for all.
        generators: ``generators(device, stream, seed)`` makes those of the random draws.
    """

    def __init__(
        self,
        params: list[nn.Parameter],
        groups: list[dict[str, Any]],
        values: Callable[[dict[str, Any], str], float | Tensor],
        memory: Memory,
        numbers: Mapping[str, float],
        count: int,
        seed: int,
        parallel: Parallel | None = None,
        leader: Step | None = None,
        generators: Generators | None = None,
    ) -> None:
        self.params = params
        self.groups = groups
        self.count = count
        self.leader = leader
        self.pays = True
        """Whether the perturbed passes are taken."""
        self.is_skipped = False
        """Whether a scaled gradient overflowed."""
        self.parallel = parallel or Parallel(None, [], "batch", None)
        self.ranks = self.parallel.of_a_pass
        """The processes whose samples the gradients of this step are of."""
        self.start: Offset | None = None
        """Where the first pass was taken; None: at ``w``."""
        self.grad_norm: Tensor = torch.zeros(())
        """The norm of the first pass's gradient, once that pass is done."""
        self.report: dict[str, Tensor] = {}
        """What the step saw, as 0-d tensors."""
        self.direct: Tensors | None = None
        """A direction to descend beside the base optimizer's step, times the learning rate."""
        self.kept: dict[str, Tensors] = {}
        self.numbers: dict[str, float] = dict(numbers)
        self._values = values
        self._memory = memory
        self._seed = seed * 1_000_003 + count
        self._generators = generators or _new_generator

    def hyper(self, name: str, of: Callable[[Any], Any] = lambda value: value) -> Scale:
        """A hyper-parameter (or a function `of` it): one number, or one for each parameter."""
        by_group = {id(g): of(self._values(g, name)) for g in self.groups}
        values = [by_group[id(g)] for g in self.groups]
        if len(by_group) == 1:
            return values[0]
        if any(isinstance(v, Tensor) for v in values):
            return [torch.as_tensor(v, device=p.device) for v, p in zip(values, self.params)]
        return values[0] if len(set(values)) == 1 else values

    def radius(self, like: Tensor) -> Tensor:
        """The first group's ρ of this step as a 0-d tensor, on the device of `like`."""
        value = self._values(self.groups[0], "rho")
        if isinstance(value, Tensor):  # a copy: a captured step writes the next ρ over it
            return value.detach().to(like.device, copy=True)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.full((), value, dtype=dtype, device=like.device)

    def radius_over(self, norm: Tensor) -> Scale:
        """``ρ/norm``, and 0 where the norm is 0."""
        return times(self.hyper("rho"), tn.safe_reciprocal(norm))

    def recall(
        self, name: str, fill: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> Tensors | None:
        """Returns what an earlier step kept under `name`, in the parameters' dtypes and devices.

        Parameters that are new since then get ``fill(p)``. Without any, returns None.
        """
        if not any(name in self._memory.get(p, {}) for p in self.params):
            return None
        entries = [(p, self._memory.get(p, {})) for p in self.params]
        return [kept_as(p, entry[name]) if name in entry else fill(p) for p, entry in entries]

    def keep(self, name: str, tensors: Tensors) -> None:
        """Remember `tensors`, if the step succeeds: themselves, no copies of them.

        Gradients of an `Evaluation` may be overwritten later in the step: give clones of those.
        """
        self.kept[name] = tensors

    def agreed(self, tensors: Tensors) -> Tensors:
        """The first process's, where each has its own gradient and all must decide alike."""
        return self.parallel.everyone.firsts_(tensors) if self.parallel.climbs_alone else tensors

    def generator(self, device: torch.device | str = "cpu", stream: int = 0) -> torch.Generator:
        """Random numbers of this very step: the same after a resume and on every rank.

        Ascents draw from stream 0, objectives from 1 and schedules from 2, so that no two parts of
        a step see the same numbers.
        """
        return self._generators(device, stream, self.seed(stream))

    def seed(self, stream: int) -> int:
        """Of a generator of this step."""
        # The CPU's generator looks at the low 32 bits only: the stream must show there.
        return (self._seed + stream * 2_654_435_769) % 2**63

    def draw(self, kind: Callable[..., Tensor], stream: int = 0) -> Tensors:
        """``torch.rand`` or ``torch.randn`` in the shape of the parameters.

        Of parameters spread over processes, each draws the whole and keeps its part: the draws do
        not depend on how many processes there are.
        """
        devices = {p.device for p in self.params}
        generators = {device: self.generator(device, stream) for device in devices}
        return [
            _sharded.laid_out_as(
                p, kind(p.shape, dtype=p.dtype, device=p.device, generator=generators[p.device])
            )
            for p in self.params
        ]


def kept_as(p: Tensor, kept: Tensor) -> Tensor:
    """Returns what was kept of a parameter on its device and, unless a mask, in its dtype.

    ``model.to(torch.bfloat16)`` changes the parameters, and nothing that was kept of them.
    """
    return kept.to(p.device, p.dtype if kept.is_floating_point() else kept.dtype)


def times(scale: Scale, factor: Tensor | float) -> Scale:
    """The product of a scale and a number; products of equal numbers are formed once."""
    if not isinstance(scale, list):
        return scale * factor
    products = {id(s) if isinstance(s, Tensor) else s: s * factor for s in scale}
    return [products[id(s) if isinstance(s, Tensor) else s] for s in scale]
