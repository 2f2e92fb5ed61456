"""What the docs say of the speed of decoding is what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_table_of_the_docs_is_that_of_the_results() -> None:
    command = [sys.executable, "benchmarks/input.py", "results/input_cpu.json", "--table"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs/images.md").read_text()
    assert told.strip() in page
    sets = json.loads((ROOT / "results/input_cpu.json").read_text())["sets"]
    draft = sets["2000 x 1500"]["rows"]["ours, draft, 1"]["to_torchvision_per_core"]
    plain = sets["2000 x 1500"]["rows"]["ours, 1"]["to_torchvision_per_core"]
    assert f"decoded {draft / plain:.1f} times as fast" in page
