r"""The first two derivatives of each operation along a straight line of the weights.

As the weights move as $w + \epsilon v$, the arguments of an operation $f$ move as
$x + \epsilon \dot x + \ldots$. The result moves with the tangent $\dot y = Df[\dot x]$, and $f$
itself adds the second-order term $D^2 f[\dot x, \dot x]$. A rule returns the tangent and the
product of the second-order term with $\lambda$, the derivative of the loss by $y$ (the adjoint).

Products (convolutions, matrix products) and batch norm have rules of their own. Linear operations
have no second-order term. All other operations use torch's automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from crsam.curvature.taylor.tape import Operation, Slot

aten = torch.ops.aten

Derivatives = tuple[Sequence[Tensor | None], Tensor | None]
"""The tangents of the outputs, and λ times the second-order term. None stands for 0."""


class Line:
    """A line of the weights: recorded values, their tangents along it and their adjoints λ."""

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

    def tangent_or_zeros(self, arg: Any) -> Any:
        """The tangent of a slot. Every other argument is returned as it is."""
        if not isinstance(arg, Slot):
            return arg
        tangent = self.tangents.get(arg)
        return torch.zeros_like(self.values[arg.index]) if tangent is None else tangent

    def adjoint(self, operation: Operation) -> Tensor | None:
        """λ of the operation's first output."""
        slot = operation.outputs[0]
        return None if slot is None else self.adjoints.get(slot)

    def weigh(self, operation: Operation, second: Tensor | None) -> Tensor | None:
        """λ times a second-order term."""
        adjoint = None if second is None else self.adjoint(operation)
        return None if adjoint is None or second is None else (adjoint * second).sum()


def generic_rule(operation: Operation, line: Line) -> Derivatives:
    """Torch's forward mode for the tangent, two backward passes for the second-order term."""
    recorded = {slot: line.values[slot.index] for slot in operation.slots}
    moving = [slot for slot in recorded if slot in line.tangents]
    which = [i for i, output in enumerate(operation.outputs) if output is not None]
    if not moving:
        return [None] * len(operation.outputs), None

    def outputs(*values: Tensor) -> list[Tensor]:
        now = {**recorded, **dict(zip(moving, values, strict=True))}
        results = operation.run(lambda a: now[a] if isinstance(a, Slot) else a)
        return [results[i] for i in which]

    at = [_in_own_memory(recorded[slot]) for slot in moving]
    along = [_in_own_memory(line.tangents[slot]) for slot in moving]
    tangents: list[Tensor | None] = [None] * len(operation.outputs)
    with forward_ad.dual_level():
        pairs = zip(at, along, strict=True)
        duals = [forward_ad.make_dual(x, t) for x, t in pairs]  # type: ignore[no-untyped-call]
        for i, y in zip(which, outputs(*duals), strict=True):
            tangents[i] = forward_ad.unpack_dual(y).tangent  # type: ignore[no-untyped-call]
    adjoints = [line.adjoints.get(output) for output in operation.outputs if output is not None]
    return tangents, _second_derivative(outputs, at, along, adjoints)


def _in_own_memory(tensor: Tensor) -> Tensor:
    """The tensor with memory for each entry, which forward mode needs."""
    return tensor.clone(memory_format=torch.contiguous_format) if 0 in tensor.stride() else tensor


def _second_derivative(
    outputs: Callable[..., list[Tensor]],
    at: Sequence[Tensor],
    along: Sequence[Tensor],
    adjoints: Sequence[Tensor | None],
) -> Tensor | None:
    """The second derivative of λ · f along a line."""
    if all(adjoint is None for adjoint in adjoints):
        return None
    with torch.enable_grad():
        points = [value.detach().requires_grad_() for value in at]
        pairs = [(y, a) for y, a in zip(outputs(*points), adjoints, strict=True) if a is not None]
        results, weights = zip(*pairs, strict=True)
        slopes = torch.autograd.grad(
            results, points, weights, create_graph=True, materialize_grads=True
        )
        slope = _dot(slopes, along)
        if not slope.requires_grad:
            return None
        return _dot(torch.autograd.grad(slope, points, materialize_grads=True), along)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def linear(operation: Operation, line: Line) -> Derivatives:
    """The rule for operations that are linear in their first argument."""
    if operation.slots != [operation.args[0]]:
        return generic_rule(operation, line)
    return operation.run(line.tangent_or_zeros), None


def sum_of_two(operation: Operation, line: Line) -> Derivatives:
    first, second = operation.args
    if not (isinstance(first, Slot) and isinstance(second, Slot)):
        return generic_rule(operation, line)
    return operation.run(line.tangent_or_zeros), None


def relu(operation: Operation, line: Line) -> Derivatives:
    is_active = line.value(operation.outputs[0]) > 0
    return [line.tangent_or_zeros(operation.args[0]) * is_active], None


def product(operation: Operation, line: Line) -> Derivatives:
    """The rule for operations that are linear in each of their two arguments."""
    tangent, second = _product(operation.op, *operation.args, line=line)
    return [tangent], line.weigh(operation, second)


def _product(
    times: Any, first: Any, second: Any, *, line: Line
) -> tuple[Tensor | None, Tensor | None]:
    """The tangent and the second-order term."""
    along_first, along_second = line.tangent(first), line.tangent(second)
    if along_second is None:
        return None if along_first is None else times(along_first, line.value(second)), None
    tangent = times(line.value(first), along_second)
    if along_first is None:
        return tangent, None
    return tangent + times(along_first, line.value(second)), 2 * times(along_first, along_second)


def product_and_sum(operation: Operation, line: Line) -> Derivatives:
    """The rule for ``addmm(bias, x, w)``."""
    if operation.kwargs:
        return generic_rule(operation, line)
    bias, first, second = operation.args
    tangent, second_order = _product(aten.mm.default, first, second, line=line)
    if tangent is None:
        return generic_rule(operation, line)
    along_bias = line.tangent(bias)
    tangent = tangent if along_bias is None else tangent + along_bias
    return [tangent], line.weigh(operation, second_order)


def convolution(operation: Operation, line: Line) -> Derivatives:
    """Three convolutions. Two of them run as one with twice the channels."""
    x, weight, bias, *options = operation.args
    along_x, along_weight, along_bias = (line.tangent(arg) for arg in (x, weight, bias))
    transposed, groups = options[3], options[5]
    if along_weight is None or transposed or groups > 1:
        return generic_rule(operation, line)
    tangent = operation.op(line.value(x), along_weight, along_bias, *options)
    if along_x is None:
        return [tangent], None
    both = torch.cat([line.value(weight), along_weight])
    first_order, second_order = operation.op(along_x, both, None, *options).chunk(2, dim=1)
    return [tangent.add_(first_order)], line.weigh(operation, 2 * second_order)


def batch_norm(operation: Operation, line: Line) -> Derivatives:
    r"""$y = \gamma \hat x + \beta$ with $\hat x = (x - \mu)\,s$.

    In evaluation, $\mu$ and $s$ are constants. In training they are those of the batch, and

    $$D\hat x = s\,(\dot z - m \hat x), \quad
    D^2\hat x = s^2\,((3m^2 - q)\,\hat x - 2m \dot z)$$

    where, for each channel, $\dot z$ is $\dot x$ minus its mean, $m$ is the mean of
    $\hat x \dot x$ and $q$ is the variance of $\dot x$.
    """
    x, weight, bias, running_mean, running_variance, training, _, eps = operation.args
    along_x, along_weight, along_bias = (line.tangent(arg) for arg in (x, weight, bias))
    adjoint = line.adjoint(operation)
    if along_x is None or along_weight is None or along_bias is None or adjoint is None:
        return generic_rule(operation, line)
    value, scale = line.value(x), line.value(weight)
    over = [d for d in range(value.dim()) if d != 1]
    shape = [-1 if d == 1 else 1 for d in range(value.dim())]
    if training:
        mean, inverse = (line.value(slot) for slot in operation.outputs[1:3])
        along = along_x - along_x.mean(over).view(shape)
    else:
        mean, inverse = running_mean, (running_variance + eps).rsqrt()
        along = along_x
    # Centres before it sums. A large mean would otherwise drown the differences.
    centred = value - mean.view(shape)
    m = inverse * (centred * along).mean(over) if training else torch.zeros_like(mean)
    slope = inverse * scale
    tangent = along * slope.view(shape)
    tangent.addcmul_(centred, (inverse * (along_weight - slope * m)).view(shape))
    tangent.add_(along_bias.view(shape))
    along_sum = (adjoint * along).sum(over)
    second_order = 2 * along_weight * inverse * along_sum
    if training:
        q = along.square().mean(over)
        centred_sum = inverse * (adjoint * centred).sum(over)
        second_order = second_order - 2 * along_weight * inverse * m * centred_sum
        second_order = second_order + scale * inverse**2 * (
            (3 * m**2 - q) * centred_sum - 2 * m * along_sum
        )
    return [tangent, *[None] * (len(operation.outputs) - 1)], second_order.sum()


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
WITHOUT_SECOND_ORDER = {*_LINEAR, *_SUMS, aten.relu.default}
"""Operations that have no second-order term. Their adjoints are not needed."""
RULES: dict[Any, Callable[[Operation, Line], Derivatives]] = {
    **dict.fromkeys(_LINEAR, linear),
    **dict.fromkeys(_SUMS, sum_of_two),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mul.Tensor), product),
    aten.addmm.default: product_and_sum,
    aten.convolution.default: convolution,
    **dict.fromkeys((aten.native_batch_norm.default, aten.cudnn_batch_norm.default), batch_norm),
    aten.relu.default: relu,
}
"""All other operations use `generic_rule`."""
