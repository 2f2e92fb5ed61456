r"""How one operation passes on a straight motion: its tangent, and how much it bends.

Weights that move as $w + \epsilon v$ move the arguments of an operation $f$ as
$x + \epsilon \dot x + \ldots$; it passes on the tangent $\dot y = Df[\dot x]$ and adds
$D^2 f[\dot x, \dot x]$, its bend, to the second order. What counts of a bend is its product with
$\lambda$, the derivative of the loss by $y$.

Products (convolutions, matrix products) have rules of their own, and so have linear operations,
which do not bend; all others go through torch's forward mode, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from crsam.curvature.record import Operation, Slot

aten = torch.ops.aten

Passed = tuple[Sequence[Tensor | None], Tensor | None]
"""The tangents of the outputs, and λ · bend; None stands for 0."""


class Motion:
    """Values, tangents and λ by slot: all that a rule may look at."""

    def __init__(
        self,
        values: Sequence[Tensor],
        adjoints: Mapping[Slot, Tensor],
        tangents: Mapping[Slot, Tensor],
    ) -> None:
        self.values = values
        self.adjoints = adjoints
        self.tangents = tangents

    def value(self, arg: Any) -> Any:
        return self.values[arg.index] if isinstance(arg, Slot) else arg

    def tangent(self, arg: Any) -> Tensor | None:
        return self.tangents.get(arg) if isinstance(arg, Slot) else None

    def tangent_or_zeros(self, arg: Any) -> Tensor:
        tangent = self.tangent(arg)
        return torch.zeros_like(self.value(arg)) if tangent is None else tangent

    def adjoint(self, operation: Operation) -> Tensor | None:
        """λ of its first output."""
        slot = operation.outputs[0]
        return None if slot is None else self.adjoints.get(slot)

    def weigh(self, operation: Operation, bend: Tensor) -> Tensor | None:
        """λ · bend."""
        adjoint = self.adjoint(operation)
        return None if adjoint is None else (adjoint * bend).sum()


def any_operation(operation: Operation, motion: Motion) -> Passed:
    """By torch: forward mode for the tangent, two backward passes through it alone for the bend."""
    moving = [slot for slot in operation.slots if slot in motion.tangents]
    which = [i for i, output in enumerate(operation.outputs) if output is not None]
    if not moving:
        return [None] * len(operation.outputs), None

    def outputs(*values: Tensor) -> list[Tensor]:
        given = dict(zip(moving, values, strict=True))
        results = operation(lambda slot: given.get(slot, motion.value(slot)))
        return [results[i] for i in which]

    at = [_unfolded(motion.value(slot)) for slot in moving]
    along = [_unfolded(motion.tangents[slot]) for slot in moving]
    tangents: list[Tensor | None] = [None] * len(operation.outputs)
    with forward_ad.dual_level():
        pairs = zip(at, along, strict=True)
        duals = [forward_ad.make_dual(x, t) for x, t in pairs]  # type: ignore[no-untyped-call]
        for i, y in zip(which, outputs(*duals), strict=True):
            tangents[i] = forward_ad.unpack_dual(y).tangent  # type: ignore[no-untyped-call]
    adjoints = [motion.adjoints.get(output) for output in operation.outputs if output is not None]
    return tangents, _bend(outputs, at, along, adjoints)


def _unfolded(tensor: Tensor) -> Tensor:
    """With memory for each entry, as forward mode wants it."""
    return tensor.clone(memory_format=torch.contiguous_format) if 0 in tensor.stride() else tensor


def _bend(
    outputs: Callable[..., list[Tensor]],
    at: Sequence[Tensor],
    along: Sequence[Tensor],
    adjoints: Sequence[Tensor | None],
) -> Tensor | None:
    """λ · bend, the second derivative of λ · f along a line."""
    if all(adjoint is None for adjoint in adjoints):
        return None
    with torch.enable_grad():
        points = [value.detach().requires_grad_() for value in at]
        pairs = [(y, a) for y, a in zip(outputs(*points), adjoints, strict=True) if a is not None]
        results, weights = zip(*pairs, strict=True)
        slopes = torch.autograd.grad(
            results, points, weights, create_graph=True, materialize_grads=True
        )
        slope = dot(slopes, along)
        if not slope.requires_grad:
            return None
        return dot(torch.autograd.grad(slope, points, materialize_grads=True), along)


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def linear(operation: Operation, motion: Motion) -> Passed:
    """Of operations that are linear in their first argument, the others constant."""
    if operation.slots != [operation.args[0]]:
        return any_operation(operation, motion)
    return operation(motion.tangent_or_zeros), None


def sum_of_two(operation: Operation, motion: Motion) -> Passed:
    first, second = operation.args
    if not (isinstance(first, Slot) and isinstance(second, Slot)):
        return any_operation(operation, motion)
    return operation(motion.tangent_or_zeros), None


def relu(operation: Operation, motion: Motion) -> Passed:
    return [
        motion.tangent_or_zeros(operation.args[0]) * (motion.value(operation.outputs[0]) > 0)
    ], None


def product(operation: Operation, motion: Motion) -> Passed:
    """Of operations that are linear in each of their two arguments."""
    tangent, bend = _product(operation.op, *operation.args, motion=motion)
    return [tangent], None if bend is None else motion.weigh(operation, bend)


def _product(
    times: Any, first: Any, second: Any, *, motion: Motion
) -> tuple[Tensor | None, Tensor | None]:
    """Its tangent and its bend."""
    along_first, along_second = motion.tangent(first), motion.tangent(second)
    if along_second is None:
        return None if along_first is None else times(along_first, motion.value(second)), None
    tangent = times(motion.value(first), along_second)
    if along_first is None:
        return tangent, None
    return tangent + times(along_first, motion.value(second)), 2 * times(along_first, along_second)


def product_and_sum(operation: Operation, motion: Motion) -> Passed:
    """``addmm(bias, x, w)``."""
    if operation.kwargs:
        return any_operation(operation, motion)
    bias, first, second = operation.args
    tangent, bend = _product(aten.mm.default, first, second, motion=motion)
    if tangent is None:
        return any_operation(operation, motion)
    along_bias = motion.tangent(bias)
    tangent = tangent if along_bias is None else tangent + along_bias
    return [tangent], None if bend is None else motion.weigh(operation, bend)


def convolution(operation: Operation, motion: Motion) -> Passed:
    """Three convolutions, two of them as one with twice the channels."""
    x, weight, bias, *how = operation.args
    along_x, along_weight, along_bias = (motion.tangent(arg) for arg in (x, weight, bias))
    transposed, groups = how[3], how[5]
    if along_weight is None or transposed or groups > 1:
        return any_operation(operation, motion)
    tangent = operation.op(motion.value(x), along_weight, along_bias, *how)
    if along_x is None:
        return [tangent], None
    both = torch.cat([motion.value(weight), along_weight])
    straight, bend = operation.op(along_x, both, None, *how).chunk(2, dim=1)
    return [tangent.add_(straight)], motion.weigh(operation, 2 * bend)


def batch_norm(operation: Operation, motion: Motion) -> Passed:
    r"""$y = \gamma \hat x + \beta$ with $\hat x = (x - \mu)\,s$.

    With running statistics $\mu$ and $s$ stand still. With those of the batch,
    $D\hat x = s\,(\dot z - m \hat x)$ and $D^2\hat x = s^2\,((3m^2 - q)\,\hat x - 2m \dot z)$,
    where $\dot z$ is $\dot x$ less its mean, $m$ the mean of $\hat x \dot x$ and $q$ the variance
    of $\dot x$, all by channel.
    """
    x, weight, bias, running_mean, running_variance, training, _, eps = operation.args
    along_x, along_weight, along_bias = (motion.tangent(arg) for arg in (x, weight, bias))
    if along_x is None or along_weight is None or along_bias is None:
        return any_operation(operation, motion)
    value, scale = motion.value(x), motion.value(weight)
    over = [d for d in range(value.dim()) if d != 1]
    shape = [-1 if d == 1 else 1 for d in range(value.dim())]
    adjoint = motion.adjoint(operation)
    if adjoint is None:
        return any_operation(operation, motion)
    if training:
        mean, inverse = (motion.value(slot) for slot in operation.outputs[1:3])
        along = along_x - along_x.mean(over).view(shape)
    else:
        mean, inverse = running_mean, (running_variance + eps).rsqrt()
        along = along_x
    # Centred before anything is summed: a large mean must not drown what it is the mean of.
    centred = value - mean.view(shape)
    m = inverse * (centred * along).mean(over) if training else torch.zeros_like(mean)
    slope = inverse * scale
    tangent = along * slope.view(shape)
    tangent.addcmul_(centred, (inverse * (along_weight - slope * m)).view(shape))
    tangent.add_(along_bias.view(shape))
    moved = (adjoint * along).sum(over)
    bend = 2 * along_weight * inverse * moved
    if training:
        q = along.square().mean(over)
        still = inverse * (adjoint * centred).sum(over)
        bend = bend - 2 * along_weight * inverse * m * still
        bend = bend + scale * inverse**2 * ((3 * m**2 - q) * still - 2 * m * moved)
    return [tangent, *[None] * (len(operation.outputs) - 1)], bend.sum()


_LINEAR = (
    aten._adaptive_avg_pool2d.default,
    aten._unsafe_view.default,
    aten.avg_pool2d.default,
    aten.clone.default,
    aten.expand.default,
    aten.mean.default,
    aten.mean.dim,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
)
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
STRAIGHT = {*_LINEAR, *_SUMS, aten.relu.default}
"""What never bends: its λ need not be kept."""
RULES: dict[Any, Callable[[Operation, Motion], Passed]] = {
    **dict.fromkeys(_LINEAR, linear),
    **dict.fromkeys(_SUMS, sum_of_two),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mul.Tensor), product),
    aten.addmm.default: product_and_sum,
    aten.convolution.default: convolution,
    **dict.fromkeys((aten.native_batch_norm.default, aten.cudnn_batch_norm.default), batch_norm),
    aten.relu.default: relu,
}


def pass_on(operation: Operation, motion: Motion) -> Passed:
    """What the operation makes of a motion."""
    return RULES.get(operation.op, any_operation)(operation, motion)
