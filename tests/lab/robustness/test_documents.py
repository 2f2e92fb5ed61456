"""The page on robustness and its example are true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[3]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_of_speed_is_that_of_the_results() -> None:
    table = run("benchmarks/corruptions.py", "--table", "results/corruptions_cpu.json")
    assert table.strip() in (ROOT / "docs/robustness.md").read_text()


def test_the_example_draws_a_sheet(tmp_path: Path) -> None:
    out = run("examples/corruptions.py", "--cell", "20", "--out", str(tmp_path / "sheet.png"))
    assert "15 corruptions, 5 severities" in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (15 * 22, 24 + 6 * 22)
        columns = [sheet.crop((22 * c, 24 + 22, 22 * c + 20, 24 + 42)) for c in range(15)]
        assert len({column.tobytes() for column in columns}) == 15
