"""AutoAugment and RandAugment against Pillow, given the same draws; and how the draws fall."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from crsam.lab.data.augment import AutoAugment, Op, RandAugment
from crsam.lab.data.augment.levels import Level, of_code, of_paper, of_randaugment
from crsam.lab.data.augment.policies import CIFAR10, IMAGENET, Policy
from crsam.lab.data.augment.randaugment import OPS
from lab.data.augment.pillow_ops import by_pillow
from lab.data.augment.samples import SIZES, assert_share, generator, random_images

NO_LEVEL = {Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT}
SIGNED = {Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE}
N = 20_000


def no_images(n: int = N, size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    return torch.empty(1, 1, *size, dtype=torch.uint8).expand(n, 1, *size)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "augment",
    [
        AutoAugment(),
        AutoAugment("cifar10", "paper"),
        AutoAugment("imagenet"),
        RandAugment(),
        RandAugment(num_ops=3, magnitude=4.5),
    ],
    ids=repr,
)
def test_equals_pillow(augment: AutoAugment | RandAugment, size: tuple[int, int]) -> None:
    x = random_images(150, size)
    expected = x
    for ops, magnitudes in zip(*augment.draw(x, generator())):
        expected = by_pillow(expected, ops, magnitudes)
    out = augment(x, generator())
    assert torch.equal(out, expected)
    assert not torch.equal(out, x)


@pytest.mark.parametrize("policy", [CIFAR10, IMAGENET], ids=["cifar10", "imagenet"])
def test_a_policy_is_25_pairs_of_known_operations(policy: Policy) -> None:
    assert len(policy) == 25
    for name, share, level in (step for pair in policy for step in pair):
        assert round(share * 10) / 10 == share
        assert level == 0 if Op[name.upper()] in NO_LEVEL else 0 <= level <= 9


@pytest.mark.parametrize("policy", [CIFAR10, IMAGENET], ids=["cifar10", "imagenet"])
def test_every_sub_policy_occurs_and_as_often_as_the_others(policy: Policy) -> None:
    always: Policy = tuple(((a, 1.0, i), (b, 1.0, j)) for (a, _, i), (b, _, j) in policy)
    ops, magnitudes = AutoAugment(always, "code").draw(no_images(), generator())

    def key(pair: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
        return tuple((op, round(abs(m) if op in SIGNED else m, 9)) for op, m in pair)

    drawn = zip(*(zip(o, m) for o, m in zip(ops.tolist(), magnitudes.tolist())))
    seen = Counter(key(list(pair)) for pair in drawn)
    expected: Counter[tuple[tuple[int, float], ...]] = Counter()
    for pair in policy:
        steps = [(Op[name.upper()], level) for name, _, level in pair]
        expected[key([(op, sum(of_code(op, level, (32, 32)))) for op, level in steps])] += 1
    assert set(seen) == set(expected)
    for sub_policy, times in expected.items():
        assert_share(seen[sub_policy], N, times / 25)


def test_each_operation_has_its_probability_and_sign_apart_from_the_other() -> None:
    policy: Policy = ((("shear_x", 0.3, 9), ("rotate", 0.8, 5)),)
    ops, magnitudes = AutoAugment(policy, "code").draw(no_images(), generator())
    first, second = ops[0] == Op.SHEAR_X, ops[1] == Op.ROTATE
    assert (first | (ops[0] == Op.IDENTITY)).all()
    assert_share(first.sum(), N, 0.3)
    assert_share(second.sum(), N, 0.8)
    assert_share((first & second).sum(), N, 0.24)
    assert_share((magnitudes > 0).sum(1), N, 0.5)
    assert_share((magnitudes.prod(0) > 0).sum(), N, 0.5)
    assert magnitudes[0].abs().allclose(torch.tensor(0.27, dtype=torch.float64))
    assert magnitudes[1].abs().eq(15).all()


def test_a_probability_of_0_never_happens_and_of_1_always() -> None:
    policy: Policy = ((("invert", 0.0, 0), ("invert", 1.0, 0)),)
    ops, _ = AutoAugment(policy).draw(no_images(), generator())
    assert ops[0].eq(Op.IDENTITY).all()
    assert ops[1].eq(Op.INVERT).all()


def test_randaugment_draws_every_operation_alike() -> None:
    assert len(OPS) == 14
    ops, magnitudes = RandAugment(num_ops=3, magnitude=10).draw(no_images(), generator())
    assert ops.shape == magnitudes.shape == (3, N)
    for op in OPS:
        assert_share((ops == op).sum(1), N, 1 / 14)
    assert magnitudes[ops == Op.COLOR].unique().allclose(torch.tensor([0.1, 1.9]).double())
    assert magnitudes[ops == Op.TRANSLATE_X].unique().tolist() == [-14, 14]


def test_levels_of_the_code_are_the_authors() -> None:
    def at(op: Op, level: int) -> Level:
        return of_code(op, level, (32, 32))

    assert [at(Op.TRANSLATE_Y, i).swing for i in range(11)] == list(range(11))
    assert [at(Op.ROTATE, i).swing for i in range(11)] == [3 * i for i in range(11)]
    assert [at(Op.POSTERIZE, i).centre for i in range(11)] == [4, 4, 4, 3, 3, 2, 2, 2, 1, 1, 0]
    assert [at(Op.SOLARIZE, i).centre for i in (0, 5, 10)] == [256, 128, 0]
    assert at(Op.SHEAR_X, 5) == pytest.approx((0, 0.15))
    assert at(Op.COLOR, 0) == pytest.approx((0.1, 0))
    assert at(Op.COLOR, 10) == pytest.approx((1.9, 0))


def test_levels_of_the_paper_span_its_ranges() -> None:
    def ends(op: Op) -> list[float]:
        return [v for level in (0, 9) for v in of_paper(op, level, (331, 662))]

    assert ends(Op.SHEAR_Y) == pytest.approx([0, 0, 0, 0.3])
    assert ends(Op.TRANSLATE_Y) == [0, 0, 0, 150]
    assert ends(Op.TRANSLATE_X) == [0, 0, 0, 300]
    assert ends(Op.ROTATE) == [0, 0, 0, 30]
    assert ends(Op.POSTERIZE) == [8, 0, 4, 0]
    assert ends(Op.SOLARIZE) == [256, 0, 0, 0]
    assert ends(Op.SHARPNESS) == pytest.approx([0.1, 0, 1.9, 0])
    assert of_randaugment(Op.SHARPNESS, 0, (32, 32)) == (1, 0)
    assert of_paper(Op.EQUALIZE, 5, (32, 32)) == (0, 0)


INVERT = ("invert", 0.5, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoAugment("cifar"), "policy must be one of cifar10, imagenet, got 'cifar'"),
        (lambda: AutoAugment(levels="torch"), "levels must be one of code, paper"),
        (lambda: AutoAugment(((("blur", 0.5, 1), INVERT),)), "unknown operation 'blur'"),
        (lambda: AutoAugment(((("invert", 2, 1), INVERT),)), "probability of invert"),
        (lambda: RandAugment(num_ops=0), "num_ops must be a whole number of at least 1"),
        (lambda: RandAugment(magnitude=11), "magnitude must be a number between 0 and 10"),
    ],
)
def test_bad_values_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
