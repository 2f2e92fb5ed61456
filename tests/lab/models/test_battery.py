"""What every model promises to a sharpness-aware step."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

import crsam
import problems
from crsam.lab.models import models
from lab.models.narrow import NARROW, Narrow, norms

every_model = pytest.mark.parametrize("case", NARROW.values(), ids=NARROW.keys())
images = pytest.mark.parametrize(
    "case",
    [case for case in NARROW.values() if case.name != "digits_mlp"],
    ids=[name for name in NARROW if not name.startswith("digits_mlp")],
)


def test_the_battery_covers_the_registry() -> None:
    assert {case.name for case in NARROW.values()} == set(models())


@every_model
def test_every_parameter_gets_a_finite_gradient(case: Narrow) -> None:
    model, (x, y) = case.model(), case.batch()
    out = model(x)
    assert out.shape == (len(x), 5)
    F.cross_entropy(out, y).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        # Biases whose shift a later norm takes out have none.
        assert p.ndim == 1 or p.grad.any(), name


@every_model
def test_batch_norm_where_asked_for_and_no_bias_before_it(case: Narrow) -> None:
    model = case.model()
    plain = case.options.get("batch_norm") is False or case.name.startswith("vit")
    assert bool(norms(model)) is not plain
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert all((m.bias is not None) is plain for m in convs)


@every_model
def test_eval_mode_is_deterministic_and_moves_nothing(case: Narrow) -> None:
    model, (x, _) = case.settled(), case.batch()
    before = copy.deepcopy(model.state_dict())
    assert torch.equal(model(x), model(x))
    assert torch.allclose(model(x)[:2], model(x[:2]), atol=1e-5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@every_model
def test_training_pass_depends_on_weights_and_random_numbers_only(case: Narrow) -> None:
    model, (x, _) = case.model(), case.batch()
    outs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outs.append(model(x))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2]) is not bool(case.options.get("dropout"))


@every_model
def test_state_dict_round_trip(case: Narrow) -> None:
    model, other, (x, _) = case.settled(), case.model(seed=1).eval(), case.batch()
    assert not torch.equal(model(x), other(x))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(model(x), other(x))


@images
def test_channels_last_from_end_to_end(case: Narrow) -> None:
    # In float64: after a hundred layers the rounding of float32 is 4e-5.
    model, (x, _) = case.settled(torch.float64), case.batch(torch.float64)
    expected = model(x)
    model.to(memory_format=torch.channels_last)
    seen: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend(t.is_contiguous(memory_format=torch.channels_last) for t in (*inputs, output))

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.register_forward_hook(look)
    out = model(x.to(memory_format=torch.channels_last))
    assert all(seen)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@every_model
def test_crsam_step_is_finite_and_moves_the_statistics_once(case: Narrow) -> None:
    model, (x, y) = case.model(torch.float64), case.batch(torch.float64)
    before = [p.detach().clone() for p in model.parameters()]
    base = SGD(model.parameters(), lr=0.05, momentum=0.9)
    opt = crsam.CRSAM(base, warmup=0, model=model)
    loss = opt.step(problems.closure_of(model, opt, x, y))
    assert torch.as_tensor(loss).isfinite()
    assert all(value.isfinite() for value in opt.report.values())
    assert all(p.isfinite().all() for p in model.parameters())
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before) if p.ndim > 1)
    assert all(b.isfinite().all() for b in model.buffers())
    assert all(m.num_batches_tracked == 1 for m in norms(model))


@every_model
def test_statistics_after_a_crsam_step_are_those_of_a_plain_one(case: Narrow) -> None:
    model, (x, y) = case.model(torch.float64), case.batch(torch.float64)
    plain = copy.deepcopy(model)
    opt = crsam.CRSAM(SGD(model.parameters(), lr=0.05), warmup=0, model=model)
    torch.manual_seed(2)
    opt.step(problems.closure_of(model, opt, x, y))
    torch.manual_seed(2)
    plain(x)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other)


@every_model
def test_hessian_products_are_symmetric(case: Narrow) -> None:
    model, (x, y) = case.model(torch.float64), case.batch(torch.float64)
    params = list(model.parameters())
    u, v = ([torch.randn_like(p) for p in params] for _ in range(2))
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    products = []
    for left, right in ((u, v), (v, u)):
        h = torch.autograd.grad(grads, params, left, retain_graph=True)
        products.append(sum((a * b).sum() for a, b in zip(h, right)))
    torch.testing.assert_close(products[0], products[1], rtol=1e-8, atol=1e-8)


@every_model
def test_functional_call_is_the_model_with_those_weights(case: Narrow) -> None:
    model, other, (x, _) = case.model(), case.model(seed=1), case.batch()
    state = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    torch.manual_seed(2)
    out = functional_call(model, state, (x,))
    torch.manual_seed(2)
    assert torch.equal(out, other(x))
    assert all(m.num_batches_tracked == 0 for m in norms(model))


TWICE = ("resnet18, imagenet", "resnet50", "resnet101")
"""Their blocks are those of others, and tracing many of them takes seconds."""


@pytest.mark.parametrize("name", [n for n in NARROW if n not in TWICE])
def test_compiles_into_one_graph(name: str) -> None:
    case = NARROW[name]
    torch.compiler.reset()
    model, (x, y) = case.model(torch.float64), case.batch(torch.float64)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.manual_seed(2)
    expected = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    torch.manual_seed(2)
    grads = torch.autograd.grad(F.cross_entropy(compiled(x), y), list(model.parameters()))
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other)
