"""The paper's figures beside ours: as printed, and from nothing but files."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crsam.errors import UserError
from crsam.lab.experiment.folder import RunFolder
from crsam.lab.experiment.paper import longest, printed, results
from crsam.lab.experiment.paper_tables import show_table
from crsam.lab.experiment.recipe import as_tables
from crsam.lab.experiment.toml import load_recipe, to_toml

# The rows of the tables, copied out of their LaTeX source by a script.
TABLE_1 = [
    "ResNet-18 basic 95.29 0.16 96.46 0.18 96.95 0.13 78.34 0.22 79.81 0.18 80.76 0.21",
    "ResNet-18 cutout 95.96 0.13 96.55 0.15 97.01 0.21 79.23 0.13 80.15 0.17 81.26 0.19",
    "ResNet-18 autoaugment 96.33 0.15 96.75 0.18 97.27 0.12 79.05 0.17 81.26 0.21 82.11 0.22",
    "ResNet-101 basic 96.35 0.12 96.51 0.16 97.14 0.11 80.54 0.13 82.11 0.12 83.03 0.17",
    "ResNet-101 cutout 96.56 0.18 96.95 0.13 97.51 0.24 81.26 0.21 82.39 0.27 83.46 0.16",
    "ResNet-101 autoaugment 96.78 0.14 97.11 0.16 97.76 0.16 81.83 0.37 83.25 0.47 84.19 0.23",
    "WRN-28-10 basic 95.89 0.21 96.81 0.26 97.36 0.15 81.84 0.13 83.15 0.14 84.45 0.09",
    "WRN-28-10 cutout 96.89 0.07 97.55 0.16 97.98 0.21 81.96 0.40 83.47 0.15 84.48 0.13",
    "WRN-28-10 autoaugment 96.93 0.12 97.59 0.06 97.94 0.08 82.16 0.11 83.69 0.26 84.74 0.21",
    "PyramidNet-110 basic 96.27 0.13 97.34 0.13 97.89 0.08 83.27 0.12 84.89 0.09 85.68 0.14",
    "PyramidNet-110 cutout 96.79 0.13 97.61 0.21 98.08 0.11 83.43 0.21 84.97 0.17 85.86 0.21",
    "PyramidNet-110 autoaugment 96.97 0.08 97.81 0.13 98.26 0.11 84.59 0.08 85.76 0.23 86.58 0.14",
]
"""Mean and ± of SGD, SAM and CR-SAM: on CIFAR-10, then on CIFAR-100."""
TABLE_2 = [
    "ResNet-50 ImageNet-1k 75.94 76.48 76.89 77.64",
    "ResNet-50 ImageNet-C 43.64 46.03 46.19 46.94",
    "ResNet-50 ImageNet-R 21.93 23.13 22.89 23.48",
    "ResNet-101 ImageNet-1k 77.81 78.64 78.71 79.12",
    "ResNet-101 ImageNet-C 48.56 51.27 51.35 51.87",
    "ResNet-101 ImageNet-R 24.38 25.89 25.91 26.37",
    "ViT-S/32 ImageNet-1k 68.40 70.23 70.39 71.68",
    "ViT-S/32 ImageNet-C 43.21 45.78 45.92 46.46",
    "ViT-S/32 ImageNet-R 19.04 21.12 21.35 21.98",
    "ViT-B/32 ImageNet-1k 71.25 73.51 74.06 75.28",
    "ViT-B/32 ImageNet-C 44.37 46.98 47.28 48.12",
    "ViT-B/32 ImageNet-R 23.12 24.31 24.53 25.04",
]
"""Vanilla, SAM, R-SAM, CR-SAM."""
TABLE_3 = [
    "SGD 19.97 0.52 32673.88 1497.56 1674.89 78.69 78.34 0.22",
    "SAM 11.51 0.31 14176.52 327.69 1193.87 59.18 79.81 0.18",
    "CR-SAM 8.26 0.19 7968.19 145.73 884.95 23.59 80.76 0.21",
]
"""Mean and ± of gradient norm, trace, C(w) and accuracy."""


def a_run(contestant: str, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    return {
        "stage": "final",
        "contestant": contestant,
        "seed": seed,
        "changes": {"seed": seed, **changes},
        "hardware": "A GPU",
        "test_accuracy": accuracy,
        "measures": {"hessian_trace, test": 100.0 + seed, "hessian_trace, train": 5.0},
    }


def write(folder: Path, name: str, recipe: str, runs: list[dict[str, Any]]) -> None:
    tables = as_tables(load_recipe(recipe))
    (folder / name).write_text(json.dumps({"recipe": tables, "hardware": "Here", "runs": runs}))


def shown(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    show_table(name, results(folder))
    return re.sub(" +", " ", capsys.readouterr().out)


def test_ours_stand_beside_the_papers_and_a_dash_where_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sam = {"method": "sam", "train.epochs": 60}
    runs = [a_run("SAM short", 0, 99.0, method="sam", **{"train.epochs": 5})]
    runs += [a_run("SAM", s, 95.0 + s, **sam) for s in (0, 2)]
    for key in ("data.validation", "data.test_share"):
        runs += [a_run("SAM, on part", 0, 98.0, method="sam", **{key: 0.1})]
    runs += [{**a_run("SAM, chosen", 0, 97.5, method="sam"), "stage": "choose"}]
    write(tmp_path, "a.json", "cifar10/resnet18", runs)
    compared = [{"method": m, "seed": 0, "test_accuracy": 90.5} for m in ("sgd", "crsam")]
    write(tmp_path, "b.json", "cifar10/wrn28_10", compared)
    (tmp_path / "c.json").write_text('{"milliseconds": 3}')
    out = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 basic CIFAR-10 95.29 ± 0.16 — 96.46 ± 0.18 96.00 96.95 ± 0.13 —" in out
    assert "ResNet-18 cutout CIFAR-10 95.96 ± 0.13 — 96.55 ± 0.15 — 97.01 ± 0.21 —" in out
    assert "WRN-28-10 basic CIFAR-10 95.89 ± 0.21 90.50 96.81 ± 0.26 — 97.36 ± 0.15 90.50" in out
    first, second = out.partition("Ours: resnet18 on cifar10, basic")[2].split("Ours: ")
    assert "SAM 0.05 96.00 ± 1.41 2 60 0.001 A GPU a" in first
    assert first.index("SAM 0.05 96.00") < first.index("SAM short 0.05 99.00")  # by epochs
    assert second.startswith("wrn28_10 on cifar10, basic")
    assert "crsam 0.1 90.50 1 200 0.001 Here b" in second
    assert "on part" not in out
    assert "chosen" not in out


def test_a_run_of_fewer_epochs_than_its_row_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run("SGD", 0, 95.5, method="sgd"), a_run("SAM", 0, 96.25, method="sam")]
    runs += [a_run("CR-SAM", 0, 95.25, **{"train.epochs": 60})]
    write(tmp_path, "a.json", "cifar10/resnet18", runs)
    out = shown("cifar", tmp_path, capsys)
    row = "95.29 ± 0.16 95.50 96.46 ± 0.18 96.25 96.95 ± 0.13 95.25*"
    assert f"ResNet-18 basic CIFAR-10 {row}" in out
    assert "* of fewer epochs than others in its row" in out


def test_of_equals_the_latest_stands_in_the_table_not_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decays = {"a": (5e-3, 96.0, "2026-01-02"), "b": (5e-4, 93.0, "2026-01-03"),
              "c": (1e-3, 99.0, "2026-01-01")}  # fmt: skip
    for name, (decay, accuracy, date) in decays.items():
        run = a_run("SGD", 0, accuracy, method="sgd", **{"optimizer.weight_decay": decay})
        write(tmp_path, f"{name}.json", "cifar10/resnet18", [{**run, "date": date}])
    out = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 basic CIFAR-10 95.29 ± 0.16 93.00" in out
    assert "SGD 99.00 1 200 0.001 A GPU c" in out


def test_a_run_with_other_options_than_the_recipes_does_not_stand_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {**a_run("SAM", 0, 95.0, method="sam"), "date": "2026-01-01"}
    other = a_run("SAM at 0.1", 0, 97.0, method="sam", **{"methods.sam.rho": 0.1})
    write(tmp_path, "a.json", "cifar10/resnet18", [plain, {**other, "date": "2026-01-02"}])
    out = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 basic CIFAR-10 95.29 ± 0.16 — 96.46 ± 0.18 95.00" in out
    assert "SAM at 0.1 0.1 97.00" in out


def test_geometry_shows_what_was_measured_on_test_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run("CR-SAM", s, 80.0, method="crsam") for s in (0, 2)]
    write(tmp_path, "a.json", "cifar100/resnet18", runs)
    write(tmp_path, "b.json", "tiny_imagenet/resnet18", runs)
    out = shown("geometry", tmp_path, capsys)
    assert "CR-SAM 8.26 ± 0.19 — 7968.19 ± 145.73 101 884.95 ± 23.59 — 80.76 ± 0.21 80.00" in out
    assert "SAM 11.51 ± 0.31 — 14176.52 ± 327.69 — " in out
    _, _, tiny = out.partition("Measured: resnet18 on tiny_imagenet, basic")
    assert "\nCR-SAM 0.15 200 0.001 — 101 — 80.00 b" in tiny


def test_geometry_compares_like_norms_and_marks_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"gradient_norm, test": 3.0, "normalized_trace, test": 40.0}
    both = {**full, "gradient_norm_of_batches, test": 9.5,
            "normalized_trace_of_batches, test": 12.5}  # fmt: skip
    runs = [
        {**a_run(method, 0, 80.0, method=method), "measures": measures}
        for method, measures in (("sam", full), ("crsam", both))
    ]
    write(tmp_path, "a.json", "cifar100/resnet18", runs)
    table, _, rest = shown("geometry", tmp_path, capsys).partition("The paper's ‖∇L‖ is")
    sam, crsam = (re.search(rf"\n{name} .*", table) for name in ("SAM", "CR-SAM"))
    assert sam is not None
    assert crsam is not None
    assert "3†" in sam[0]
    assert "40†" in sam[0]
    assert " 9.5 " in crsam[0]
    assert " 12.5 " in crsam[0]
    assert "†" not in crsam[0]
    assert "mean over batches of 128 of the norms" in rest


def test_the_papers_normalised_trace_is_not_its_trace_by_its_norm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C(w) by hand from the printed table: 1674.89 by 32673.88 / 19.97, and so on."""
    write(tmp_path, "a.json", "cifar100/resnet18", [a_run("SGD", 0, 80.0, method="sgd")])
    out = shown("geometry", tmp_path, capsys)
    off = [100 * (c * norm / trace - 1) for norm, trace, c in (
        (19.97, 32673.88, 1674.89), (11.51, 14176.52, 1193.87), (8.26, 7968.19, 884.95)
    )]  # fmt: skip
    assert [round(each, 1) for each in off] == [2.4, -3.1, -8.3]
    assert "is not its own Tr ∇²L / ‖∇L‖: SGD +2.4 %, SAM −3.1 %, CR-SAM −8.3 %." in out


def test_runs_that_were_tested_on_training_images_are_told_from_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run("CR-SAM", s, 80.0, method="crsam", **{"data.test_share": 0.1}) for s in (0, 2)]
    write(tmp_path, "a.json", "cifar100/resnet18", runs)
    out = shown("geometry", tmp_path, capsys)
    assert "CR-SAM 8.26 ± 0.19 — 7968.19 ± 145.73 — 884.95 ± 23.59 — 80.76 ± 0.21 —" in out
    _, _, held_out = out.partition("Measured: resnet18 on cifar100, held out, basic")
    assert "\nCR-SAM 0.15 200 0.001 — 101 — 80.00 a" in held_out


def test_imagenet_is_known_by_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run("AdamW", 0, 60.0, method="adamw"), a_run("R-SAM", 0, 61.0, method="rsam")]
    write(tmp_path, "a.json", "paper/imagenet/vit_s32", runs)
    out = shown("imagenet", tmp_path, capsys)
    assert "ViT-S/32 ImageNet-1k 68.40 60.00 70.23 — 70.39 61.00 71.68 —" in out
    assert "ViT-S/32 ImageNet-C 43.21 — 45.78" in out


def test_runs_that_no_table_could_have_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "cifar10/quick", [a_run("SGD", 0, 80.0, method="sgd")])
    write(tmp_path, "b.json", "demo", [a_run("SGD", 0, 80.0, method="sgd")])
    assert results(tmp_path) == []
    assert longest([]) is None


def test_a_folder_or_file_that_is_wrong_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        results(tmp_path / "nowhere")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad\.json is not JSON"):
        results(tmp_path)


def test_committed_results_can_be_read() -> None:
    assert isinstance(results(), list)


def digits(out: str) -> str:
    """The paper's figures of a table without any of ours: no dashes, no ±."""
    return out.replace(" —", "").replace(" ±", "")


def test_every_digit_is_that_of_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cifar = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 basic CIFAR-10 95.29 ± 0.16 — 96.46 ± 0.18 — 96.95 ± 0.13 —" in cifar
    for row in TABLE_1:
        model, augment, *figures = row.split()
        for data, half in (("CIFAR-10", figures[:6]), ("CIFAR-100", figures[6:])):
            assert f"\n{model} {augment} {data} {' '.join(half)}\n" in digits(cifar)
    imagenet = shown("imagenet", tmp_path, capsys)
    for row in TABLE_2:
        assert f"\n{row}\n" in digits(imagenet)
    geometry = shown("geometry", tmp_path, capsys)
    assert "32673.88 ± 1497.56" in geometry
    for row in TABLE_3:
        assert f"\n{row}\n" in digits(geometry)


def test_no_digit_is_cut_off_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = shown("cifar", tmp_path, capsys)
    narrow = Console(width=80)
    monkeypatch.setattr("crsam.lab.experiment.paper_tables.console", lambda: narrow)
    assert shown("cifar", tmp_path, capsys) == wide


def test_other_images_stand_in_table_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the summary of a study, and from the folders of runs."""
    sections = {
        "imagenet_c": {"mean_accuracy": 45.25},
        "imagenet_r": {"accuracy": 22.5, "num_classes": 200},
    }
    run = {**a_run("SAM", 0, 76.0, method="sam"), "robustness": sections}
    partly = {"imagenet_c": {"mean_accuracy": None, "of_those_there": {"mean_accuracy": 50.0}}}
    other = {**a_run("SGD", 0, 75.0, method="sgd"), "robustness": partly}
    write(tmp_path, "a.json", "paper/imagenet/resnet50", [run, other])
    for seed, accuracy in ((0, 46.0), (1, 47.0)):
        folder = RunFolder(tmp_path / f"crsam/seed{seed}")
        folder.path.mkdir(parents=True)
        recipe = load_recipe("paper/imagenet/resnet50", [f"seed={seed}"])
        folder.recipe_file.write_text(to_toml(recipe))
        folder.write_json("robustness.json", {"imagenet_c": {"mean_accuracy": accuracy}})
    out = shown("imagenet", tmp_path, capsys)
    assert "ResNet-50 ImageNet-1k 75.94 75.00 76.48 76.00 76.89 — 77.64 —" in out
    assert "ResNet-50 ImageNet-C 43.64 — 46.03 45.25 46.19 — 46.94 46.50" in out
    assert "ResNet-50 ImageNet-R 21.93 — 23.13 22.50 22.89 — 23.48 —" in out
    assert re.search(r"\ncrsam 0.15 46.50 ± 0.71 2 90 3e-05 +robustness", out)


def test_another_augmentation_than_the_papers_does_not_stand_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AutoAugment with Cutout, and Cutout of every image, are not rows of Table 1."""
    for augment, given in (("autoaugment", {"side": 16}), ("cutout", {"cut_share": 1.0})):
        changes = {f"augment.{key}": value for key, value in given.items()}
        runs = [a_run("SAM", 0, 96.0, method="sam"), a_run("SGD", 0, 95.0, method="sgd", **changes)]
        write(tmp_path, f"{augment}.json", f"paper/cifar10/resnet18-{augment}", runs)
    out = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 autoaugment CIFAR-10 96.33 ± 0.15 — 96.75 ± 0.18 96.00 97.27" in out
    assert "ResNet-18 cutout CIFAR-10 95.96 ± 0.13 — 96.55 ± 0.15 96.00 97.01" in out


def test_the_figures_in_the_heads_of_the_recipes_are_those_of_the_tables() -> None:
    for model, rows in printed("cifar").items():
        for data in ("cifar10", "cifar100"):
            for augment, figures in rows[data].items():
                head, *_ = text_of(f"paper/{data}/{model}-{augment}").splitlines()
                assert [float(n) for n in re.findall(r"\d+\.\d\d", head)] == [
                    figures[method][0] for method in ("sgd", "sam", "crsam")
                ]


def text_of(recipe: str) -> str:
    return (files("crsam.lab") / "recipes" / f"{recipe}.toml").read_text()
