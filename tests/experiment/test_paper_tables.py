"""The paper's figures beside ours: as printed, and from nothing but files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from crsam.errors import UserError
from crsam.experiment.paper import longest, printed, results
from crsam.experiment.paper_tables import show_table
from crsam.experiment.recipe import as_tables
from crsam.experiment.toml import load_recipe

SUMS_1 = {"sgd": 2134.51, "sam": 2159.94, "crsam": 2177.75}
SUMS_2 = {"vanilla": 561.65, "sam": 583.37, "rsam": 585.47, "crsam": 593.98}


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
    assert "ResNet-18 basic CIFAR-10 95.29 — 96.46 96.00 96.95 —" in out
    assert "ResNet-18 cutout CIFAR-10 95.96 — 96.55 — 97.01 —" in out
    assert "WRN-28-10 basic CIFAR-10 95.89 90.50 96.81 — 97.36 90.50" in out
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
    assert "ResNet-18 basic CIFAR-10 95.29 95.50 96.46 96.25 96.95 95.25*" in out
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
    assert "ResNet-18 basic CIFAR-10 95.29 93.00" in out
    assert "SGD 99.00 1 200 0.001 A GPU c" in out


def test_a_run_with_other_options_than_the_recipes_does_not_stand_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {**a_run("SAM", 0, 95.0, method="sam"), "date": "2026-01-01"}
    other = a_run("SAM at 0.1", 0, 97.0, method="sam", **{"methods.sam.rho": 0.1})
    write(tmp_path, "a.json", "cifar10/resnet18", [plain, {**other, "date": "2026-01-02"}])
    out = shown("cifar", tmp_path, capsys)
    assert "ResNet-18 basic CIFAR-10 95.29 — 96.46 95.00" in out
    assert "SAM at 0.1 0.1 97.00" in out


def test_geometry_shows_what_was_measured_on_test_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [a_run("CR-SAM", s, 80.0, method="crsam") for s in (0, 2)]
    write(tmp_path, "a.json", "cifar100/resnet18", runs)
    write(tmp_path, "b.json", "tiny_imagenet/resnet18", runs)
    out = shown("geometry", tmp_path, capsys)
    assert "CR-SAM 8.26 — 7968.19 101 884.95 — 80.76 80.00" in out
    assert "SAM 11.51 — 14176.5 — " in out
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
    assert "CR-SAM 8.26 — 7968.19 — 884.95 — 80.76 —" in out
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


def test_the_figures_are_those_of_the_paper() -> None:
    """Sums over the tables, taken from their LaTeX source."""
    table_1 = printed("cifar")
    sums = {
        method: sum(f[method][0] for m in table_1.values() for d in ("cifar10", "cifar100")
                    for f in m[d].values())
        for method in ("sgd", "sam", "crsam")
    }  # fmt: skip
    assert sums == pytest.approx(SUMS_1)
    table_2 = printed("imagenet")
    rows = [f for m in table_2.values() for name, f in m.items() if name != "title"]
    assert {n: sum(f[n] for f in rows) for n in rows[0]} == pytest.approx(SUMS_2)
