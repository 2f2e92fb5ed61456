"""One run in one folder."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import crsam
from crsam.errors import UserError
from crsam.lab.experiment import journal, tables
from crsam.lab.experiment.build import BFLOAT16_FLOOR, build
from crsam.lab.experiment.folder import MetricsLog, RunFolder
from crsam.lab.experiment.run import evaluate_run, run
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train import interrupt
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stopped
from crsam.lab.train.step import EagerStep
from lab.experiment.runs import assert_same, outcome, tiny

METHODS = ["sgd", *crsam.methods()]


def stop_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if someone asked to stop just before the loop looks for the n-th time."""
    count = itertools.count(1)
    monkeypatch.setattr(interrupt.Stop, "asked", property(lambda stop: next(count) == looks))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_its_loss_falls(method: str, tmp_path: Path) -> None:
    result = run(tiny(f"method={method}", "data.label_noise=0"), tmp_path, lines=False)
    losses = [m["loss"] for m in RunFolder(tmp_path).metrics() if m["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert result["method"] == method
    assert result["steps"] == 15


def test_a_run_folder_holds_what_is_needed_to_tell_and_repeat_it(tmp_path: Path) -> None:
    recipe = tiny("data.validation=0.2")
    result = run(recipe, tmp_path / "one", lines=False)
    files = {p.name for p in (tmp_path / "one").iterdir()}
    wanted = {"recipe.toml", "environment.json", "metrics.jsonl", "checkpoint.pt", "result.json"}
    wanted.add("checkpoint.previous.pt")
    assert files == {*wanted, "data.json", ".lock"}
    assert load_recipe(tmp_path / "one/recipe.toml") == recipe
    about = json.loads((tmp_path / "one/environment.json").read_text())
    assert about["versions"]["torch"] == torch.__version__
    assert about["processes"] == 1
    for name, value in {"rho": 0.1, "form": "log", "trust": 0.1, "warmup": 200}.items():
        assert about["options"][name] == value, name
    assert not about["options"].keys() & {"base", "model", "seed", "group"}
    lines = RunFolder(tmp_path / "one").metrics()
    assert [m["epoch"] for m in lines if m["kind"] == "validation"] == [1, 2, 3]
    assert lines[-1]["kind"] == "test"
    assert lines[-1]["accuracy"] == result["test_accuracy"]
    assert sum(m["kind"] == "test" for m in lines) == 1
    assert all({"loss", "lr", "curvature", "grad_norm"} <= m.keys() for m in lines[:1])
    run(load_recipe(tmp_path / "one/recipe.toml"), tmp_path / "again", lines=False)
    assert_same(tmp_path / "one", tmp_path / "again")


def test_the_test_set_is_looked_at_once_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[int, str]] = []
    evaluate = journal.evaluate

    def watching(model: Any, images: Any, feed: Any, **options: Any) -> Any:
        looked.append((len(images), options["label"]))
        return evaluate(model, images, feed, **options)

    monkeypatch.setattr(journal, "evaluate", watching)
    run(tiny("data.validation=0.1"), tmp_path, lines=False)
    assert looked == [(144, "validating")] * 3 + [(360, "testing")]


def test_a_run_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = run(tiny(), tmp_path, lines=False)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir() if p.name != ".lock"}
    assert run(tiny(), tmp_path, lines=False) == first
    assert before == {p: p.stat().st_mtime_ns for p in before}
    measured = ("measures-train.json", "spectrum-test.npz", "landscape.npz", "robustness.json")
    for name in measured:
        (tmp_path / name).touch()
    run(tiny(), tmp_path, fresh=True, lines=False)
    assert not any((tmp_path / name).exists() for name in measured)  # they were of other weights
    assert (tmp_path / "result.json").stat().st_mtime_ns > before[tmp_path / "result.json"]


@pytest.mark.parametrize("method", METHODS)
def test_stopped_between_any_two_steps_and_resumed_it_ends_the_same(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(f"method={method}", "train.ema=0.9", "data.validation=0.1")
    run(recipe, tmp_path / "whole", lines=False)

    for looks in (1, 4, 2):
        stop_after(looks, monkeypatch)
        with pytest.raises(Stopped):
            run(recipe, tmp_path / "parts", lines=False)
    monkeypatch.undo()
    run(recipe, tmp_path / "parts", lines=False)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_dropout_masks_are_those_of_the_step_whatever_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ["model=wrn28_10", "model.depth=10", "model.widen_factor=1", "model.dropout=0.5"]
    recipe = load_recipe("digits", [*net, "train.epochs=1", "train.batch_size=256", "log.every=1"])
    run(recipe, tmp_path / "whole", lines=False)
    stop_after(3, monkeypatch)
    with pytest.raises(Stopped):
        run(recipe, tmp_path / "parts", lines=False)
    monkeypatch.undo()
    run(recipe, tmp_path / "parts", lines=False)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_stop_is_heard_after_an_epoch_and_saves_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(interrupt.Stop, "asked", property(lambda stop: len(taken) >= 5))
    step = EagerStep.__call__
    monkeypatch.setattr(EagerStep, "__call__", lambda *args: taken.append(1) or step(*args))
    with pytest.raises(Stopped):
        run(tiny("log.checkpoint=3"), tmp_path, lines=False)
    assert len(taken) == 5  # an epoch has 5 steps
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["training"]["step"] == 5


def test_the_last_epoch_is_evaluated_and_kept_whatever_the_interval(tmp_path: Path) -> None:
    recipe = tiny("data.validation=0.1", "log.evaluate=2", "log.checkpoint=2", "log.every=1000")
    run(recipe, tmp_path, lines=False)
    lines = RunFolder(tmp_path).metrics()
    assert [m["epoch"] for m in lines if m["kind"] == "validation"] == [2, 3]
    assert [m["step"] for m in lines if m["kind"] == "train"] == [5, 10, 15]
    assert outcome(tmp_path)[0]["step"] == 15


def test_seconds_count_over_all_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt.Stop, "asked", True)
    with pytest.raises(Stopped):
        run(tiny(), tmp_path, lines=False)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["seconds"] > 0
    torch.save({**state, "seconds": 1000.0}, tmp_path / "checkpoint.pt")
    monkeypatch.undo()
    assert run(tiny(), tmp_path, lines=False)["seconds"] > 1000


def test_flatness_is_that_of_the_training_loss_in_evaluation_mode(tmp_path: Path) -> None:
    recipe = tiny("model=digits_conv", "model.width=4", "train.precision=float64", "augment=basic")
    result = run(recipe, tmp_path, lines=False)
    parts = build(recipe, World())
    model = parts.training.model
    model.load_state_dict(outcome(tmp_path)[0]["model"])
    model.eval()
    images = parts.splits.train.fetch(torch.arange(1437)).double() / 255

    def loss_of(parameters: list[torch.Tensor]) -> torch.Tensor:
        state = dict(zip(dict(model.named_parameters()), parameters))
        logits = torch.func.functional_call(model, state, (images,))
        return torch.nn.functional.cross_entropy(logits, parts.splits.train.labels)

    weights = [p.detach().requires_grad_() for p in model.parameters()]
    loss = loss_of(weights)
    grads = torch.autograd.grad(loss, weights)
    norm = torch.cat([g.flatten() for g in grads]).norm()
    above = loss_of([w + 0.05 * g / norm for w, g in zip(weights, grads)])
    assert result["train_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert result["gradient_norm"] == pytest.approx(norm.item(), rel=1e-6)
    assert result["sharpness"] == pytest.approx((above - loss).item(), rel=1e-5)


def test_evaluation_computes_in_the_precision_of_the_recipe(tmp_path: Path) -> None:
    result = run(tiny("train.precision=bfloat16"), tmp_path, lines=False)
    about = json.loads((tmp_path / "environment.json").read_text())
    assert (about["options"]["floor"], about["floor"]) == (None, BFLOAT16_FLOOR)
    assert evaluate_run(tmp_path)[1].loss == result["test_loss"]
    text = (tmp_path / "recipe.toml").read_text().replace("bfloat16", "float32")
    (tmp_path / "recipe.toml").write_text(text)
    assert evaluate_run(tmp_path)[1].loss != result["test_loss"]


def test_seeds_change_weights_data_order_and_wrong_labels(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tiny(f"seed={seed}"), tmp_path / str(seed), lines=False)
    a, b = outcome(tmp_path / "0"), outcome(tmp_path / "1")
    assert not torch.equal(*(next(iter(s[0]["model"].values())) for s in (a, b)))
    assert a[1] != b[1]


def test_methods_are_paired_they_start_from_the_same_loss(tmp_path: Path) -> None:
    losses = set()
    for method in ("sgd", "sam", "crsam"):
        run(tiny(f"method={method}", "log.every=1"), tmp_path / method, lines=False)
        losses.add(RunFolder(tmp_path / method).metrics()[0]["loss"])
    assert len(losses) == 1


def test_a_folder_of_another_recipe_is_refused_and_left_alone(tmp_path: Path) -> None:
    run(tiny(), tmp_path, lines=False)
    before = (tmp_path / "recipe.toml").read_text()
    with pytest.raises(UserError, match=r"another recipe \(model\.width: 8 there, 9 here\)"):
        run(tiny("model.width=9"), tmp_path, lines=False)
    assert (tmp_path / "recipe.toml").read_text() == before


def test_a_default_that_has_changed_since_is_another_recipe_and_can_be_said(tmp_path: Path) -> None:
    result = run(tiny(), tmp_path, lines=False)
    file = tmp_path / "environment.json"
    about = json.loads(file.read_text())
    about["options"] |= {"trust": 0.5, "no_more": 1}  # as if that had been the default then
    file.write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"\(methods\.crsam\.trust: 0\.5 there, 0\.1 here\)"):
        run(tiny(), tmp_path, lines=False)
    assert run(tiny("methods.crsam.trust=0.5"), tmp_path, lines=False) == result
    with pytest.raises(UserError, match=r"trust: 0\.5 there, \"none\" here"):
        run(tiny("methods.crsam.trust=none"), tmp_path, lines=False)
    del about["options"]  # as older runs are: what is not said is taken for what it is now
    file.write_text(json.dumps(about))
    assert run(tiny(), tmp_path, lines=False) == result
    with pytest.raises(UserError, match=r"trust: nothing there, 0\.5 here"):
        run(tiny("methods.crsam.trust=0.5"), tmp_path, lines=False)


@pytest.mark.parametrize("method", METHODS)
def test_all_options_of_a_method_are_known_before_it_is_built(method: str) -> None:
    recipe = tiny(f"method={method}", "train.epochs=200")  # long: the warm-up is not capped
    known = recipe.all_method_options
    built = build(recipe, World())
    opt, steps_an_epoch = built.training.optimizer, len(built.batches)
    if method == "sgd":
        assert known == {}
        return
    assert isinstance(opt, crsam.SharpnessAware)
    assert known["warmup"] == opt.warmup
    for part in (opt.ascent, opt.objective, opt.schedule):
        for name, value in vars(part).items():
            if (method, name) == ("rsam", "total_steps"):  # the build fills it in
                assert known[name] is None
                assert value == 200 * steps_an_epoch
            else:
                assert name not in known or known[name] == value, name


def test_where_the_data_lies_may_change_between_starts(tmp_path: Path) -> None:
    result = run(tiny(), tmp_path, lines=False)
    assert run(tiny("data.root=elsewhere", "log.tensorboard=true"), tmp_path) == result


def test_a_result_without_its_recipe_is_refused(tmp_path: Path) -> None:
    run(tiny(), tmp_path, lines=False)
    (tmp_path / "recipe.toml").unlink()
    with pytest.raises(UserError, match=r"no recipe\.toml"):
        run(tiny("seed=3"), tmp_path, lines=False)


@pytest.mark.parametrize("wrong", ["optimizer.momentum=-1", "data.name=cifar10"])
def test_a_run_that_is_refused_leaves_nothing(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(UserError):
        run(tiny(wrong, f"data.root={tmp_path}"), tmp_path / "runs/some/one", lines=False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs/some").mkdir(parents=True)
    with pytest.raises(UserError):
        run(tiny(wrong, f"data.root={tmp_path}"), tmp_path / "runs/some", lines=False)
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs", tmp_path / "runs/some"]


def test_a_run_is_not_forgotten_for_one_that_is_refused(tmp_path: Path) -> None:
    result = run(tiny(), tmp_path, lines=False)
    with pytest.raises(UserError, match="momentum"):
        run(tiny("optimizer.momentum=-1"), tmp_path, lines=False, fresh=True)
    assert run(tiny(), tmp_path, lines=False) == result


def test_a_run_that_never_got_to_a_checkpoint_does_not_block_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="momentum"):
        run(tiny("optimizer.momentum=-1"), tmp_path, lines=False)
    run(tiny(), tmp_path, lines=False)
    assert load_recipe(tmp_path / "recipe.toml") == tiny()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    run(tiny("model.width=9"), tmp_path / "other", lines=False)
    run(tiny(), tmp_path / "mine", lines=False)
    (tmp_path / "mine/result.json").unlink()
    (tmp_path / "other/checkpoint.pt").replace(tmp_path / "mine/checkpoint.pt")
    for use in (lambda: run(tiny(), tmp_path / "mine"), lambda: evaluate_run(tmp_path / "mine")):
        with pytest.raises(UserError, match="of another model") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_two_processes_cannot_train_into_one_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path).claim(), pytest.raises(UserError, match="another process"):
        run(tiny(), tmp_path, lines=False)


def test_metrics_cut_by_someone_are_noticed(tmp_path: Path) -> None:
    run(tiny(), tmp_path, lines=False)
    (tmp_path / "result.json").unlink()
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has been cut"):
        run(tiny(), tmp_path, lines=False)


def test_metrics_written_after_the_checkpoint_are_forgotten_and_resume_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny("log.every=1"), tmp_path / "whole", lines=False)
    place = tmp_path / "parts"
    monkeypatch.setattr(interrupt.Stop, "asked", True)
    with pytest.raises(Stopped):
        run(tiny("log.every=1"), place, lines=False)
    with (place / "metrics.jsonl").open("a") as file:  # as if killed later
        file.write('{"kind": "train", "step": 2}\n' * 3)
    monkeypatch.setattr(MetricsLog, "write", lambda log, line: None)
    with pytest.raises(Stopped):  # before the next line is written
        run(tiny("log.every=1"), place, lines=False)
    state = torch.load(place / "checkpoint.pt", weights_only=True)
    assert state["metrics_length"] == (place / "metrics.jsonl").stat().st_size


def test_a_run_whose_last_step_diverges_is_done_too(tmp_path: Path) -> None:
    recipe = tiny("method=sgd", "optimizer.lr=1e38", "train.epochs=1", "train.batch_size=1437")
    result = run(recipe, tmp_path, lines=False)
    assert result["steps"] == 1
    assert result["diverged_at"] == 1
    tables.show_result(result, tmp_path)


def test_a_run_that_diverges_says_so_and_is_done(tmp_path: Path) -> None:
    recipe = tiny("method=sgd", "optimizer.lr=1e30")
    result = run(recipe, tmp_path, lines=False)
    assert result["diverged_at"] is not None
    assert result["gradient_norm"] is None
    assert run(recipe, tmp_path, lines=False) == result
    json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)


def test_evaluate_gives_what_the_run_gave(tmp_path: Path) -> None:
    result = run(tiny("train.ema=0.8", "data.validation=0.1"), tmp_path, lines=False)
    step, score = evaluate_run(tmp_path)
    assert step == 15
    assert score.accuracy == result["test_accuracy"]
    assert score.loss == pytest.approx(result["test_loss"], rel=1e-12)
    last = [m for m in RunFolder(tmp_path).metrics() if m["kind"] == "validation"][-1]
    assert evaluate_run(tmp_path, split="validation")[1].accuracy == last["accuracy"]


def test_evaluate_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe\.toml"):
        evaluate_run(tmp_path)
    run(tiny(), tmp_path, lines=False)
    with pytest.raises(UserError, match=r"data\.validation is 0"):
        evaluate_run(tmp_path, split="validation")


def test_the_average_of_the_weights_is_judged_where_one_is_kept(tmp_path: Path) -> None:
    for name, options in {"plain": [], "ema": ["train.ema=0.99"]}.items():
        run(tiny(*options), tmp_path / name, lines=False)
    plain, ema = outcome(tmp_path / "plain"), outcome(tmp_path / "ema")
    for key, value in plain[0]["model"].items():
        assert torch.equal(value, ema[0]["model"][key])  # training is not disturbed
    assert plain[2]["test_loss"] < ema[2]["test_loss"]  # an average of 100 steps, after 15


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tiny("log.tensorboard=true", "data.validation=0.1"), tmp_path, lines=False)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    lines = [m for m in RunFolder(tmp_path).metrics() if m["kind"] == "train"]
    seen = events.Scalars("train/loss")
    assert [e.step for e in seen] == [m["step"] for m in lines]
    assert [e.value for e in seen] == pytest.approx([m["loss"] for m in lines])
    assert len(events.Scalars("validation/accuracy")) == 3


def test_it_runs_in_a_thread_where_signals_cannot_be_caught(tmp_path: Path) -> None:
    thread = threading.Thread(target=run, args=(tiny(), tmp_path), kwargs={"lines": False})
    thread.start()
    thread.join()
    assert (tmp_path / "result.json").exists()
