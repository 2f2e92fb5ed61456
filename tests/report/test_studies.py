"""Figures of studies: leads and choices of what summaries say, seeds of several put together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from typer.testing import CliRunner

from crsam.cli import app
from crsam.errors import UserError
from crsam.report.studies import Study, read_studies

ROOT = Path(__file__).parents[2]
RECIPE = {
    "seed": 0,
    "method": "crsam",
    "data": {"name": "digits", "root": "here"},
    "model": {"name": "digits_mlp"},
    "train": {"epochs": 10},
    "methods": {"sam": {"rho": 0.05}, "crsam": {"rho": 0.1}},
}
METHODS = {"SGD": "sgd", "SAM": "sam", "CR-SAM": "crsam"}


def a_run(who: str, seed: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    changes = {"seed": seed, "method": METHODS[who], **more.pop("changes", {})}
    return {"stage": "final", "contestant": who, "seed": seed, "setting": {}, "changes": changes,
            "test_accuracy": accuracy, "validation_accuracy": None, **more}  # fmt: skip


def longer(who: str, seed: int, accuracy: float, epochs: int) -> dict[str, Any]:
    return a_run(who, seed, accuracy, stage="equal-time", changes={"train.epochs": epochs})


def tried(who: str, seed: int, accuracy: float | None, **setting: Any) -> dict[str, Any]:
    return a_run(who, seed, None, stage="choose", setting=setting, validation_accuracy=accuracy)


def write(file: Path, runs: Iterable[dict[str, Any]], **more: Any) -> Path:
    content = {"kind": "crsam study", "reference": "SAM", "recipe": RECIPE, "chosen": {},
               "options": {}, "verdict": {"at_equal_time": {}}, "runs": list(runs)}  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | more))
    return file


SAM, CRSAM = (90.0, 91.0, 90.5, 91.5), (90.5, 91.0, 91.5, 91.0)


def both(seeds: Iterable[int]) -> list[dict[str, Any]]:
    return [
        a_run(who, s, found[s]) for s in seeds for who, found in (("SAM", SAM), ("CR-SAM", CRSAM))
    ]


def leads(study: Study) -> dict[str, tuple[Any, Any]]:
    return {one.contestant.name: (one.at_equal_epochs, one.at_equal_time) for one in study.leads()}


def test_seeds_of_two_summaries_are_put_together(tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{s}.json", both(s)) for s in ((0, 1), (2, 3)))
    (study,) = read_studies([one, two])
    (found, at_equal_time) = leads(study)["CR-SAM"]
    differences = [b - a for a, b in zip(SAM, CRSAM)]
    ends = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (found.mean, found.num) == (pytest.approx(0.25), 4)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert at_equal_time is None
    assert study.title == "digits_mlp on digits, 10 epochs ((0, 1) and 1 more)"


@pytest.mark.parametrize(
    "changes",
    [
        {"train.epochs": 20},
        {"methods.sam.rho": 0.2},
        {"data.label_noise": 0.3},
        {"model.name": "b"},
    ],
)
def test_studies_of_other_references_stay_apart(tmp_path: Path, changes: dict[str, Any]) -> None:
    one = write(
        tmp_path / "a.json",
        both([0, 1]),
        recipe=RECIPE | {"data": {"label_noise": 0.0, "name": "digits"}},
    )
    runs = both([2, 3])
    for run in runs:
        run["changes"] |= changes
    two = write(tmp_path / "b.json", runs)
    assert len(read_studies([one, two])) == 2


def test_what_changes_nothing_keeps_no_study_apart(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0]))
    recipe = RECIPE | {"data": {"name": "digits", "root": "there"}, "log": {"every": 7}}
    recipe |= {"methods": {"sam": {"rho": 0.05}, "crsam": {"rho": 0.3}}}
    two = write(tmp_path / "b.json", both([1]), recipe=recipe)
    (study,) = read_studies([one, two])
    assert sorted(study.final["SAM"].accuracies) == [0, 1]
    # SAM is the same in both, CR-SAM has another ρ there: its seeds are not added up.
    assert {name: sorted(c.accuracies) for name, c in study.final.items() if name != "SAM"} == {
        "CR-SAM": [0],
        "CR-SAM (b)": [1],
    }


def test_options_that_were_defaults_keep_contestants_apart(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{s}.json", both([s]), options={"CR-SAM": {"trust": trust}})
        for s, trust in ((0, 0.5), (1, 0.1))
    ]
    (study,) = read_studies(files)
    assert {"CR-SAM", "CR-SAM (1)"} < study.final.keys()


def test_a_seed_counts_once_and_another_result_for_it_is_told(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0, 1]))
    two = write(tmp_path / "b.json", [*both([1]), a_run("SAM", 0, 50.0)])
    (study,) = read_studies([one, two])
    assert study.final["SAM"].accuracies == {0: SAM[0], 1: SAM[1]}
    assert study.notes == ["SAM, b: other results for seeds that are known"]


def test_at_equal_time_a_contestant_meets_the_reference_with_more_epochs(tmp_path: Path) -> None:
    runs = [*both([0, 1]), *(a_run("SGD", s, 80.0 + s) for s in (0, 1))]
    runs += [longer("SAM", s, 92.0 + s, 15) for s in (0, 1)]
    one = write(tmp_path / "a.json", runs, verdict={"at_equal_time": {"CR-SAM": {}}})
    found = leads(read_studies([one])[0])
    assert found["CR-SAM"][1].mean == pytest.approx(-1.75)
    assert found["SGD"][1] is None
    runs += [longer("SGD", s, 85.0, 30) for s in (0, 1)]
    pairs = ("CR-SAM against SAM", "SGD, equal time against SAM", "CR-SAM against SGD")
    two = write(tmp_path / "b.json", runs, verdict={"at_equal_time": {pair: {} for pair in pairs}})
    (study,) = read_studies([two])
    *_, last = study.leads()
    assert (last.contestant.name, last.contestant.epochs) == ("SGD", 30)
    assert last.at_equal_epochs is None
    assert last.at_equal_time is not None
    assert last.at_equal_time.mean == pytest.approx(-7.5)
    assert leads(study)["CR-SAM"][1].mean == pytest.approx(-1.75)


def test_a_run_without_an_accuracy_is_no_seed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", [*both([0, 1]), a_run("SAM", 2, None)])
    (study,) = read_studies([file])
    assert sorted(study.final["SAM"].accuracies) == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no object"),
        ('{"kind": "other"}', "is not the summary of a study"),
        ('{"kind": "crsam study", "recipe": {}}', "is not a whole summary: KeyError"),
    ],
)
def test_what_is_no_summary_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_studies([tmp_path / "a.json"])


def a_study(file: Path) -> Path:
    values = {("SAM", 0.1): (60.0, 62.0), ("SAM", 0.2): (64.0, 66.0), ("SAM", 0.4): (66.0, 65.0),
              ("CR-SAM", 0.1): (63.0, 65.0), ("CR-SAM", 0.2): (64.0, 64.0),
              ("CR-SAM", 0.4): (12.0, 10.0)}  # fmt: skip
    runs = [tried(who, s, v[s], rho=rho) for (who, rho), v in values.items() for s in (0, 1)]
    chosen = {"SAM": {"rho": 0.4}, "CR-SAM": {"rho": 0.1}}
    return write(file, [*runs, *both(range(4))], chosen=chosen)


def test_figures_are_drawn_of_summaries_and_of_a_studys_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.report.figures import write_figures

    folder = a_study(tmp_path / "study/study.json").parent
    ended = CliRunner().invoke(app, ["figures", str(folder / "study.json"), "-o", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.split() == [str(tmp_path / f"study-{n}.pdf") for n in ("leads", "choice")]
    assert ended.stderr == ""
    with pytest.raises(UserError, match=r"there is no folder .*none\.json"):
        write_figures([tmp_path / "none.json"], tmp_path)
    empty = write(tmp_path / "empty.json", [])
    with pytest.raises(UserError, match="nothing to draw in these 1 studies"):
        write_figures([empty], tmp_path)


def test_the_figures_show_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.report.figures import studies

    found = read_studies([a_study(tmp_path / "a.json")])
    ((_, figure),) = studies.leads(found)
    (axes,) = figure.axes
    zero, bar, dot = axes.lines
    (lead,) = (one.at_equal_epochs for one in found[0].leads())
    assert lead is not None
    assert list(zero.get_xdata()) == [0, 0]
    assert list(bar.get_xdata()) == [lead.low, lead.high]
    assert list(dot.get_xdata()) == [lead.mean]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["CR-SAM (4 seeds)"]
    ((_, figure),) = studies.choice(found)
    (axes,) = figure.axes
    sam, ring, crsam, *_ = axes.lines
    assert list(sam.get_xdata()) == [0.1, 0.2, 0.4]
    assert list(sam.get_ydata()) == [61.0, 65.0, 65.5]
    assert (*ring.get_xdata(), *ring.get_ydata()) == (0.4, 65.5)
    assert list(crsam.get_ydata()) == [64.0, 64.0, 11.0]
    # What collapsed would hide how the others differ: an arrow and its figure stand for it.
    assert axes.get_ylim()[0] > 40
    assert [text.get_text() for text in axes.texts] == ["11.0"]


def test_values_are_compared_with_the_rest_as_chosen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.report.figures import studies

    runs = [tried("CR-SAM", 0, 60 + 10 * rho + alpha, rho=rho, alpha=alpha)
            for rho in (0.1, 0.2) for alpha in (1.0, 2.0)]  # fmt: skip
    runs += [tried("SAM", 0, 61.0, rho=0.1), tried("SAM", 1, None, rho=0.1)]
    chosen = {"CR-SAM": {"rho": 0.2, "alpha": 1.0}, "SAM": {"rho": 0.1}}
    ((_, figure),) = studies.choice(read_studies([write(tmp_path / "a.json", runs, chosen=chosen)]))
    rho, alpha = figure.axes
    assert [list(line.get_ydata()) for line in rho.lines] == [[62.0, 63.0], [63.0], [61.0], [61.0]]
    assert [list(line.get_ydata()) for line in alpha.lines] == [[63.0, 64.0], [63.0]]


def test_all_our_own_studies_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [
        file
        for file in sorted((ROOT / "results").glob("*.json"))
        if json.loads(file.read_text()).get("kind") == "crsam study"
    ]
    assert len(files) > 10
    ended = CliRunner().invoke(
        app, ["figures", *map(str, files), "-o", str(tmp_path), "--format", "png", "--dpi", "40"]
    )
    assert ended.exit_code == 0, ended.output
