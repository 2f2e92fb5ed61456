"""The page as a file: whole, closed to the network, and nothing in it but what was meant."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crsam.errors import UserError
from crsam.lab.report import page as page_module
from crsam.lab.report.landscapes import Landscape
from crsam.lab.report.page import page_of, write_page
from crsam.lab.report.page.content import content_of
from crsam.lab.report.page.surfaces import surface
from crsam.lab.report.runs import read_runs
from lab.report.folders import add_line, make_comparison, make_run, write_metrics


def content_in(page: bytes) -> dict[str, Any]:
    (found,) = re.findall(rb'id="content">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_text_of_runs_cannot_leave_its_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)<!--{{script}}&"
    run = make_run(tmp_path / "a", "sam")
    recipe = (run / "recipe.toml").read_text().replace('"digits"', json.dumps(evil))
    (run / "recipe.toml").write_text(recipe)
    page = page_of(read_runs([run]), title=evil)
    assert page.count(b"<script") == 2
    assert page.count(b"</script>") == 2
    assert b"alert(1)" in page
    assert evil in content_in(page)["runs"][0]["recipe"]
    assert content_in(page)["title"] == evil


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing_else(tmp_path: Path) -> None:
    page = page_of(read_runs([make_comparison(tmp_path)])).decode()
    assert not re.search(r"https?://|//\w+\.\w+/|@import|url\(", page)
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    policy = re.findall(r'Policy" content="(.*?)">', page)[0]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, text in (
        ("script", re.findall(r"<script>(.*)</script>", page, re.DOTALL)[0]),
        ("style", re.findall(r"<style>(.*)</style>", page, re.DOTALL)[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_what_is_not_finite_or_missing_is_kept_apart(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "sam")
    write_metrics(run, [])
    for epoch, loss in enumerate(("1.5", "NaN", "Infinity", "null", '"x"', "1e400", "true")):
        add_line(run, f'{{"kind": "train", "epoch": {epoch}, "loss": {loss}}}\n')
    add_line(run, '{"kind": "train", "epoch": 7}\n{"kind": "train", "loss": 3}\n')
    (shown,) = content_of(read_runs([run]))["runs"]
    nan = "nan"
    assert shown["series"]["train"]["y"]["loss"] == [1.5, nan, nan, nan, None, nan, None, None]
    assert "1 lines have no epoch" in "; ".join(shown["problems"])
    assert "not finite in training: loss" in "; ".join(shown["problems"])


def test_curves_of_any_length_fit_by_averaging_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "a", "sam")
    lines = [{"kind": "train", "epoch": k, "loss": k % 2, "lr": 1.0} for k in range(1001)]
    lines[500]["loss"] = None
    write_metrics(run, lines)
    (shown,) = content_of(read_runs([run]), most=500)["runs"]
    y = shown["series"]["train"]["y"]["loss"]
    assert shown["thinned"] == 3
    assert len(y) == 334
    assert set(y[:160]) == {0.33333, 0.66667}
    assert y[500 // 3] == "nan"
    whole = len(page_of(read_runs([run])))
    monkeypatch.setattr(page_module, "LARGEST", whole - 5000)
    smaller = page_of(read_runs([run]))
    assert len(smaller) < whole - 5000
    assert content_in(smaller)["runs"][0]["thinned"] > 1
    monkeypatch.setattr(page_module, "LARGEST", 100)
    with pytest.raises(UserError, match="fewer folders"):
        page_of(read_runs([run]))


def test_large_landscapes_are_thinned_with_their_ends_kept() -> None:
    x = np.linspace(-1, 1, 300)
    loss = np.add.outer(x, x)
    made = surface(Landscape(x, x, loss, None, {"kind": "filter", "odd": {}}), 2000)
    assert len(made["x"]) <= 81
    assert (made["x"][0], made["x"][-1]) == (-1.0, 1.0)
    assert made["loss"][0][0] == -2.0
    assert made["loss"][-1][-1] == 2.0
    assert made["about"] == {"kind": "filter"}
    line = surface(Landscape(x, None, x[None], None, {}), 2000)
    assert len(line["x"]) == 300
    assert line["y"] is None


def test_the_file_is_written_whole_or_a_clear_error_is_raised(tmp_path: Path) -> None:
    runs = make_comparison(tmp_path / "runs")
    write_page([runs], tmp_path / "new/folder/report.html", title="Mine")
    assert b"<title>Mine" in (tmp_path / "new/folder/report.html").read_bytes()
    with pytest.raises(UserError, match="is a folder"):
        write_page([runs], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        write_page([runs], tmp_path / "file/report.html")


def test_commands_are_as_typed_and_environments_are_told_apart(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    file = tmp_path / "sam/seed0/environment.json"
    file.write_text(file.read_text().replace("a test", "another machine"))
    content = content_of(read_runs([tmp_path]))
    assert content["commands"][0]["command"] == "crsam train demo method=sgd"
    assert [len(entry["runs"]) for entry in content["environments"]] == [5, 1]


def test_waiting_and_broken_images_are_shown_where_there_were_any(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, "sam") for name in "ab"]

    def columns(**told: Any) -> dict[str, Any]:
        file = runs[1] / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | told))
        summary = content_of(read_runs(runs))["summary"]
        cells = [row["cells"] for row in summary["rows"]]
        return {c["key"]: [row[k] for row in cells] for k, c in enumerate(summary["columns"])}

    assert not {"data_wait", "broken_images"} & columns(data_wait=0.004, broken_images=0).keys()
    found = columns(data_wait=0.3, broken_images=2)
    assert found["broken_images"][-1]["mean"] == 2
    assert found["data_wait"][-1]["mean"] == pytest.approx(0.3)


def test_runs_that_were_only_to_choose_by_are_left_out_unless_there_are_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, changes in {"final": [], "choose": ["log.test=false", "data.validation=0.1"]}.items():
        make_run(tmp_path / name / "sam/seed0", "sam", 0, *changes)
    page = tmp_path / "report.html"

    def shown(*folders: Path, everything: bool = False) -> list[str]:
        runs = write_page(folders, page, everything=everything)
        return sorted(run.path.relative_to(tmp_path).parts[0] for run in runs)

    assert shown(tmp_path) == ["final"]
    assert "only to choose by are left out: 1 (--all)" in capsys.readouterr().err
    assert shown(tmp_path, everything=True) == ["choose", "final"]
    assert shown(tmp_path / "choose") == ["choose"]
