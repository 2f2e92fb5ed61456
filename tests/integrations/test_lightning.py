"""Lightning: ``configure_optimizers`` returns ours, and all is as in the plain loop."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_value_

import crsam
from integrations import tasks

L = pytest.importorskip("lightning")
from torchmetrics.classification import MulticlassAccuracy  # noqa: E402

from crsam.integrations import lightning as bridge  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*dataloader.* does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX`"),
]
takes_scalers = pytest.mark.skipif(
    "scaler" not in inspect.signature(crsam.SAM.step).parameters, reason="step takes no scaler yet"
)


class Digits(L.LightningModule):
    """What users write; only the seeding of every batch is the test's."""

    def __init__(self, method: str = "crsam", **options: Any) -> None:
        super().__init__()
        self.net, self.method, self.options = tasks.net(), method, options
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.outputs: list[Tensor] = []
        self.before_step: list[float] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        tasks.seed_batch(self.current_epoch, batch_idx)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log_dict({"loss": loss}, on_step=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs["loss"])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.norm() for p in self.net.parameters() if p.grad is not None]
        self.before_step.append(torch.stack(norms).norm().item())

    def configure_optimizers(self) -> Any:
        return tasks.make(self.method, self.net, **self.options)


class Scheduled(Digits):
    def configure_optimizers(self) -> Any:
        opt = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer(epochs: int = 1, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "enable_checkpointing": False, **quiet, **options}
    made = L.Trainer(max_epochs=epochs, **given)
    if not any(isinstance(each, bridge.SharpnessAwareSteps) for each in made.callbacks):
        made.callbacks += bridge.callbacks()  # run from a checkout that is not installed
    return made


def fit(module: Any, **options: Any) -> Any:
    made = trainer(**options)
    made.fit(module, tasks.loader())
    return made


@pytest.mark.parametrize("method", tasks.PLAIN_METHODS)
def test_any_method_goes_as_in_the_plain_loop(method: str) -> None:
    module = Digits(method)
    fit(module, epochs=2)
    tasks.assert_same(module.net, tasks.train_plainly(method, epochs=2)[0])


@pytest.mark.parametrize("method", ["crsam", "looksam", "rsam"])
def test_accumulation_and_clipping_act_as_in_the_plain_loop(method: str) -> None:
    module = Digits(method)
    made = fit(module, accumulate_grad_batches=4, gradient_clip_val=0.05)
    plain, losses = tasks.train_plainly(method, accumulate=4, clip=tasks.clip_norm)
    tasks.assert_same(module.net, plain)
    tasks.assert_differ(plain, tasks.train_plainly(method, accumulate=4)[0])
    assert made.global_step == len(losses) == 2  # of 4 batches, and of the 2 that were left


def test_clipping_by_value_acts_on_what_is_followed() -> None:
    module = Digits()
    fit(module, gradient_clip_val=0.01, gradient_clip_algorithm="value")
    plain, _ = tasks.train_plainly(clip=lambda params: clip_grad_value_(params, 0.01))
    tasks.assert_same(module.net, plain)


def test_logs_outputs_and_metrics_are_the_first_passes() -> None:
    module = Digits()
    made = fit(module)
    _, losses = tasks.train_plainly()
    assert [loss.item() for loss in module.outputs] == [loss.item() for loss in losses]
    assert made.callback_metrics["loss_step"] == losses[-1]
    assert made.callback_metrics["loss_epoch"].item() == pytest.approx(
        torch.stack(losses).mean().item()
    )
    plainly = Digits()
    plainly.configure_optimizers = lambda: torch.optim.SGD(plainly.net.parameters(), lr=0.0)
    of_sgd = fit(plainly).callback_metrics["accuracy_epoch"]
    still = Digits()
    still.configure_optimizers = lambda: crsam.RSAM(
        torch.optim.SGD(still.net.parameters(), lr=0.0), rho=5.0, model=still
    )
    assert fit(still).callback_metrics["accuracy_epoch"] == of_sgd


def test_the_hook_before_the_step_sees_what_is_followed_once_a_step() -> None:
    module = Digits()
    fit(module, accumulate_grad_batches=2)
    norms: list[float] = []
    tasks.train_plainly(
        accumulate=2,
        clip=lambda params: norms.append(
            torch.stack([p.grad.norm() for p in params if p.grad is not None]).norm().item()
        ),
    )
    assert module.before_step == norms
    assert len(norms) == 3


def test_a_scheduler_steps_without_a_warning() -> None:
    module = Scheduled()
    made = fit(module, epochs=2)
    assert made.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("method", ["crsam", "friendlysam", "ssam"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(method: str, tmp_path: Path) -> None:
    whole = Scheduled(method)
    fit(whole, epochs=2, accumulate_grad_batches=2)
    stopped = Scheduled(method)
    fit(stopped, epochs=1, accumulate_grad_batches=2).save_checkpoint(tmp_path / "half.ckpt")
    tasks.assert_differ(whole.net, stopped.net)
    resumed = Scheduled(method)
    made = trainer(epochs=2, accumulate_grad_batches=2)
    made.fit(resumed, tasks.loader(), ckpt_path=tmp_path / "half.ckpt")
    tasks.assert_same(whole.net, resumed.net)
    assert made.global_step == 6


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("left_out", [{0}, {3}, {1, 5}, {4, 5}])
def test_a_batch_that_training_step_leaves_out(left_out: set[int]) -> None:
    """Returning None: its micro-batch does not count, and without any there is no step."""

    class Picky(Digits):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx in left_out else loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert bool(outputs) == (batch_idx not in left_out)

    module = Picky("sam")
    fit(module, accumulate_grad_batches=2)

    model = tasks.net()
    opt = tasks.make("sam", model, model=model)
    for pair in ((0, 1), (2, 3), (4, 5)):
        kept = [i for i in pair if i not in left_out]
        batches = list(tasks.loader())
        for i in set(pair) - set(kept):
            tasks.seed_batch(0, i)
            model(batches[i][0])  # statistics move: it was seen

        def closure(kept: list[int] = kept, batches: list[Any] = batches) -> Tensor:
            parts = []
            for i in kept:
                tasks.seed_batch(0, i)
                loss = F.cross_entropy(model(batches[i][0]), batches[i][1]) / 2
                loss.backward()
                parts.append(loss.detach())
            return torch.stack(parts).sum()

        if kept:
            opt.step(closure)
    for a, b in zip(module.net.parameters(), model.parameters()):
        assert torch.equal(a, b)


def test_a_method_that_looks_at_samples_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"ESAM .*automatic_optimization = False .*PerSample"):
        fit(Digits("esam"))


@pytest.mark.parametrize("method", ["esam", "crsam"])
def test_manual_optimisation_takes_a_closure_over_samples(method: str) -> None:
    class ByHand(Digits):
        def __init__(self) -> None:
            super().__init__(method)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            x, y = batch

            def losses(part: Tensor | slice) -> Tensor:
                return F.cross_entropy(self.net(x[part]), y[part], reduction="none")

            self.optimizers().step(crsam.PerSample(losses, len(x)))

        def on_train_batch_end(self, *args: Any) -> None: ...

    module = ByHand()
    made = fit(module)
    assert made.global_step == len(module.before_step) == 6
    model = tasks.net()
    opt = tasks.make(method, model, model=model)
    for i, (x, y) in enumerate(tasks.loader()):
        tasks.seed_batch(0, i)
        opt.step(
            crsam.PerSample(
                lambda part, x=x, y=y: F.cross_entropy(model(x[part]), y[part], reduction="none"),
                len(x),
            )
        )
    tasks.assert_same(module.net, model)


class ByHand(Digits):
    """Manual optimization with a plain closure."""

    def __init__(self, method: str = "crsam", closure: bool = True) -> None:
        super().__init__(method)
        self.automatic_optimization, self.closure = False, closure

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        x, y = batch
        opt = self.optimizers()

        def closure() -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
            self.manual_backward(loss)
            return loss

        if self.closure:
            self.outputs.append(opt.step(closure=closure))
        else:
            closure()
            opt.step()

    def on_train_batch_end(self, *args: Any) -> None: ...


def test_manual_optimisation_takes_a_plain_closure() -> None:
    module = ByHand()
    fit(module)
    plain, losses = tasks.train_plainly()
    tasks.assert_same(module.net, plain)
    assert [loss.item() for loss in module.outputs] == [loss.item() for loss in losses]
    assert len(module.before_step) == 6


@takes_scalers
def test_manual_optimisation_in_fp16() -> None:
    module = ByHand("sam")
    scaler, made = fit_in_fp16(module)
    assert scaler.get_scale() == 256.0
    assert made.optimizers[0].param_groups[0]["crsam_step"] == 6
    for a, b in zip(module.net.parameters(), tasks.train_plainly("sam")[0].parameters()):
        torch.testing.assert_close(a, b, atol=4e-3, rtol=0)


def test_manual_optimisation_without_a_closure_is_told_what_to_call() -> None:
    with pytest.raises(ValueError, match=r"self\.optimizers\(\)\.step\(closure=closure\)"):
        fit(ByHand(closure=False))


@pytest.mark.parametrize("by_hand", [True, False])
def test_parameters_that_were_replaced_are_told_of(by_hand: bool) -> None:
    module = ByHand() if by_hand else Digits()

    module.on_train_start = lambda: module.load_state_dict(module.state_dict(), assign=True)
    with pytest.raises(RuntimeError, match=r"no gradient.*assign=True.* build the optimizer after"):
        fit(module)


def test_a_schedule_free_base_is_switched_through_lightning() -> None:
    schedulefree = pytest.importorskip("schedulefree")

    class ScheduleFree(Digits):
        def configure_optimizers(self) -> Any:
            base = schedulefree.SGDScheduleFree(self.net.parameters(), lr=0.1)
            return crsam.SAM(base)

        def on_train_epoch_start(self) -> None:
            self.optimizers().train()

        def on_train_epoch_end(self) -> None:
            self.optimizers().eval()

    module = ScheduleFree()
    fit(module)
    plain = tasks.net()
    base = schedulefree.SGDScheduleFree(plain.parameters(), lr=0.1)
    opt = crsam.SAM(base, model=plain)
    base.train()
    for i, (x, y) in enumerate(tasks.loader()):
        tasks.seed_batch(0, i)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = F.cross_entropy(plain(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    tasks.assert_differ(module.net, plain)
    base.eval()
    tasks.assert_same(module.net, plain)


def test_a_trainer_is_left_as_it_was_found() -> None:
    made = fit(Digits())
    loop = made.fit_loop.epoch_loop.automatic_optimization
    assert "_make_closure" not in vars(loop)
    assert "optimizer_step" not in vars(made.precision_plugin)
    plainly = Digits()
    plainly.configure_optimizers = lambda: torch.optim.SGD(plainly.net.parameters(), lr=0.1)
    made.fit_loop.max_epochs = 2
    made.fit(plainly, tasks.loader())
    assert len(plainly.before_step) == 6


def test_a_callback_of_your_own_beside_the_registered_one() -> None:
    module = Digits()
    made = trainer(accumulate_grad_batches=2)
    made.callbacks += bridge.callbacks()
    made.fit(module, tasks.loader())
    tasks.assert_same(module.net, tasks.train_plainly(accumulate=2)[0])
    assert "optimizer_step" not in vars(made.precision_plugin)


def test_strategies_that_own_the_weights_are_refused() -> None:
    class FSDPStrategy(L.pytorch.strategies.SingleDeviceStrategy):
        pass

    with pytest.raises(ValueError, match="cannot move the weights under Lightning's FSDPStrategy"):
        fit(Digits(), strategy=FSDPStrategy(device=torch.device("cpu")), accelerator="auto")


@takes_scalers
@pytest.mark.parametrize("bad_pass", [1, 2, 3])
def test_fp16_skips_the_whole_step_when_a_pass_overflows(bad_pass: int) -> None:
    passes = 0

    class Overflowing(Digits):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            nonlocal passes
            passes += 1
            loss = super().training_step(batch, batch_idx)
            return loss * (torch.inf if passes == bad_pass else 1.0)

    module = Overflowing()
    scaler, made = fit_in_fp16(module)
    assert scaler.get_scale() == 128.0
    assert made.optimizers[0].param_groups[0]["crsam_step"] == 5
    assert all(p.isfinite().all() for p in module.net.parameters())


@takes_scalers
def test_fp16_goes_as_in_the_plain_loop_within_its_noise() -> None:
    module = Digits("sam")
    scaler, made = fit_in_fp16(module, accumulate_grad_batches=2, gradient_clip_val=0.05)
    assert scaler.get_scale() == 256.0
    assert made.optimizers[0].param_groups[0]["crsam_step"] == 3
    plain, _ = tasks.train_plainly("sam", accumulate=2, clip=tasks.clip_norm)
    for a, b in zip(module.net.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0)
    tasks.assert_differ(module.net, plain)


def fit_in_fp16(module: Any, **options: Any) -> tuple[torch.amp.GradScaler, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    plugin = L.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler)
    return scaler, fit(module, plugins=[plugin], **options)


def test_bfloat16_goes_as_in_the_plain_loop() -> None:
    module = Digits("sam")
    fit(module, precision="bf16-mixed")
    model = tasks.net()
    opt = tasks.make("sam", model, model=model)
    for i, (x, y) in enumerate(tasks.loader()):
        tasks.seed_batch(0, i)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    tasks.assert_same(module.net, model)


def test_the_package_of_the_other_name() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from crsam.integrations.pytorch_lightning import callbacks

    class Other(pl.LightningModule):  # type: ignore[misc]
        on_train_batch_start = Digits.on_train_batch_start
        configure_optimizers = Digits.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net, self.method, self.options = tasks.net(), "crsam", {}

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

    module = Other()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    made = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=0.05,
        enable_checkpointing=False,
        **quiet,
    )
    if not any(type(each) is type(callbacks()[0]) for each in made.callbacks):
        made.callbacks += callbacks()
    made.fit(module, tasks.loader())
    tasks.assert_same(module.net, tasks.train_plainly(accumulate=2, clip=tasks.clip_norm)[0])


@pytest.mark.parametrize(
    "group",
    [
        "lightning.pytorch.callbacks_factory",
        "pytorch_lightning.callbacks_factory",
        "lightning.fabric.callbacks_factory",
        "lightning_fabric.callbacks_factory",
    ],
)
def test_an_installed_package_tells_lightning_of_the_callback(group: str) -> None:
    found = [entry for entry in entry_points(group=group) if entry.name == "crsam"]
    if not found:
        pytest.skip("crsam is not installed")
    (callback,) = found[0].load()()
    assert type(callback).__name__ == "SharpnessAwareSteps"
