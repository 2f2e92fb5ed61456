"""Figures of studies: leads and choices of what summaries say, seeds of several put together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from typer.testing import CliRunner

from crsam.errors import UserError
from crsam.lab.cli import app
from crsam.lab.report.studies import Contestant, Lead, Study, read_studies

RESULTS = Path(__file__).parents[3] / "results"
OURS = [
    file
    for file in sorted(RESULTS.glob("*.json"))
    if json.loads(file.read_text()).get("kind") == "crsam study"
]
RECIPE = {
    "seed": 0,
    "method": "crsam",
    "data": {"name": "digits", "root": "here"},
    "model": {"name": "digits_mlp"},
    "train": {"epochs": 10},
    "methods": {"sam": {"rho": 0.05}, "crsam": {"rho": 0.1}},
}
METHODS = {"SGD": "sgd", "SAM": "sam", "CR-SAM": "crsam"}
SAM, CRSAM = (90.0, 91.0, 90.5, 91.5), (90.5, 91.0, 91.5, 91.0)


def a_run(
    who: str, seed: int, accuracy: float | None, stage: str = "final", **changes: Any
) -> dict[str, Any]:
    changes = {"seed": seed, "method": METHODS.get(who, "sam"), **changes}
    return {"stage": stage, "contestant": who, "seed": seed, "changes": changes,
            "test_accuracy": accuracy, "diverged_at": None}  # fmt: skip


def longer(who: str, seed: int, accuracy: float, epochs: int) -> dict[str, Any]:
    return a_run(who, seed, accuracy, "equal-time", **{"train.epochs": epochs})


def both(seeds: Iterable[int], **of_crsam: Any) -> list[dict[str, Any]]:
    return [
        run
        for s in seeds
        for run in (a_run("SAM", s, SAM[s]), a_run("CR-SAM", s, CRSAM[s], **of_crsam))
    ]


def tried(who: str, *accuracies: float, chosen: bool = False, **setting: Any) -> dict[str, Any]:
    mean = statistics.fmean(accuracies) if accuracies else None
    std = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    spread = {"mean": mean, "std": std, "num": len(accuracies)}
    return {"contestant": who, "setting": setting, "accuracy": spread, "is_chosen": chosen}


def write(
    file: Path,
    runs: Iterable[dict[str, Any]],
    choices: Iterable[dict[str, Any]] = (),
    pairs: Iterable[str] = (),
    **more: Any,
) -> Path:
    verdict = {"at_equal_time": {pair: {} for pair in pairs}, "tried": list(choices)}
    content = {"kind": "crsam study", "reference": "SAM", "recipe": RECIPE, "options": {},
               "verdict": verdict, "runs": list(runs)}  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content | more))
    return file


def read(paths: list[Path]) -> list[Study]:
    found, problems = read_studies(paths)
    assert problems == []
    return found


def leads(study: Study) -> dict[str, Lead]:
    return {lead.label: lead for lead in study.leads()}


def seeds(found: Iterable[Contestant]) -> list[tuple[str, list[int]]]:
    return [(one.name, sorted(one.accuracies)) for one in found]


@pytest.mark.parametrize("file", OURS, ids=[file.stem for file in OURS])
def test_leads_are_those_of_the_verdict(file: Path) -> None:
    """Which was told of all digits, where the runs of a summary have four."""
    content = json.loads(file.read_text())
    verdict, reference = content["verdict"], content["reference"]
    (study,) = read([file])
    equal = [
        row
        for row in verdict["rows"]
        if row["difference"] and not row["contestant"].endswith(", equal time")
    ]
    found = list(study.leads())
    given = {one.name for one in study.longer}
    seen = 0
    for row in equal:
        lead = next(one for one in found if one.contestant.name == row["contestant"])
        wanted = [(lead.at_equal_epochs, row["difference"])]
        pairs = [f"{row['contestant']} against {reference}"]
        pairs += [row["contestant"]] if given == {reference} else []
        timed = [
            verdict["at_equal_time"][pair] for pair in pairs if pair in verdict["at_equal_time"]
        ]
        assert bool(timed) == (lead.at_equal_time is not None)
        wanted += [(lead.at_equal_time, interval) for interval in timed]
        for ours, theirs in wanted:
            assert ours is not None
            for end in ("mean", "low", "high"):
                value = math.nan if theirs[end] is None else theirs[end]
                off = 0.13 if ours.num == 2 else 0.02  # Student's factor for two seeds is 12.7
                assert getattr(ours, end) == pytest.approx(value, abs=off, nan_ok=True)
            seen += 1
    timed_leads = [one for one in found if one.contestant in study.final and one.at_equal_time]
    assert seen == len(equal) + len(timed_leads)
    assert len(found) >= len(equal)


def test_seeds_of_two_summaries_are_put_together(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{name}.json", both(s)) for name, s in (("a", (0, 1)), ("b", (2, 3)))
    ]
    (study,) = read(files)
    lead = leads(study)["CR-SAM"]
    differences = [b - a for a, b in zip(SAM, CRSAM)]
    ends = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    found = lead.at_equal_epochs
    assert found is not None
    assert (found.mean, found.num) == (pytest.approx(0.25), 4)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert lead.at_equal_time is None
    assert study.title({10}, study.sources) == "digits_mlp on digits, 10 epochs (a and 1 more)"


def test_only_seeds_that_both_have_are_compared(tmp_path: Path) -> None:
    runs = [*both([0, 1]), a_run("SAM", 2, 50.0), a_run("CR-SAM", 3, 50.0)]
    found = leads(read([write(tmp_path / "a.json", runs)])[0])["CR-SAM"].at_equal_epochs
    assert found is not None
    assert (found.mean, found.num) == (0.25, 2)
    apart = [a_run("SAM", 0, 90.0), a_run("CR-SAM", 1, 91.0)]
    assert leads(read([write(tmp_path / "b.json", apart)])[0]) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"train.epochs": 20},
        {"methods.sam.rho": 0.2},
        {"data.label_noise": 0.3},
        {"model.name": "b"},
    ],
    ids=str,
)
@pytest.mark.parametrize("swapped", [False, True])
def test_studies_of_other_references_stay_apart(
    tmp_path: Path, changes: dict[str, Any], swapped: bool
) -> None:
    """Also where an older summary lacks the key, which was off then."""
    runs = both([2, 3])
    for run in runs:
        run["changes"] |= changes
    files = [write(tmp_path / "a.json", both([0, 1])), write(tmp_path / "b.json", runs)]
    assert len(read(files[::-1] if swapped else files)) == 2


def test_folders_of_images_are_told_apart(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{root}.json", both([s]), recipe=RECIPE | {"data": data})
        for s, root in enumerate(("cats", "dogs"))
        for data in ({"name": "folder", "root": root},)
    ]
    assert len(read(files)) == 2


def test_what_changes_nothing_keeps_no_study_apart(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0]))
    recipe = RECIPE | {"log": {"every": 7}, "train": {"epochs": 10, "clip_norm": None}}
    recipe |= {"data": {"name": "digits", "root": "there", "test_share": 0.0}}
    two = write(tmp_path / "b.json", both([1]), recipe=recipe)
    (study,) = read([one, two])
    assert seeds(study.final) == [("SAM", [0, 1]), ("CR-SAM", [0, 1])]


def test_contestants_of_other_settings_keep_their_own_lines(tmp_path: Path) -> None:
    """By what their runs say, or by options that were defaults of their day."""
    files = [
        write(tmp_path / "a.json", both([0])),
        write(tmp_path / "b.json", both([1], **{"methods.crsam.rho": 0.3})),
        write(tmp_path / "c.json", both([2], **{"methods.crsam.rho": 0.3})),
    ]
    (study,) = read(files)
    assert seeds(study.final) == [("SAM", [0, 1, 2]), ("CR-SAM", [0]), ("CR-SAM", [1, 2])]
    assert list(leads(study)) == ["CR-SAM (a)", "CR-SAM (b)"]
    for s, trust in ((0, 0.5), (1, 0.1)):
        write(files[s], both([s]), options={"CR-SAM": {"trust": trust}, "SAM": None})
    (study,) = read(files[:2])
    assert seeds(study.final)[1:] == [("CR-SAM", [0]), ("CR-SAM", [1])]
    write(files[2], both([2]))  # an older one, which does not say its options, goes with the first
    for order, pooled in ((files, [[0, 2], [1]]), (files[::-1], [[1, 2], [0]])):
        (study,) = read(order)
        assert [sorted(one.accuracies) for one in study.final[1:]] == pooled


def test_a_seed_counts_once_and_another_result_for_it_is_told(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0, 1]))
    two = write(tmp_path / "b.json", [*both([1]), a_run("SAM", 0, 50.0)])
    (study,) = read([one, two, one])
    assert study.final[0].accuracies == {0: SAM[0], 1: SAM[1]}
    assert study.notes == ["b: other results of SAM for seeds that are known"]
    three = write(tmp_path / "c.json", [a_run("SAM", 0, SAM[0] + 0.004)])  # rounded otherwise
    assert read([one, three])[0].notes == []


def test_at_equal_time_a_contestant_meets_the_reference_with_more_epochs(tmp_path: Path) -> None:
    runs = [*both([0, 1]), *(a_run("SGD", s, 80.0 + s) for s in (0, 1))]
    runs += [longer("SAM", s, 92.0 + s, 15) for s in (0, 1)]
    found = leads(read([write(tmp_path / "a.json", runs, pairs=["CR-SAM"])])[0])
    timed = found["CR-SAM"].at_equal_time
    assert timed is not None
    assert timed.mean == pytest.approx(-1.75)
    assert list(found) == ["CR-SAM", "SGD"]
    assert found["SGD"].at_equal_time is None
    # Two are given time, of whom one is not done yet: the verdict then names both sides.
    pairs = ["CR-SAM against SAM"]
    (study,) = read([write(tmp_path / "b.json", runs, pairs=pairs)])
    assert leads(study)["CR-SAM"].at_equal_time == timed
    runs += [longer("SGD", s, 85.0, 30) for s in (0, 1)]
    pairs += ["SGD, equal time against SAM", "CR-SAM against SGD", "SGD against SGD"]
    (study,) = read([write(tmp_path / "c.json", runs, pairs=pairs)])
    found = leads(study)
    assert list(found) == ["CR-SAM", "SGD", "SGD, 30 epochs"]
    last = found["SGD, 30 epochs"]
    assert last.at_equal_epochs is None
    assert last.at_equal_time is not None
    assert last.at_equal_time.mean == pytest.approx(-7.5)
    assert found["CR-SAM"].at_equal_time == timed
    assert found["SGD"].at_equal_time is None


def test_equal_time_is_put_together_too_whatever_number_of_epochs_it_takes(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / f"{name}.json",
            [*both(s), *(longer("SAM", k, 92.0, epochs) for k in s), longer("SGD", s[0], 85, 30)],
            pairs=["CR-SAM against SAM"],
        )
        for name, s, epochs in (("a", (0, 1), 15), ("b", (2, 3), 16))
    ]
    plain = write(tmp_path / "c.json", both((0, 1)))
    for order in (files, [plain, *files]):
        (study,) = read(order)
        timed = leads(study)["CR-SAM"].at_equal_time
        assert timed is not None
        assert (timed.num, timed.mean) == (4, pytest.approx(-1.0))
        assert study.longer[0].epochs == {15, 16}
        assert seeds(study.longer) == [("SAM", [0, 1, 2, 3]), ("SGD", [0, 2])]


def test_who_takes_as_long_is_known_by_its_settings(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0, 1]))
    runs = [
        *both([0, 1], **{"methods.crsam.rho": 0.3}),
        *(longer("SAM", s, 92, 15) for s in (0, 1)),
    ]
    two = write(tmp_path / "b.json", runs, pairs=["CR-SAM"])
    found = leads(read([one, two])[0])
    assert found["CR-SAM (a)"].at_equal_time is None
    assert found["CR-SAM (b)"].at_equal_time is not None


def test_time_that_others_alone_were_given_is_told(tmp_path: Path) -> None:
    runs = [*both([0, 1]), *(longer("SGD", s, 92, 15) for s in (0, 1))]
    (study,) = read([write(tmp_path / "a.json", runs, pairs=["CR-SAM"])])
    assert leads(study)["CR-SAM"].at_equal_time is None
    assert study.notes == ["a: at equal time SAM was not trained: not drawn"]


def test_runs_that_diverged_are_told(tmp_path: Path) -> None:
    runs = [*both([0, 1]), a_run("SAM", 2, 90.0), a_run("CR-SAM", 2, 10.0) | {"diverged_at": 7}]
    runs += [a_run("SAM", 3, 90.0), a_run("CR-SAM", 3, None) | {"diverged_at": 9}]
    (lead,) = leads(read([write(tmp_path / "a.json", runs)])[0]).values()
    assert lead.label == "CR-SAM (2 diverged)"
    assert lead.at_equal_epochs is not None
    assert lead.at_equal_epochs.num == 3


BAD = {
    "{": "bad.json is not JSON",
    "[]": "bad.json is not what was written there: it holds no object",
    '{"kind": "other"}': "bad.json is not the summary of a study",
    '{"kind": "crsam study", "recipe": {}}': "bad.json is not a whole summary: it has no 'verdict'",
    '{"kind": "crsam study", "recipe": 3, "verdict": 1}': "bad.json is not a whole summary: 'int'",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_summary_is_told_and_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    found, (problem,) = read_studies([tmp_path / "bad.json", write(tmp_path / "a.json", both([0]))])
    assert BAD[text] in problem
    assert seeds(found[0].final) == [("SAM", [0]), ("CR-SAM", [0])]


CHOICES = [
    tried("SAM", 60.0, 62.0, rho=0.1),
    tried("SAM", 66.0, 65.0, rho=0.4, chosen=True),
    tried("SAM", 64.0, 66.0, rho=0.2),
    tried("CR-SAM", 63.0, 65.0, rho=0.1, chosen=True),
    tried("CR-SAM", 64.0, 64.0, rho=0.2),
    tried("CR-SAM", 12.0, 10.0, rho=0.4),
    tried("SGD", 61.0),
]


def figures(*paths: Path) -> tuple[list[str], list[str]]:
    """The names of what is drawn, and the notes."""
    from crsam.lab.report.figures import write_figures

    made = write_figures(paths, paths[0].parent / "out", ["png"], dpi=40)
    return [file.name for file in made.files], made.notes


def test_figures_are_drawn_of_summaries_and_of_studies_folders(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    both_names = ["study-leads.png", "study-choice.png"]
    one = write(tmp_path / "runs/one/study.json", both(range(4)), CHOICES)
    assert figures(one) == (both_names, [])
    assert figures(one.parent) == (both_names, [])  # which has no runs any more
    write(tmp_path / "runs/two/study.json", [*both([0]), a_run("SAM", 1, 10.0)], is_complete=False)
    names, notes = figures(tmp_path / "runs")
    assert names == both_names
    assert notes == [
        "two: unfinished; it is drawn as far as it goes",
        "two: other results of SAM for seeds that are known",
    ]
    (one.parent / "SAM/seed0").mkdir(parents=True)
    (one.parent / "SAM/seed0/metrics.jsonl").write_text(
        '{"kind": "train", "epoch": 1, "step": 1, "loss": 1, "accuracy": 5}'
    )
    names, _ = figures(one.parent)
    assert names == ["figure5-convergence.png", *both_names]
    plain = write(tmp_path / "plain.json", both([0]))
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    names, notes = figures(plain, bad)
    assert names == both_names[:1]
    assert notes == [
        f"{bad} is not the summary of a study, as crsam study writes it",
        "study-choice is not drawn: no study has tried two values of a number",
    ]


def test_where_there_is_nothing_to_draw_it_is_said_why(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match=r"there is no folder .*none\.json"):
        figures(tmp_path / "none.json")
    with pytest.raises(UserError, match="nothing to draw: study-leads is not drawn: no study has"):
        figures(write(tmp_path / "empty.json", []))
    with pytest.raises(UserError, match=r"nothing to draw: .*study\.json is not the summary"):
        figures(write(tmp_path / "study.json", [], kind="").parent)


def test_the_command_tells_files_and_notes_apart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = write(tmp_path / "a.json", both([0]))
    words = ["figures", str(file), "-o", str(tmp_path), "--format", "PNG,", "--dpi", "40"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert ended.stdout == f"{tmp_path / 'study-leads.png'}\n"
    assert ended.stderr.startswith("study-choice is not drawn")


def drawn(axes: Any) -> list[tuple[list[float], list[float], str, str]]:
    return [
        ([float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()],
         str(line.get_color()), str(line.get_marker()))
        for line in axes.lines
    ]  # fmt: skip


def test_leads_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    runs = [*both(range(4)), *(longer("SAM", s, 92.0, 15) for s in (0, 1))]
    found = read([write(tmp_path / "a.json", runs, pairs=["CR-SAM"])])
    ((_, figure),) = studies.leads(found)
    (axes,) = figure.axes
    (lead,) = found[0].leads()
    first, second = lead.at_equal_epochs, lead.at_equal_time
    assert first is not None
    assert second is not None
    blue, red = studies.COLORS.values()
    assert drawn(axes)[1:] == [
        ([first.low, first.high], [0.0, 0.0], blue, "None"),
        ([first.mean], [0.0], blue, "o"),
        ([second.low, second.high], [1.0, 1.0], red, "None"),
        ([second.mean], [1.0], red, "o"),
    ]
    (beside,) = axes.child_axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["CR-SAM"]
    assert list(axes.get_yticks()) == [0.5]
    assert [text.get_text() for text in beside.get_yticklabels()] == [
        "+0.25 (−0.78 to +1.28), 4 seeds",
        "−1.25 (−4.43 to +1.93), 2 seeds",
    ]
    assert axes.get_title(loc="left") == "digits_mlp on digits, 10 epochs (a)"
    assert axes.get_xlim() == pytest.approx((-1.1 * 4.427, 1.1 * 4.427), abs=1e-3)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [studies.EPOCHS, studies.TIME]


def test_what_is_far_out_is_an_arrow_at_the_edge(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    runs = [run for s in range(2) for run in (
        a_run("SAM", s, 90.0), a_run("near", s, 90.1 + 0.01 * s), a_run("far", s, 50.0 + 0.1 * s),
        a_run("wide", s, 90.0 + 9 * s), a_run("same", s, 90.0))]  # fmt: skip
    ((_, figure),) = studies.leads(read([write(tmp_path / "a.json", runs)]))
    (axes,) = figure.axes
    near, far, wide, same = 0.0, 1.5, 3.0, 4.5
    _, edge = axes.get_xlim()
    markers = {(y[0], marker): x[0] for x, y, _, marker in drawn(axes)[1:] if marker != "None"}
    assert edge == pytest.approx(1.1 * 61.7, rel=0.01)  # of "wide": 4.5 ± 12.7 · 4.5
    assert {key[0] for key in markers} == {near, far, wide, same}
    assert all(marker == "o" for _, marker in markers)
    runs = [run for run in runs if run["contestant"] != "wide"]
    ((_, figure),) = studies.leads(read([write(tmp_path / "b.json", runs)]))
    (axes,) = figure.axes
    _, edge = axes.get_xlim()
    assert edge == pytest.approx(1.1 * 0.1685, rel=0.01)
    found = {(y[0], marker): x[0] for x, y, _, marker in drawn(axes)[1:] if marker != "None"}
    assert found == {
        (near, "o"): pytest.approx(0.105),
        (far, "<"): pytest.approx(-0.985 * edge),
        (3.0, "o"): 0.0,  # "same", ahead by nothing at all
    }


def test_an_interval_whose_mean_is_far_out_has_its_ring_at_the_edge(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    runs = [run for s in range(3) for run in (
        a_run("SAM", s, 90.0), a_run("one", s, 90.1 + 0.01 * s), a_run("two", s, 90.1 - 0.01 * s),
        a_run("wide", s, 73.0 + 8 * s))]  # fmt: skip
    ((_, figure),) = studies.leads(read([write(tmp_path / "a.json", runs)]))
    (axes,) = figure.axes
    _, edge = axes.get_xlim()
    assert edge < 0.2
    found = {marker: x[0] for x, y, _, marker in drawn(axes)[1:] if y[0] == 3.0}
    assert found == {
        "<": pytest.approx(-0.985 * edge),
        ">": pytest.approx(0.985 * edge),
        "None": -edge,
        "o": pytest.approx(-0.95 * edge),
    }


def test_two_bars_of_one_that_diverged_hide_no_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    runs = [run for s in range(2) for run in (
        a_run("SAM", s, 90.0), a_run("CR-SAM", s, 10.0), a_run("SGD", s, 89.9 - 0.01 * s),
        a_run("other", s, 90.1 + 0.01 * s), a_run("third", s, 90.0 - 0.02 * s),
        longer("SAM", s, 90.2, 15))]  # fmt: skip
    found = read([write(tmp_path / "a.json", runs, pairs=["CR-SAM"])])
    assert len([one for lead in found[0].leads() for one in lead_bars(lead)]) == 5
    ((_, figure),) = studies.leads(found)
    assert figure.axes[0].get_xlim()[1] < 0.5


def lead_bars(lead: Lead) -> list[Any]:
    return [one for one in (lead.at_equal_epochs, lead.at_equal_time) if one is not None]


def test_nine_contestants_look_like_nine(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies, style

    looks = {(*style.line(i).values(), style.marker(i)) for i in range(16)}
    assert len(looks) == 16
    choices = [
        tried(f"c{k}", 60.0 + k + rho, rho=rho, chosen=rho == 0.1)
        for k in range(9)
        for rho in (0.1, 0.2)
    ]
    ((_, figure),) = studies.choice(read([write(tmp_path / "a.json", [], choices)]))
    lines = [one for one in figure.axes[0].lines if len(one.get_xdata()) == 2]
    assert len({(one.get_color(), one.get_linestyle(), one.get_marker()) for one in lines}) == 9


def test_studies_of_one_name_are_told_apart_by_the_end_of_their_paths(tmp_path: Path) -> None:
    long = tmp_path / ("a long way " * 9) / "runs"
    files = [write(long / top / "fair/study.json", both([0]), **more)
             for top, more in (("x", {}), ("y", {"reference": "CR-SAM"}))]  # fmt: skip
    assert [study.sources for study in read(files)] == [["x/fair"], ["y/fair"]]
    assert [study.sources for study in read(files[:1])] == [["fair"]]


def test_a_folder_of_summaries_is_read_and_who_is_left_out_is_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "results/a.json", [*both([0]), a_run("SGD", 0, None)], CHOICES)
    write(tmp_path / "results/b.json", both([1]))
    (tmp_path / "results/other.json").write_text('{"kind": "another"}')
    (tmp_path / "results/list.json").write_text("[1]")
    names, notes = figures(tmp_path / "results")
    assert names == ["study-leads.png", "study-choice.png"]
    assert notes == ["a: SGD shares no tested seed with SAM: not drawn"]
    (study,) = read([tmp_path / "results"])
    assert (study.sources, study.tried_in) == (["a", "b"], ["a"])
    write(tmp_path / "results/c/study.json", both([2]))
    (study,) = read([tmp_path / "results"])
    assert study.sources == ["c", "a", "b"]


def test_choices_are_drawn_in_order_with_errors_and_what_was_chosen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    choosing = [a_run("SAM", 0, None, "choose", **{"train.epochs": 4})]
    file = write(tmp_path / "a.json", [*choosing, *both([0, 1])], CHOICES)
    ((_, figure),) = studies.choice(read([file]))
    (axes,) = figure.axes
    sam, ring, crsam, second = drawn(axes)
    assert sam[:2] == ([0.1, 0.2, 0.4], [61.0, 65.0, 65.5])
    assert ring[:2] == ([0.4], [65.5])
    assert crsam[:2] == ([0.1, 0.2, 0.4], [64.0, 64.0, 11.0])
    assert second[:2] == ([0.1], [64.0])
    assert ring[2] == sam[2] != crsam[2] == second[2]
    assert axes.get_title() == "digits_mlp on digits, 4 epochs (a)"
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "rho")
    assert axes.get_ylabel() == "validation accuracy, %; 2 seeds"
    band = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices.round(6)}
    assert {(0.1, 60.0), (0.1, 62.0), (0.4, 65.0), (0.4, 66.0)} <= band  # ± one standard error
    # What collapsed would hide how the others differ: its figure stands for it.
    low, high = axes.get_ylim()
    assert low == pytest.approx(65.5 - 3 * (65.5 - 61.0))
    assert high > 65.5
    assert [text.get_text() for text in axes.texts] == ["↓ 11.0"]


def test_values_are_compared_with_the_rest_as_chosen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    choices = [tried("CR-SAM", 60 + 10 * rho + alpha, rho=rho, alpha=alpha, form="log",
                     chosen=(rho, alpha) == (0.2, 0.0))
               for rho in (0.1, 0.2) for alpha in (0.0, 2.0)]  # fmt: skip
    choices += [tried("CR-SAM", 99.0, rho=0.1, alpha=0.0, form="linear")]
    choices += [tried("SAM", 61.0, rho=0.1, chosen=True), tried("SAM", rho=0.4)]
    ((_, figure),) = studies.choice(read([write(tmp_path / "a.json", [], choices)]))
    rho, alpha = figure.axes
    assert [y for _, y, *_ in drawn(rho)] == [[61.0, 62.0], [62.0], [61.0], [61.0]]
    assert [y for _, y, *_ in drawn(alpha)] == [[62.0, 64.0], [62.0]]
    assert alpha.get_xscale() == "linear"


def test_even_values_and_close_ones_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from crsam.lab.report.figures import studies

    choices = [tried("SAM", 90.0, rho=0.1 + 0.01 * k, chosen=k == 0) for k in range(5)]
    choices += [tried("SAM", 50.0, rho=0.2)]
    ((_, figure),) = studies.choice(read([write(tmp_path / "a.json", [], choices)]))
    (axes,) = figure.axes
    assert len(axes.texts) == 0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.12", "0.14", "0.2"]


def test_what_several_tried_is_put_together_by_contestant(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", both([0]), CHOICES)
    more = [*CHOICES[:3], tried("new", 1.0, rho=0.1, chosen=True), tried("new", 2.0, rho=0.2)]
    two = write(tmp_path / "b.json", both([1]), more)
    (study,) = read([one, two])
    assert [each.contestant for each in study.tried].count("SAM") == 3
    assert [each.contestant for each in study.tried].count("new") == 2
    assert study.notes == []
    three = write(tmp_path / "c.json", both([2]), [tried("SAM", 1.0, rho=0.8)])
    assert read([one, three])[0].notes == ["c: what it tried of SAM is not drawn"]


def test_our_own_studies_can_be_drawn_at_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["-o", str(tmp_path), "--format", "png", "--dpi", "40"]
    ended = CliRunner().invoke(app, ["figures", *map(str, OURS), *words])
    assert ended.exit_code == 0, ended.output
    assert len(ended.stdout.split()) == 2
    assert "not the summary" not in ended.stderr
