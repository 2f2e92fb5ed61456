"""Transformers: any method by name in a ``Trainer``, and all is as in the plain loop."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import crsam
from integrations import tasks

transformers = pytest.importorskip("transformers")
from crsam.integrations.transformers import SharpnessAwareTrainer  # noqa: E402


class Classifier(nn.Module):
    """The same net as everywhere, as a Trainer wants it; masks follow the batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = tasks.net(**options)
        self.calls: list[float] = []

    def forward(self, x: Tensor, labels: Tensor, index: Tensor) -> dict[str, Tensor]:
        tasks.seed_batch(0, int(index[0]) // 8)
        loss = F.cross_entropy(self.net(x), labels)
        self.calls.append(loss.item())
        return {"loss": loss}


def dataset(dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
    x, y = tasks.data(dtype)
    return [{"x": x[i], "labels": y[i], "index": i} for i in range(len(x))]


class Sgd(SharpnessAwareTrainer):
    """With the base of the plain loop: one group, and momentum."""

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kwargs.get("method", "crsam") == "crsam":
            kwargs["method_options"] = {"warmup": 3, **kwargs.get("method_options", {})}
        super().__init__(model, *args, optimizers=(sgd, None), **kwargs)


def arguments(folder: Path, kind: str = "TrainingArguments", **options: Any) -> Any:
    given: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        **options,
    }
    return getattr(transformers, kind)(str(folder), **given)


def train(folder: Path, method: str = "crsam", **options: Any) -> tuple[Classifier, Any]:
    model = Classifier()
    trainer = Sgd(model, arguments(folder, **options), train_dataset=dataset(), method=method)
    trainer.train()
    return model, trainer


def logged(trainer: Any, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


@pytest.mark.parametrize("method", tasks.PLAIN_METHODS)
def test_any_method_goes_as_in_the_plain_loop(method: str, tmp_path: Path) -> None:
    model, trainer = train(tmp_path, method)
    plain, losses = tasks.train_plainly(method, seed=42)
    tasks.assert_same(model.net, plain)
    assert logged(trainer, "loss") == pytest.approx([loss.item() for loss in losses], rel=1e-6)
    assert logged(trainer, "crsam/loss") == pytest.approx(logged(trainer, "loss"), rel=1e-6)


@pytest.mark.parametrize("method", ["crsam", "looksam", "rsam"])
def test_accumulation_and_clipping_act_as_in_the_plain_loop(method: str, tmp_path: Path) -> None:
    model, trainer = train(tmp_path, method, gradient_accumulation_steps=3, max_grad_norm=0.05)
    plain, losses = tasks.train_plainly(method, accumulate=3, max_norm=0.05, seed=42)
    tasks.assert_same(model.net, plain)
    tasks.assert_differ(plain, tasks.train_plainly(method, accumulate=3, seed=42)[0])
    expected = [loss.item() for loss in losses]
    assert logged(trainer, "crsam/loss") == pytest.approx(expected, rel=1e-6)
    # R-SAM's first pass is elsewhere. What a micro-batch logs before the step is the loss at w.
    assert logged(trainer, "loss") == pytest.approx(expected, 1e-2 if method == "rsam" else 1e-6)
    assert trainer.state.global_step == 2


def test_the_logged_norm_is_that_of_what_is_followed_before_clipping(tmp_path: Path) -> None:
    _, trainer = train(tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.05)
    norms: list[float] = []

    def look(params: list[nn.Parameter]) -> None:
        norms.append(torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm())
        for p in params:
            assert p.grad is not None
            p.grad *= 0.05 / norms[-1]

    tasks.train_plainly(accumulate=2, clip=look, seed=42)
    assert logged(trainer, "grad_norm") == pytest.approx([float(n) for n in norms], rel=1e-4)


def test_a_short_last_window_is_divided_by_its_own_length(tmp_path: Path) -> None:
    """As the Trainer does: of 6 batches, 4 make a step, then 2."""
    model, trainer = train(tmp_path, "sam", gradient_accumulation_steps=4)
    assert trainer.state.global_step == 2
    assert logged(trainer, "loss")[1] == pytest.approx(sum(model.calls[8:10]) / 2, rel=1e-6)


@pytest.mark.parametrize("method", ["crsam", "friendlysam"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(method: str, tmp_path: Path) -> None:
    options = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine",
        "save_strategy": "steps",
        "save_steps": 2,  # in the middle of the first epoch
        "max_grad_norm": 1.0,
    }
    whole, _ = train(tmp_path / "whole", method, **options)
    model = Classifier()
    args = arguments(tmp_path / "part", **options)
    Stopped = type("Stopped", (transformers.TrainerCallback,), {"on_step_end": _stop_after_2})
    Sgd(model, args, train_dataset=dataset(), method=method, callbacks=[Stopped()]).train()
    tasks.assert_differ(whole.net, model.net)
    resumed = Classifier()
    trainer = Sgd(resumed, args, train_dataset=dataset(), method=method)
    trainer.train(resume_from_checkpoint=str(tmp_path / "part" / "checkpoint-2"))
    tasks.assert_same(whole.net, resumed.net)
    assert trainer.state.global_step == 6
    assert len(resumed.calls) == 4 * 2 * (3 if method == "crsam" else 2)


def _stop_after_2(self: Any, args: Any, state: Any, control: Any, **_: Any) -> Any:
    control.should_training_stop = state.global_step == 2
    return control


def test_training_twice_goes_on_with_the_same_optimizer(tmp_path: Path) -> None:
    _, trainer = train(tmp_path)
    trainer.train()
    assert type(trainer.optimizer.optimizer) is crsam.CRSAM
    assert trainer.optimizer.optimizer.param_groups[0]["crsam_step"] == 12


def test_an_optimizer_of_ours_is_used_as_it_is(tmp_path: Path) -> None:
    model = Classifier()
    opt = tasks.make("asam", model, rho=0.7, max_norm=0.5)
    args = arguments(tmp_path, max_grad_norm=1.0)
    SharpnessAwareTrainer(model, args, train_dataset=dataset(), optimizers=(opt, None)).train()
    tasks.assert_same(model.net, tasks.train_plainly("asam", rho=0.7, max_norm=0.5)[0])


def test_the_optimizer_of_the_arguments_is_the_base(tmp_path: Path) -> None:
    args = arguments(tmp_path, optim="adamw_torch", learning_rate=1e-3, weight_decay=0.1)
    trainer = SharpnessAwareTrainer(Classifier(), args, train_dataset=dataset(), method="WSAM")
    trainer.train()
    opt = trainer.optimizer.optimizer
    assert type(opt) is crsam.WSAM
    assert type(opt.base) is torch.optim.AdamW
    assert {group["weight_decay"] for group in opt.param_groups} == {0.0, 0.1}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_schedule_free_base_is_evaluated_at_its_own_weights(
    accumulate: int, tmp_path: Path
) -> None:
    schedulefree = pytest.importorskip("schedulefree")
    model, plain = Classifier(), tasks.net()
    made = crsam.SAM(schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05), model=model)
    args = arguments(tmp_path, gradient_accumulation_steps=accumulate, eval_steps=3)
    args.eval_strategy = transformers.trainer_utils.IntervalStrategy("steps")
    trainer = SharpnessAwareTrainer(
        model, args, train_dataset=dataset(), eval_dataset=dataset(), optimizers=(made, None)
    )
    trainer.train()
    seen = [*logged(trainer, "eval_loss"), trainer.evaluate()["eval_loss"]]

    base = schedulefree.AdamWScheduleFree(plain.parameters(), lr=0.05)
    opt = crsam.SAM(base, model=plain)
    expected = []
    batches = list(enumerate(tasks.loader()))
    for number, start in enumerate(range(0, 6, accumulate), start=1):
        window = batches[start : start + accumulate]

        def closure(window: list[Any] = window) -> Tensor:
            parts = []
            for index, (x, y) in window:
                tasks.seed_batch(0, index)
                loss = F.cross_entropy(plain(x), y) / accumulate
                loss.backward()
                parts.append(loss.detach())
            return torch.stack(parts).sum()

        base.train()
        opt.step(closure)
        if number % 3 == 0:
            in_training = copy.deepcopy(plain)
            expected.append(eval_loss(plain, base))
            tasks.assert_differ(plain, in_training)
    expected.append(eval_loss(plain, base))
    tasks.assert_same(plain, model.net)
    assert seen == pytest.approx(expected, rel=1e-6)


def eval_loss(model: nn.Module, base: Any) -> float:
    base.eval()
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(tasks.data()[0]), tasks.data()[1])
    model.train()
    return loss.item()


@pytest.mark.parametrize(
    "optim", ["schedule_free_adamw", "schedule_free_sgd", "schedule_free_radam"]
)
def test_the_schedule_free_optimizers_of_the_arguments(optim: str, tmp_path: Path) -> None:
    schedulefree = pytest.importorskip("schedulefree")
    args = arguments(tmp_path, optim=optim, learning_rate=0.01)
    data = dataset()
    trainer = SharpnessAwareTrainer(Classifier(), args, train_dataset=data, eval_dataset=data)
    trainer.train()
    opt = trainer.optimizer.optimizer
    assert type(opt.base).__module__.startswith(schedulefree.__name__)
    assert [group["train_mode"] for group in opt.param_groups] == [True, True]
    trainer.evaluate()
    assert [group["train_mode"] for group in opt.param_groups] == [False, False]


def test_the_logged_norm_is_no_base_s_that_overwrites_gradients(tmp_path: Path) -> None:
    class Overwriting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for p in self.param_groups[0]["params"]:
                p.grad.fill_(1e9)

    norms = []
    for kind in (torch.optim.SGD, Overwriting):
        model = Classifier()
        opt = crsam.SAM(kind(model.parameters(), lr=0.1))
        args = arguments(tmp_path, max_grad_norm=0.5)
        trainer = SharpnessAwareTrainer(
            model, args, train_dataset=dataset(), optimizers=(opt, None)
        )
        trainer.train()
        norms.append(logged(trainer, "grad_norm"))
    assert norms[0] == norms[1]


def test_another_trainer_of_theirs(tmp_path: Path) -> None:
    class Mine(Sgd, transformers.Seq2SeqTrainer):
        pass

    model = Classifier()
    Mine(model, arguments(tmp_path, "Seq2SeqTrainingArguments"), train_dataset=dataset()).train()
    tasks.assert_same(model.net, tasks.train_plainly(seed=42)[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "crsma"}, "unknown method 'crsma': did you mean 'crsam'"),
        ({"method": "sam", "method_options": {"rh": 1}}, "option of sam 'rh': did you mean 'rho'"),
        ({"method": "sam", "method_options": {"rho": -1}}, "rho must not be negative, got -1"),
        ({"method": "esam"}, "ESAM .*PartOfBatch.* looks at single samples"),
    ],
)
def test_mistakes_are_one_clear_line(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Sgd(Classifier(), arguments(tmp_path), train_dataset=dataset(), **given).train()


def test_a_version_that_divides_gradients_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.Accelerator.gradient_accumulation_steps", 2)
    with pytest.raises(ValueError, match="use transformers>="):
        Sgd(Classifier(), arguments(tmp_path), train_dataset=dataset())


def test_bfloat16_learns(tmp_path: Path) -> None:
    model, trainer = train(tmp_path, "sam", bf16=True, num_train_epochs=3)
    losses = logged(trainer, "loss")
    assert losses[-1] < losses[0]
    exact, _ = train(tmp_path, "sam", num_train_epochs=3)
    tasks.assert_differ(model.net, exact.net)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Trainer's fp16 needs a GPU")
@pytest.mark.skipif(
    "scaler" not in inspect.signature(crsam.SAM.step).parameters, reason="step takes no scaler yet"
)
def test_fp16_skips_the_whole_step_when_a_pass_overflows(tmp_path: Path) -> None:
    class Overflowing(Classifier):
        def forward(self, x: Tensor, labels: Tensor, index: Tensor) -> dict[str, Tensor]:
            out = super().forward(x, labels, index)
            return {"loss": out["loss"] * (torch.inf if len(self.calls) == 3 else 1.0)}

    model = Overflowing()
    args = arguments(tmp_path, use_cpu=False, fp16=True, max_grad_norm=1.0)
    trainer = Sgd(model, args, train_dataset=dataset())
    trainer.train()
    assert trainer.optimizer.optimizer.param_groups[0]["crsam_step"] == 5
    assert trainer.accelerator.scaler.get_scale() == 2**15
    assert all(p.isfinite().all() for p in model.parameters())
