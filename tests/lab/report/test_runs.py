"""Run folders in every state are read, and what is wrong with them is said."""

from __future__ import annotations

import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crsam import _arrays
from crsam.errors import UserError
from crsam.lab.report.page import page_of
from crsam.lab.report.runs import Run, read_run, read_runs, run_folders
from crsam.landscape import file as landscape_file
from lab.report.folders import add_line, make_comparison, make_landscape, make_run


def test_a_whole_run_is_read_without_complaint(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "sam/seed3", "sam", 3)
    make_landscape(folder, "sam", of=["sam/seed3"])
    (folder / "measures-test.json").write_text('{"samples": 9, "metrics": {}}')
    run = read_run(folder)
    assert run.problems == ()
    assert (run.state, run.method, run.seed) == ("done", "sam", 3)
    assert run.recipe["train"]["epochs"] == 6
    assert len(run.metrics) == 12 + 6 + 2
    assert run.measures["test"]["samples"] == 9
    assert run.landscape is not None
    assert run.landscape.loss.shape == (21, 21)
    assert run.landscape.about["of"] == ["sam/seed3"]


def test_runs_are_found_in_run_comparison_and_folders_of_such_each_once(tmp_path: Path) -> None:
    make_comparison(tmp_path / "a")
    make_run(tmp_path / "b/seed10")
    make_run(tmp_path / "b/seed9")
    assert len(read_runs([tmp_path / "a/sam/seed1"])) == 1
    assert len(read_runs([tmp_path / "a"])) == 6
    assert len(read_runs([tmp_path, tmp_path / "a", tmp_path / "b/seed9"])) == 8
    assert [run.name for run in read_runs([tmp_path / "b"])] == ["seed9", "seed10"]
    assert read_runs([tmp_path])[0].name == "a/crsam/seed0"
    assert len(read_runs([tmp_path / "b", tmp_path / "a/../b"])) == 2


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    make_run(tmp_path / "sam/seed0")
    (tmp_path / "sam/again").symlink_to(tmp_path)
    assert len(read_runs([tmp_path])) == 1


def cut_off(run: Path) -> None:
    add_line(run, '{"kind": "train", "epo')


def garbage_in_between(run: Path) -> None:
    add_line(run, 'nonsense\n[1]\n{"kind": "train", "epoch": 7, "loss": 1}\n')


def without_result(run: Path) -> None:
    (run / "result.json").unlink()


def garbage(file: str, content: bytes = b"{\xff\x00") -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        (run / file).write_bytes(content)

    return spoil


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "cut off": (cut_off, "done", "metrics.jsonl: line 21 is cut off"),
    "garbage in between": (
        garbage_in_between,
        "done",
        "2 lines are not JSON, the first is line 21",
    ),
    "no result": (without_result, "unfinished", ""),
    "garbage result": (garbage("result.json"), "unfinished", "result.json is not whole"),
    "a list as result": (garbage("result.json", b"[1]"), "unfinished", "holds a list"),
    "garbage recipe": (garbage("recipe.toml", b"= 3"), "done", "recipe.toml is not whole"),
    "no recipe": (lambda run: (run / "recipe.toml").unlink(), "done", "recipe.toml is missing"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "done", ""),
    "binary metrics": (garbage("metrics.jsonl"), "done", "line 1 is cut off"),
    "deep json": (garbage("result.json", b"[" * 100_000), "unfinished", "result.json"),
    "garbage landscape": (
        garbage("landscape.npz", b"PK\3\4"),
        "done",
        "landscape.npz is not whole",
    ),
    "an npy as landscape": (garbage("landscape.npz", b"\x93NUMPY"), "done", "landscape.npz"),
    "garbage measures": (garbage("measures-test.json"), "done", "measures-test.json"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_folders_are_told_and_shown(name: str, tmp_path: Path) -> None:
    spoil, state, said = BROKEN[name]
    folder = make_run(tmp_path / "sam/seed0")
    spoil(folder)
    run = read_run(folder)
    assert run.state == state
    assert said in "; ".join(run.problems)
    assert bool(said) == bool(run.problems)
    assert b"</html>" in page_of([run])


def test_a_folder_that_is_a_file_is_left_out_and_one_without_rights_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "sam/seed0")
    (tmp_path / "sam/notes").write_text("x")
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()
    run = read_runs([tmp_path])[0]
    assert run.state == "unfinished"


def test_an_empty_folder_beside_others_is_shown_and_alone_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/sam/seed0")
    (tmp_path / "runs/sam/seed1").mkdir()
    (tmp_path / "runs/sam/seed1/.lock").touch()
    empty = read_runs([tmp_path])[1]
    assert empty.state == "broken"
    assert "empty" in empty.problems[0]
    (tmp_path / "runs/sam/seed2").mkdir()
    (tmp_path / "elsewhere/cache").mkdir(parents=True)  # nobody expects a run there
    assert [run.name for run in read_runs([tmp_path])] == ["seed0", "seed1", "seed2"]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"no run in .*none"):
        read_runs([tmp_path / "none"])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.arange(3.0)}, "no array loss"),
        ({"x": np.arange(3.0), "loss": np.zeros((2, 2))}, "shape"),
        ({"x": np.array(["a"]), "loss": np.zeros((1, 1))}, "numbers"),
        ({"x": np.array([np.nan]), "loss": np.zeros((1, 1))}, "not finite"),
        ({"x": np.zeros(0), "loss": np.zeros((1, 0))}, "empty"),
        ({"x": np.zeros(1), "loss": np.array([[{}]])}, "pickle"),
    ],
)
def test_landscapes_that_do_not_fit_together_are_told(
    arrays: dict[str, np.ndarray], said: str, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "sam/seed0")
    np.savez(folder / "landscape.npz", **arrays)
    run = read_run(folder)
    assert run.landscape is None
    assert said in run.problems[0]


def npy(header: str, content: bytes = bytes(24)) -> bytes:
    """An array with this header, whatever it says."""
    head = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + content


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


HOSTILE = {
    "absurd shape": (npy(described("'<f8'", "(10101010101010,)")), "but 24 are"),
    "beyond all memory": (npy(described("'<f8'", f"({2**62}, {2**62})")), "but 24 are there"),
    "negative shape": (npy(described("'<f8'", "(-3,)")), "is of shape (-3,)"),
    "texts of gigabytes": (npy(described("'<U99999999'", "(3,)")), "but 24 are there"),
    "values without bytes": (npy(described("'V0'", "(999999999999,)"), b""), "has no values"),
    "objects": (npy(described("'|O'", "(3,)")), "holds Python objects"),
    "a deep header": (npy("(" * 100), "is not an array"),
    "no array": (b"x" * 100, "is not an array"),
    "a bomb": (npy(described("'|i1'", f"({2**26},)"), bytes(2**26)), "more than 1 MiB"),
    "many points": (
        npy(described("'|i1'", f"({2**17},)"), bytes(2**17)),
        "131,072 points, more than 65,536",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_landscape_that_lies_costs_a_line_on_the_page_not_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_arrays, "LARGEST", 1 << 20)
    monkeypatch.setattr(landscape_file, "MOST", 1 << 16)
    array, said = HOSTILE[name]
    make_landscape(make_run(tmp_path / "sgd/seed0", "sgd"), "sgd")
    folder = make_run(tmp_path / "sam/seed0")
    with zipfile.ZipFile(folder / "landscape.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", array)
        file.writestr("loss.npy", npy(described("'<f8'", "(1, 3)")))
    runs = read_runs([tmp_path])
    tracemalloc.start()
    (problem,) = read_run(folder).problems
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert problem.startswith("landscape.npz is not whole: ")
    assert said in problem
    page = page_of(runs)
    content = json.loads(page.split(b'id="content">')[1].split(b"</script>")[0])
    assert [run["problems"] for run in content["runs"] if run["problems"]] == [[problem]]
    assert len(content["landscapes"]) == 1


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "sam/seed0")
    with (folder / "landscape.npz").open("wb") as file:
        file.truncate(2**40)
    assert read_run(folder).problems == ("landscape.npz has more than 1 GiB: not read",)


def test_a_line_is_a_landscape_without_y(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "sam/seed0")
    np.savez(folder / "landscape.npz", x=np.arange(3.0), loss=np.array([[1, np.nan, np.inf]]))
    found = read_run(folder).landscape
    assert found is not None
    assert found.y is None
    assert found.loss.shape == (1, 3)


def test_what_links_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    run = make_run(inside / "sam/seed0")
    secret = make_run(tmp_path / "secret/seed0")
    (run / "environment.json").unlink()
    (run / "environment.json").symlink_to(secret / "environment.json")
    (inside / "out").symlink_to(tmp_path / "secret")
    found = list(run_folders(inside, inside))
    assert found == [run]
    read = read_run(run, within=inside)
    assert read.environment == {}
    assert "link out of the folder" in read.problems[0]
    assert read_run(run).environment["hardware"] == "a test"


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["kind", "epoch", "loss", "train", "method", "seed", "methods", "measure", "metrics",
        "samples", "versions", "command", "diverged_at", "test_accuracy"]  # fmt: skip
KINDS = st.sampled_from(["train", "measure", "validation", "test"])
TABLES = st.dictionaries(st.sampled_from(KEYS), JSONS | KINDS, max_size=8)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TABLES, max_size=4), TABLES, TABLES, TABLES, TABLES)
def test_whatever_the_files_say_there_is_a_page(
    lines: list[dict[str, object]], recipe: dict, result: dict, environment: dict, measures: dict
) -> None:
    runs = [
        Run(
            path=Path(f"r{k}"), name=f"r{k}", recipe=recipe if k else {}, metrics=tuple(lines),
            result=result, environment=environment, measures={"test": measures},
        )
        for k in range(2)
    ]  # fmt: skip
    page = page_of(runs)
    content = page.split(b'id="content">')[1].split(b"</script>")[0]
    assert len(json.loads(content)["runs"]) == 2


def test_names_that_are_not_utf8_do_not_matter(tmp_path: Path) -> None:
    strange = os.fsdecode(b"\xff\xfe")
    make_run(tmp_path / strange / "seed0")
    make_run(tmp_path / "b/seed0")
    assert b"\\udcff" in page_of(read_runs([tmp_path]))
