"""What the parts of a method know of one step: `StepContext`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crsam import _tensors as tn
from crsam._tensors import Scale, Tensors
from crsam.distributed import Parallel, Ranks

if TYPE_CHECKING:
    from crsam.optim.probe import Offset

Generators = Callable[[torch.device | str, int, int], torch.Generator]


def new_generator(device: torch.device | str, stream: int, seed: int) -> torch.Generator:
    """Returns a generator with this seed, on this device."""
    return torch.Generator(device).manual_seed(seed)


@dataclass(eq=False)
class StepContext:
    """What the parts of a method know of a step, and what they say about it. Plain data."""

    params: list[nn.Parameter]
    """The trained parameters, in the order of the groups."""
    options: Mapping[str, Sequence[float | Tensor]]
    """The value of each hyper-parameter in this step, for each group with a trained parameter."""
    group_of: Sequence[int]
    """For each parameter, the position of its group in the lists of `options`."""
    tensor_state: Mapping[nn.Parameter, Mapping[str, Tensor]]
    """What earlier steps kept of each parameter, by name."""
    scalar_state: dict[str, float]
    """What earlier steps kept as plain numbers. A part writes new values into it."""
    count: int
    """How many steps were taken before."""
    seed: int
    """The seed of the optimizer's random draws."""
    parallel: Parallel
    """The processes that share the batch."""
    leader: StepContext | None = None
    """With ``scope="micro"``, the context of the first micro-batch, which decides for all."""
    generators: Generators = new_generator
    """``generators(device, stream, seed)`` makes the generator of a random draw."""

    start: Offset | None = None
    """Where the first pass is taken. None: at ``w``."""
    grad_norm: Tensor = torch.zeros(())  # noqa: RUF009  (never written to)
    """The norm of the first pass's gradient."""
    runs_perturbed_passes: bool = True
    """Whether this step takes its perturbed passes; see `decide`."""
    is_skipped: bool = False
    """Whether a scaled gradient overflowed."""
    report: dict[str, Tensor] = field(default_factory=dict)
    """What the step saw, as 0-d tensors."""
    new_tensor_state: dict[str, Tensors] = field(default_factory=dict)
    """What this step keeps, by name: one tensor for each parameter."""
    direct_move: Tensors | None = None
    """A direction that the weights descend beside the base optimizer's step, times its lr."""

    @property
    def ranks(self) -> Ranks:
        """The processes whose samples the gradients of a pass are of."""
        return self.parallel.of_a_pass

    def option(self, name: str, of: Callable[[Any], Any] | None = None) -> Scale:
        """Returns a hyper-parameter: one number, or one for each parameter.

        Args:
            name: Its name.
            of: A function that is applied to it.
        """
        values = self.options[name] if of is None else [of(each) for each in self.options[name]]
        if len(values) == 1:
            return values[0]
        if any(isinstance(each, Tensor) for each in values):
            pairs = zip(self.group_of, self.params)
            return [torch.as_tensor(values[group], device=p.device) for group, p in pairs]
        return values[0] if len(set(values)) == 1 else [values[group] for group in self.group_of]

    def radius(self, like: Tensor) -> Tensor:
        """Returns the first group's ρ of this step as a 0-d tensor, on the device of `like`."""
        value = self.options["rho"][0]
        if isinstance(value, Tensor):  # a copy: a captured step writes the next ρ over it
            return value.detach().to(like.device, copy=True)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.full((), value, dtype=dtype, device=like.device)

    def radius_over(self, norm: Tensor) -> Scale:
        """Returns ``ρ/norm``, and 0 where the norm is 0."""
        return times(self.option("rho"), tn.safe_reciprocal(norm))

    def decide(self, rule: Callable[[StepContext], bool]) -> bool:
        """Returns whether this step runs its perturbed passes. The leader decides for all."""
        leader = self.leader
        self.runs_perturbed_passes = leader.runs_perturbed_passes if leader else rule(self)
        return self.runs_perturbed_passes

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of the parameters."""
        return {p.dtype for p in self.params}

    def has(self, name: str) -> bool:
        """Returns whether an earlier step kept something under `name`."""
        return any(name in self.tensor_state.get(p, {}) for p in self.params)

    def recall(
        self, name: str, fill: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> Tensors | None:
        """Returns what an earlier step kept under `name`, in the parameters' dtypes and devices.

        Parameters that are new since then get ``fill(p)``. If nothing was kept, returns None.
        """
        if not self.has(name):
            return None
        entries = [(p, self.tensor_state.get(p, {})) for p in self.params]
        return [kept_as(p, entry[name]) if name in entry else fill(p) for p, entry in entries]

    def keep(self, name: str, tensors: Tensors) -> None:
        """Keeps `tensors` for later steps if this step succeeds. It makes no copies.

        Later parts of a step write into gradients. Clone those before you keep them.
        """
        self.new_tensor_state[name] = tensors

    def broadcast_from_first(self, tensors: Tensors) -> Tensors:
        """Returns the first process's tensors, where each process has a gradient of its own."""
        if not self.parallel.gradients_are_local:
            return tensors
        return self.parallel.everyone.broadcast_from_first(tensors)

    def generator(self, device: torch.device | str = "cpu", stream: int = 0) -> torch.Generator:
        """Returns a generator for this step: the same after a resume, and on every rank.

        Ascents draw from stream 0, objectives from 1 and schedules from 2, so that no two parts of
        a step see the same numbers.
        """
        return self.generators(device, stream, self.seed_of(stream))

    def seed_of(self, stream: int) -> int:
        """Returns the seed of a stream of random numbers in this step."""
        # The CPU's generator uses the low 32 bits only, so the stream must change those.
        return (self.seed * 1_000_003 + self.count + stream * 2_654_435_769) % 2**63

    def draw(self, kind: Callable[..., Tensor], stream: int = 0) -> Tensors:
        """Returns ``torch.rand`` or ``torch.randn`` in the shape of the parameters.

        Of a parameter that is spread over processes, each process draws the whole and keeps its
        part. The draws do not depend on the number of processes.
        """
        devices = {p.device for p in self.params}
        generators = {device: self.generator(device, stream) for device in devices}
        return [
            tn.laid_out_as(
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
    """Returns the product of a scale and a number. Products of equal numbers are formed once."""
    if not isinstance(scale, list):
        return scale * factor
    products = {id(s) if isinstance(s, Tensor) else s: s * factor for s in scale}
    return [products[id(s) if isinstance(s, Tensor) else s] for s in scale]
