"""``crsam corrupt`` and ``crsam evaluate`` as people type them, from photos to a table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crsam.errors import UserError
from crsam.lab.cli import app
from lab.robustness.colours import corrupted, trained


def crsam(*words: object) -> str:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).output


def test_from_photos_to_tables(tmp_path: Path) -> None:
    run = trained(tmp_path)
    made = tmp_path / "c"
    said = crsam("corrupt", tmp_path / "data", made, "--constants", "cifar", "--format", "png")
    assert said == f"{made}: 900 images written\n"
    said = crsam("corrupt", tmp_path / "data", made, "--constants", "cifar", "--format", "png")
    assert said == f"{made}: 0 images written, 900 were there already\n"
    said = crsam("evaluate", run, "--imagenet-c", made, "--imagenet-r", tmp_path / "data/val")
    lines = said.splitlines()
    assert lines[0] == "ImageNet-C: 12 images a severity, 3 classes"
    assert lines[1].split() == ["corruption", "severity", "1", "severity", "2", "severity", "3", "severity", "4", "severity", "5", "mean"]  # fmt: skip  # noqa: E501
    assert lines[2].split()[:2] == ["gaussian_noise", "100.00"]
    assert lines[17].startswith(f"{run}: mean accuracy ")
    assert lines[18].startswith("Accuracy in per cent. No mCE")
    assert lines[19] == f"{run}: ImageNet-R accuracy 100.00 % on 12 images of 3 classes"


def test_several_runs_are_rows_and_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    shutil.copytree("run", "other")
    corrupted(tmp_path / "c")
    crsam("evaluate", "other", "--imagenet-c", "c")
    shutil.rmtree("c/fog")
    said = crsam("evaluate", "run", "other", "--imagenet-c", "c", "--relative-to", "other")
    heading, *rows = (line.split() for line in said.splitlines()[1:4])
    assert heading == ["run", "noise", "blur", "weather", "digital", "mean", "mCE,", "%"]
    assert [row[0] for row in rows] == ["run", "other"]
    assert all((row[3], row[6]) == ("—", "100.00") for row in rows)  # no fog, no weather
    assert "run: mean accuracy" in said
    assert "mCE 100.00 % over 14 of 15 corruptions; missing: fog" in said
    assert "in per cent of those of other" in said
    plain = crsam("evaluate", "run", "other")
    assert plain.count("accuracy 100.00 %") == 2


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="severities must be numbers from 1 to 5, got 'high'"):
        crsam("corrupt", tmp_path, tmp_path / "c", "--severities", "high")
    with pytest.raises(UserError, match="--relative-to is for --imagenet-c and --cifar-c"):
        crsam("evaluate", tmp_path, "--relative-to", tmp_path)
