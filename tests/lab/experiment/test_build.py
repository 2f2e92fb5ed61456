"""What a recipe says is what is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

import crsam
from crsam.errors import UserError
from crsam.lab.data import Images
from crsam.lab.experiment.build import BFLOAT16_FLOOR, TF32_FLOOR, Parts, build, floor_of
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.distributed import World
from crsam.lab.train.step import EagerStep
from lab.data.cifar_files import write_cifar
from lab.experiment.runs import tiny


def built(*overrides: str) -> Parts:
    return build(tiny(*overrides), World())


def eager(parts: Parts) -> EagerStep:
    assert isinstance(parts.take_step, EagerStep)
    return parts.take_step


def weights(parts: Parts) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parts.training.model.parameters()])


def wrong_labels(parts: Parts, clean: Parts) -> torch.Tensor:
    return (parts.splits.train.labels != clean.splits.train.labels).nonzero().flatten()


def test_weights_and_wrong_labels_depend_on_the_seed_and_on_nothing_else() -> None:
    zero, again, one = built(), built("method=sam", "train.epochs=9"), built("seed=1")
    assert torch.equal(weights(zero), weights(again))
    assert not torch.equal(weights(zero), weights(one))
    clean = built("data.label_noise=0")
    assert torch.equal(wrong_labels(zero, clean), wrong_labels(again, clean))
    assert not torch.equal(wrong_labels(zero, clean), wrong_labels(one, clean))
    assert len(wrong_labels(zero, clean)) == round(0.2 * 1437)


def pixels(images: Images | None) -> list[bytes]:
    assert images is not None
    return [image.numpy().tobytes() for image in images.fetch(torch.arange(len(images)))]


def num_shared(some: list[bytes], others: list[bytes]) -> int:
    return len(set(some) & set(others))


TWINS = 3
"""Digits that are there twice are fewer."""


def test_validation_images_are_held_out_and_the_same_for_every_seed() -> None:
    parts, other = built("data.validation=0.1"), built("data.validation=0.1", "seed=5")
    train, held_out = pixels(parts.splits.train), pixels(parts.splits.validation)
    assert len(train) + len(held_out) == 1437
    assert len(parts.batches.images) == len(train)
    assert num_shared(train, held_out) < TWINS
    assert pixels(other.splits.validation) == held_out
    assert len(parts.splits.test) == 360


def test_a_share_of_the_training_images_takes_the_place_of_the_test_images() -> None:
    plain = built("data.validation=0.1").splits
    parts = built("data.test_share=0.2", "data.validation=0.1", "seed=5")
    train, chosen_by, test = map(
        pixels, (parts.splits.train, parts.splits.validation, parts.splits.test)
    )
    assert (len(test), len(chosen_by)) == (287, 115)  # a fifth of 1437, a tenth of what is left
    assert len(train) == len(parts.batches.images) == 1437 - 287 - 115
    for some, others in ((train, chosen_by), (train, test), (chosen_by, test)):
        assert num_shared(some, others) < TWINS
    assert num_shared(test, pixels(plain.train) + pixels(plain.validation)) == len(set(test))
    assert num_shared(test, pixels(plain.test)) < TWINS
    # Drawn apart from what is chosen by without it: a fifth of that is shared by chance, not all.
    assert num_shared(test, pixels(plain.validation)) < 0.3 * len(pixels(plain.validation))


def test_such_test_images_are_the_same_for_every_seed_and_rightly_labelled() -> None:
    zero, one = (built("data.test_share=0.2", f"seed={seed}").splits for seed in (0, 1))
    assert pixels(zero.test) == pixels(one.test)
    clean = built("data.test_share=0.2", "data.label_noise=0").splits
    assert torch.equal(zero.test.labels, clean.test.labels)
    assert (zero.train.labels != clean.train.labels).sum() == round(0.2 * len(clean.train))


@pytest.mark.parametrize("key", ["validation", "test_share"])
def test_a_share_that_leaves_nothing_is_an_error_that_names_it(key: str) -> None:
    with pytest.raises(UserError, match=rf"data.{key} = 1e-05 leaves 1437 images .* and 0 to"):
        built(f"data.{key}=1e-5")


def test_precision_is_that_of_the_recipe() -> None:
    def dtypes(parts: Parts) -> tuple[object, ...]:
        seen: list[torch.dtype] = []
        layer = next(m for m in parts.training.model.modules() if isinstance(m, nn.Linear))
        layer.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
        parts.take_step(next(parts.batches.epoch(0)))
        return layer.weight.dtype, seen[0]

    assert dtypes(built()) == (torch.float32, torch.float32)
    assert dtypes(built("train.precision=float64")) == (torch.float64, torch.float64)
    assert dtypes(built("train.precision=bfloat16")) == (torch.float32, torch.bfloat16)


def test_the_guard_of_the_log_form_follows_the_precision_unless_told() -> None:
    def floor(*overrides: str) -> float | None:
        optimizer = built("train.precision=bfloat16", *overrides).training.optimizer
        assert isinstance(optimizer, crsam.CRSAM)
        return optimizer.objective.floor  # type: ignore[attr-defined]

    assert floor() == BFLOAT16_FLOOR
    assert floor("methods.crsam.floor=0.5") == 0.5
    assert floor("train.precision=float32") is None


def test_on_a_gpu_float32_convolutions_are_trusted_less_unless_tf32_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert floor_of("float32", cuda, True) == TF32_FLOOR
    assert floor_of("float32", cuda, False) is None
    assert floor_of("float32", cpu, True) is None
    assert floor_of("float64", cuda, True) is None
    assert floor_of("bfloat16", cuda, False) == BFLOAT16_FLOOR > TF32_FLOOR
    monkeypatch.setattr("crsam.lab.experiment.build.tf32_is_allowed", lambda: False)
    assert floor_of("float32", cuda, True) is None


@pytest.mark.parametrize("method", ["sgd", "sam"])
def test_gradients_are_clipped_for_plain_optimizers_and_for_methods(method: str) -> None:
    parts = built(f"method={method}", "train.clip_norm=1e-3", "optimizer.momentum=0")
    before = weights(parts)
    parts.training.set_rates(1.0)
    parts.take_step(next(parts.batches.epoch(0)))
    decay = 0.1 * 5e-4 * before.norm()
    assert (weights(parts) - before).norm() <= 0.1 * 1.001e-3 + decay


def test_the_method_gets_options_seed_and_model() -> None:
    parts = built("method=rsam", "seed=7", "methods.rsam.rho=0.25")
    optimizer = parts.training.optimizer
    assert isinstance(optimizer, crsam.RSAM)
    assert optimizer.seed == 7
    assert optimizer.model is parts.training.model
    assert optimizer.param_groups[0]["rho"] == 0.25
    plain = built("method=base", "optimizer.momentum=0.5").training.optimizer
    assert type(plain) is SGD
    assert plain.param_groups[0]["momentum"] == 0.5


def test_targets_are_smoothed_and_mixed() -> None:
    def targets(*overrides: str) -> torch.Tensor:
        return next(built(*overrides).batches.epoch(0)).targets

    assert targets().dtype == torch.int64
    assert targets("loss.label_smoothing=0.1").min().item() == pytest.approx(0.01)
    assert targets("loss.label_smoothing=0.1", "loss.mixup=0.5").min().item() == pytest.approx(0.01)
    assert (targets("loss.mixup=0.5") > 0).sum(1).max() == 2


def test_augmentation_is_built_and_fills_with_the_mean_colour() -> None:
    assert built("augment=basic", "augment.pad=3").splits.feed.augment.pad == 3  # type: ignore[attr-defined]
    small = "augment=cutout", "augment.side=4"
    cut = built(*small).splits.feed.augment.parts[-1]  # type: ignore[attr-defined]
    assert cut.fill == (0,)
    mine = built(*small, "augment.fill=[9]").splits.feed.augment.parts[-1]  # type: ignore[attr-defined]
    assert mine.fill == (9,)


def test_channels_last_is_a_memory_order() -> None:
    parts = built("model=digits_conv", "model.width=4", "train.channels_last=true")
    convs = [m for m in parts.training.model.modules() if isinstance(m, nn.Conv2d)]
    assert convs[1].weight.is_contiguous(memory_format=torch.channels_last)


def test_methods_that_look_at_samples_get_them_and_refuse_accumulation() -> None:
    assert eager(built("method=esam")).by_sample
    assert not eager(built("method=sam")).by_sample
    with pytest.raises(UserError, match="esam looks at single samples"):
        built("method=esam", "train.accumulate=2")


def test_mistakes_name_the_table_they_are_in() -> None:
    with pytest.raises(UserError, match=r"methods\.sam: rho"):
        built("method=sam", "methods.sam.rho=-1")
    with pytest.raises(UserError, match="model: "):
        built("model.width=0")
    with pytest.raises(UserError, match="optimizer: "):
        built("optimizer.momentum=-1")


def test_a_model_that_does_not_take_the_images_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-py")
    recipe = load_recipe("cifar10/resnet18", ["model=digits_mlp", f"data.root={tmp_path}"])
    with pytest.raises(UserError, match=r"'digits_mlp' does not take images of 3×32×32"):
        build(recipe, World())


def test_a_batch_must_be_cut_evenly() -> None:
    with pytest.raises(UserError, match="equal parts on each of 2 processes"):
        build(tiny("train.batch_size=6", "train.accumulate=2"), World(size=2))


def test_the_random_start_of_rsam_rises_over_the_steps_of_the_run() -> None:
    parts = built("method=rsam", "train.epochs=3")
    ascent = parts.training.optimizer.ascent
    assert ascent.total_steps == 3 * len(parts.batches) > 3
    assert built("method=rsam", "methods.rsam.total_steps=7").training.optimizer.ascent == replace(
        ascent, total_steps=7
    )
