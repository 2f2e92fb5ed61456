"""Methods side by side, paired by seed."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest

from crsam.errors import UserError
from crsam.lab.experiment import comparison
from crsam.lab.experiment.comparison import compare, spread, tabulate
from crsam.lab.experiment.journal import Result
from crsam.lab.experiment.tables import show
from crsam.lab.train.interrupt import Stopped
from lab.experiment.runs import tiny


def a_result(method: str, seed: int, accuracy: float, **others: object) -> Result:
    return {
        "method": method,
        "seed": seed,
        "test_accuracy": accuracy,
        "gradient_norm": 0.1,
        "sharpness": 0.2,
        "seconds": 10.0,
        "diverged_at": None,
        **others,
    }


def test_differences_are_taken_seed_by_seed() -> None:
    results = [a_result("sgd", s, a) for s, a in enumerate((80.0, 90.0, 100.0))]
    results += [a_result("sam", s, a, seconds=20.0) for s, a in enumerate((81.0, 92.0, 103.0))]
    sgd, sam = tabulate(results)
    assert (sgd.test_accuracy.mean, sgd.test_accuracy.std) == (90.0, 10.0)
    assert sgd.difference is None
    assert sam.difference is not None
    assert sam.difference.mean == pytest.approx(2.0)
    assert sam.difference.error == pytest.approx(1 / math.sqrt(3))  # not that of 90 ± 10
    assert sam.time == pytest.approx(2.0)


def test_a_single_seed_has_no_spread_and_a_diverged_run_is_counted() -> None:
    row, other = tabulate(
        [a_result("sgd", 0, 80.0), a_result("sam", 0, 10.0, diverged_at=7, sharpness=None)]
    )
    assert math.isnan(row.test_accuracy.std)
    assert other.num_diverged == 1
    assert math.isnan(other.sharpness.mean)
    assert spread([1.0, 3.0]).mean == 2.0


def test_a_table_that_is_piped_keeps_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    results = [a_result(method, seed, 80.0)
               for method in ("friendlysam", "gradientnormpenalty") for seed in (0, 1)]  # fmt: skip
    show(tabulate(results), "digits")
    assert "\ngradientnormpenalty " in capsys.readouterr().out


def test_compare_runs_all_writes_json_and_goes_on_where_it_was(tmp_path: Path) -> None:
    rows = compare(tiny(), ["sgd", "crsam"], 2, tmp_path)
    assert [row.method for row in rows] == ["sgd", "crsam"]
    assert {str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("result.json")} == {
        f"{method}/seed{seed}" for method in ("sgd", "crsam") for seed in (0, 1)
    }
    written = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert len(written["runs"]) == 4
    assert written["rows"][1]["difference"]["mean"] == rows[1].difference.mean  # type: ignore[union-attr]
    stamp = (tmp_path / "sgd/seed0/result.json").stat().st_mtime_ns
    more = compare(tiny(), ["sgd", "crsam"], 3, tmp_path)
    assert (tmp_path / "sgd/seed0/result.json").stat().st_mtime_ns == stamp
    assert more[0].test_accuracy.num == 3


def test_seeds_start_at_the_recipes_and_fresh_does_everything_anew(tmp_path: Path) -> None:
    compare(tiny("seed=5"), ["sgd"], 2, tmp_path)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.json")}
    assert {p.parent.name for p in stamps} == {"seed5", "seed6"}
    compare(tiny("seed=5"), ["sgd"], 2, tmp_path, fresh=True)
    assert all(p.stat().st_mtime_ns > stamp for p, stamp in stamps.items())


def test_a_stop_asked_while_a_run_ends_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(*args: object, **options: object) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        return a_result("sgd", 0, 80.0)

    monkeypatch.setattr(comparison, "run", asks)
    with pytest.raises(Stopped):
        compare(tiny(), ["sgd"], 2, tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_of_another_recipe_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    compare(tiny("optimizer.lr=0.05"), ["sam"], 1, tmp_path)
    with pytest.raises(UserError, match="another recipe"):
        compare(tiny(), ["sgd", "sam"], 1, tmp_path)
    assert not (tmp_path / "sgd").exists()


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="named twice"):
        compare(tiny(), ["sam", "sam"], 1, tmp_path)
    with pytest.raises(UserError, match="at least 1"):
        compare(tiny(), ["sam"], 0, tmp_path)
