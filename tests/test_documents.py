"""README, docs and example are true: their code runs, their tables are those of ``results/``."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scipy.stats

import crsam
from crsam.lab.report.figures.landscapes import rings
from crsam.lab.report.landscapes import read_landscape
from crsam.optim.registry import defaults

ROOT = Path(__file__).parents[1]


def run(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


PRELUDE = """
import torch, crsam
from torch import nn
from torch.nn import functional as F
from crsam.optim import Adaptive, Curvature, EveryK
torch.manual_seed(0)  # one seed in fifty has a trace that 20 probes do not tell from 0
body, head = nn.Linear(5, 8), nn.Linear(8, 3)
model = nn.Sequential(body, nn.BatchNorm1d(8), nn.ReLU(), head)
body, head = list(body.parameters()), list(head.parameters())
x, y = torch.randn(16, 5), torch.randint(3, (16,))
loader = [(x, y)] * 3
base = torch.optim.SGD(model.parameters(), lr=0.05)
opt = crsam.SAM(base, model=model)
import copy
from crsam import curvature
other = copy.deepcopy(model)
torch.nn.init.normal_(other[3].weight)
"""


@pytest.mark.parametrize(
    "page",
    [
        "docs/index.md",
        "docs/concepts.md",
        "docs/crsam.md",
        "docs/measuring.md",
        "docs/landscapes.md",
        "docs/precision.md",
    ],
)
def test_snippets_run_in_order(page: str) -> None:
    namespace: dict[str, object] = {}
    exec(PRELUDE, namespace)
    for block in blocks(page):
        exec(block, namespace)


def test_the_readmes_change_is_the_one_of_the_docs() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    kept = [line[2:] for line in diff.splitlines() if not line.startswith("-")]
    namespace: dict[str, object] = {}
    exec(PRELUDE + "\n".join(kept), namespace)
    assert namespace["opt"].report["curvature"].ndim == 0  # type: ignore[attr-defined]


def test_adding_a_method_walks_through_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's part, name and twin, as printed: the method equals its twin."""
    _, part, _, named, twin = blocks("docs/adding_a_method.md")
    header = (
        "from torch.optim import Optimizer, SGD\nfrom typing import Unpack\n"
        "import torch, problems\nfrom torch import Tensor\n"
        "from crsam.optim.methods import Common, Method\n"
        "from reference.twin import Evaluation as E, Twin, norm, over\n"
    )
    module = ModuleType("sign_sam")
    monkeypatch.setitem(sys.modules, "sign_sam", module)
    twin = twin.replace("class SignSAM", "class SignTwin").replace("here: Evaluation", "here: E")
    code = part.replace("from __future__ import annotations", "")
    exec("from __future__ import annotations\n" + header + code + named + twin, module.__dict__)
    check = """
models = problems.conv_net(), problems.conv_net()
bases = [SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
opt, twin = SignSAM(bases[0], rho=0.1, model=models[0]), SignTwin(
    models[1], bases[1], problems.cross_entropy, rho=0.1)
for t, (x, y) in enumerate(problems.batches(5)):
    torch.manual_seed(t)
    opt.step(problems.closure_of(models[0], opt, x, y))
    twin.step(x, y, mask_seed=t)
for a, b in zip(*(m.parameters() for m in models)):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
Ascent.registered.pop("Sign")
"""
    exec(check, module.__dict__)


def test_quickstart_runs() -> None:
    out = run("examples/quickstart.py", "--seeds", "1", "--epochs", "1")
    assert re.search(r"CR-SAM +\d+\.\d", out)


@pytest.mark.parametrize("options", [[], ["--dtype", "bfloat16", "--scope", "micro"]])
def test_the_example_of_precision_runs(options: list[str]) -> None:
    out = run("examples/precision.py", "--epochs", "2", *options)
    first, second = (float(loss) for loss in re.findall(r"loss (\d\.\d+)", out))
    assert second < first
    assert ("0 steps skipped" in out) == bool(options)


def test_the_example_of_several_processes_goes_on_alone(tmp_path: Path) -> None:
    options = ["examples/distributed.py", "--epochs", "1", "--checkpoint", str(tmp_path / "run")]
    two = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options)
    one = run(*options)
    before, after = (
        re.findall(rf"loss (\d\.\d+) after {steps} steps", out)
        for steps, out in ((28, two), (56, one))
    )
    assert float(after[0]) < float(before[0])


def test_tables_are_those_of_the_results() -> None:
    for name in (
        "trains_where_sam_trains",
        "what_keeps_it_training",
        "warmup_share",
        "cifar10_forms",
    ):
        table = run(f"benchmarks/{name}.py", "--table", f"results/{name}.json")
        assert table.strip() in (ROOT / "docs/crsam.md").read_text()

    readme, cost = (ROOT / "README.md").read_text(), (ROOT / "docs/cost.md").read_text()
    result = json.loads((ROOT / "results/step_cost_cpu.json").read_text())
    for name, row in result["time"]["steps"].items():
        assert f"| {name} | {row['passes']['median']:.2f} |" in cost
    alone = json.loads((ROOT / "results/step_cost_rsam_cpu.json").read_text())["time"]["steps"]
    rsam, sam = (alone[name]["passes"]["median"] for name in ("rsam", "sam"))
    assert f"its step took {rsam:.2f} passes where SAM's took {sam:.2f}" in cost
    for name in ("sam", "crsam log", "crsam linear"):
        time = result["time"]["steps"][name]["passes"]["median"]
        copies = max(s["copies"][name] for s in result["memory"].values())
        assert f"| {time:.2f} | {copies:.1f} |" in readme

    gpu = json.loads((ROOT / "results/fast_path_h200.json").read_text())
    performance = (ROOT / "docs/performance.md").read_text()
    for name, ms in gpu["milliseconds"].items():
        epoch, peak = gpu["seconds_per_epoch"][name], gpu["peak_mib"][name]
        ratio = ms / gpu["milliseconds"]["sgd"]
        row = rf"\| {ms:.2f} \| {ratio:.2f} \|.*\| {epoch:.2f} \| {peak:,.0f} \|"
        assert re.search(row, performance), name

    measuring = (ROOT / "docs/measuring.md").read_text()
    geometry = json.loads((ROOT / "results/geometry_digits.json").read_text())["epochs"]["40"]
    for runs in geometry.values():
        trace = sum(run["hessian_trace"] for run in runs) / len(runs)
        normalized = sum(run["normalized_trace"] for run in runs) / len(runs)
        assert f"| {trace:.1f} ± " in measuring
        assert f"{trace:.1f}" in readme
        assert f"{normalized:.0f}" in readme

    landscapes = (ROOT / "docs/landscapes.md").read_text()
    rates = json.loads((ROOT / "results/landscape_cost_cpu.json").read_text())["rates"]
    assert rates["wall"]["landscape"] >= 0.9
    assert f"{rates['wall']['landscape']:.2f} of the rate of plain evaluation" in landscapes
    assert f"{rates['cpu']['landscape']:.2f} by the processor's time" in landscapes
    for method, name in (("sgd", "SGD"), ("sam", "SAM"), ("crsam", "CR-SAM")):
        files = (ROOT / "results/landscapes_digits" / method).glob("*/landscape.npz")
        lands = [read_landscape(file.read_bytes()) for file in files]
        loss = statistics.mean(land.loss[15, 15] for land in lands)
        rise = statistics.mean(rings(land)[2][-1] for land in lands)
        assert re.search(rf"\| {name} \| {loss:.3f} ± \S+ \| {rise:.3f} ± ", landscapes)

    for row in json.loads((ROOT / "results/demo.json").read_text())["rows"]:
        accuracy, sharpness = row["test_accuracy"], row["sharpness"]["mean"]
        assert f"| {accuracy['mean']:.2f} ± {accuracy['std']:.2f} % |" in readme
        assert f"| {row['gradient_norm']['mean']:.3g} | {sharpness:.3g} |" in readme


def with_error(values: list[float], digits: int) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def test_the_ratios_of_digits_are_those_of_their_command() -> None:
    page = (ROOT / "docs/measuring.md").read_text()
    story = page.partition("\n## Through training")[2].partition("\n## ")[0]
    first, bound = (
        json.loads((ROOT / f"results/geometry_digits{more}.json").read_text())
        for more in ("", "_trust_0.5")
    )
    (block,) = re.findall(r"```bash\n(.*?)```", story, re.DOTALL)
    for word in shlex.split(block.replace("\\\n", ""))[1:]:
        assert word in shlex.split(first["command"]), word
    names = {"sgd": "SGD", "sam": "SAM", "crsam": "CR-SAM"}
    shown = [(epoch, names[method], runs)
             for epoch, methods in first["epochs"].items()
             for method, runs in methods.items()]  # fmt: skip
    shown.append(("40", "CR-SAM, trust 0.5", bound["epochs"]["40"]["crsam"]))
    for epoch, name, runs in shown:
        (line,) = re.findall(rf"^\| {epoch} \| {name} \|.*$", story, re.MULTILINE)
        ratio, of_means = line.strip("| ").split(" | ")[-2:]
        digits = len(ratio.split(" ")[0].partition(".")[2])
        assert ratio == with_error([run["approximation_ratio"] for run in runs], digits)
        means = [run["approximation_ratio_of_means"] for run in runs]
        assert of_means == with_error(means, 3)
    left_out = [run["approximation_ratio_left_out"] for _, _, runs in shown for run in runs]
    assert f"leaves out {min(left_out)} to {max(left_out)} of the 1,437 images" in story
    last, key = first["epochs"]["40"], "approximation_ratio_of_means"
    for runs in (last["crsam"], bound["epochs"]["40"]["crsam"]):
        ahead = [one[key] - other[key] for one, other in zip(runs, last["sam"], strict=True)]
        assert f"+{with_error(ahead, 3)}" in story
    answers = told("The questions")
    for method in ("sam", "crsam", "sgd"):
        mean = statistics.mean(run[key] for run in last[method])
        assert f"{mean:.2f} with {names[method]}" in answers


def test_the_study_of_the_docs_is_the_one_of_the_results() -> None:
    page, story = (ROOT / "docs/study.md").read_text(), results()
    summary = json.loads((ROOT / "results/study_digits.json").read_text())
    assert summary["is_complete"]
    found = summary["verdict"]
    for tried in found["tried"]:
        mean = f"{tried['accuracy']['mean']:.2f}"
        cell = f"**{mean}**" if tried["is_chosen"] else mean
        assert re.search(
            rf"^\| {tried['contestant']} \|.* {re.escape(cell)} \|", page, re.MULTILINE
        )
    for row in found["rows"]:
        accuracy, gain = row["accuracy"], row["difference"]
        line = f"| {row['epochs']} | {accuracy['mean']:.2f} ± {accuracy['std']:.2f} |"
        if gain is not None:
            line += f" {gain['mean']:+.2f} | {gain['low']:+.2f} to {gain['high']:+.2f} |"
        assert line in page
    for name, gain in found["at_equal_time"].items():
        assert f"{name} {gain['mean']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f})" in page
    of_table = [re.search(rf"^\| {name} \| [\d.]+ \| ([\d.]+) ±", story, re.MULTILINE)
                for name in ("linear, α = 0.5", "log, α = 0.1")]  # fmt: skip
    linear, log = (match[1] for match in of_table if match)
    assert f"with an MLP ({linear} and {log} %" in story
    gains = {row["contestant"]: row["difference"] for row in found["rows"]}
    assert all(gains[n]["low"] < 0 < gains[n]["high"] for n in ("CR-SAM log", "CR-SAM linear"))
    forms = json.loads((ROOT / "results/cifar10_forms.json").read_text())["runs"]
    for run in forms:
        if run["method"] in ("SAM", "CR-SAM log", "CR-SAM log, as printed"):
            assert f"{run['epochs'][-1]['test_accuracy']:.1f} %" in story


def results() -> str:
    """Both pages of them."""
    return "".join((ROOT / f"docs/{name}.md").read_text() for name in ("results", "results_more"))


def told(heading: str) -> str:
    """A section of the results."""
    section = results().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, heading
    return section


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def with_interval(found: dict[str, float] | None, digits: int = 2) -> str:
    if found is None:
        return ""
    mean, low, high = (signed(found[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


MEASURED = ("gradient_norm", "hessian_trace", "normalized_trace", "top_eigenvalue")


@pytest.mark.parametrize(
    ("file", "heading"),
    [
        ("cifar10_resnet18", "Sixty epochs"),
        ("tiny_imagenet_held_out", "Tiny ImageNet"),
        ("tiny_imagenet_own_test", "Tiny ImageNet's own test images"),
    ],
)
def test_studies_are_told_as_their_summaries_have_them(file: str, heading: str) -> None:
    section = told(heading)
    summary = json.loads((ROOT / f"results/{file}.json").read_text())
    assert summary["is_complete"]
    for row in summary["verdict"]["rows"]:
        accuracy, name = row["accuracy"], row["contestant"]
        assert accuracy["num"] == 3
        shown = f"{accuracy['mean']:.2f} ± {accuracy['std']:.2f}"
        losses = f"{row['loss']['mean']:.4f}", with_interval(row["loss_difference"], 4)
        cells = [shown, with_interval(row["difference"]), *losses]
        line = rf"^\| {name}[^|]*\| [\d. ]*\| {row['epochs']} \| [^|]*\| "
        line += re.escape(" | ".join(cells)).replace(r"\ \ ", r"\ +")
        assert re.search(line, section, re.MULTILINE), (name, cells)
        measured = [row["figures"][f"{key}, {split}"]["mean"]
                    for key in MEASURED
                    for split in ("train", "test")]  # fmt: skip
        (line,) = re.findall(
            rf"^\| {name} \| ([\d.,]+(?: \| [\d.,]+){{7}}) \|$", section, re.MULTILINE
        )
        for cell, value in zip(line.split(" | "), measured, strict=True):
            assert cell == f"{value:,.{len(cell.partition('.')[2])}f}", name
    for tried in summary["verdict"]["tried"]:
        mean = f"{tried['accuracy']['mean']:.2f}"
        cell = f"**{mean}** (" if tried["is_chosen"] else f" {mean} ("
        assert re.search(rf"^\| {tried['contestant']}.*{re.escape(cell)}", section, re.MULTILINE)


def by_seed(*files: str) -> dict[str, dict[int, dict[str, Any]]]:
    """The tested runs of several summaries, by contestant and seed."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name in files:
        for run in json.loads((ROOT / f"results/{name}.json").read_text())["runs"]:
            if run["stage"] != "choose":
                longer = ", equal time" if run["stage"] == "equal-time" else ""
                found.setdefault(run["contestant"] + longer, {})[run["seed"]] = run
    return found


def paired(found: Any, one: str, other: str, of: str, digits: int = 2) -> str:
    """The mean of the differences that two contestants have, seed by seed, as docs have it."""
    seeds = found[one].keys() & found[other].keys()
    differences = [found[one][seed][of] - found[other][seed][of] for seed in seeds]
    ends = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    mean = statistics.mean(differences)
    return with_interval({"mean": mean, "low": ends.low, "high": ends.high}, digits)


def by(difference: str) -> str:
    """As it reads behind "ahead by": a plus stands only where an end has a minus."""
    return difference.removeprefix("+") if "−" in difference else difference.replace("+", "")


SIX = ("cifar10_resnet18", "cifar10_chosen")


def test_six_seeds_are_told_as_their_two_summaries_have_them() -> None:
    section, found = told("Sixty epochs"), by_seed(*SIX)
    for name, epochs in (("SAM", 60), ("CR-SAM log", 60), ("SAM, equal time", 78)):
        assert sorted(found[name]) == list(range(6))
        assert {run["epochs"]["epoch"][-1] for run in found[name].values()} == {epochs}
        accuracy = [run["test_accuracy"] for run in found[name].values()]
        loss = statistics.mean(run["test_loss"] for run in found[name].values())
        shown = f"{statistics.mean(accuracy):.2f} ± {statistics.stdev(accuracy):.2f}"
        first, second = (
            "" if name == "SAM" else paired(found, name, "SAM", of, digits)
            for of, digits in (("test_accuracy", 2), ("test_loss", 4))
        )
        line = f"| {name} | {epochs} | {shown} | {first} | {loss:.4f} | {second} |"
        assert line.replace("  ", " ") in section
    longer, log = "SAM, equal time", "CR-SAM log"
    lead = by(paired(found, longer, log, "test_accuracy")).replace(" (", " points (")
    assert f"of the log form by {lead}" in section
    assert by(paired(found, log, longer, "test_loss", 4)) in section
    new = by_seed("cifar10_chosen")
    old = by(paired(by_seed("cifar10_resnet18"), longer, log, "test_accuracy"))
    assert f"had left half a point open ({old[:-1].replace(' (', ', ')})" in section
    assert f"by themselves: {by(paired(new, longer, log, 'test_accuracy'))}" in section
    assert f"at equal epochs, {paired(new, log, 'SAM', 'test_accuracy')}" in section


def test_the_answers_are_those_of_their_summaries() -> None:
    """What the page opens with, its table of questions, and what the README quotes of it."""
    page, readme = (ROOT / "docs/results.md").read_text(), (ROOT / "README.md").read_text()
    opening = page.partition("\n## What to use")[0]
    cifar, tiny = by_seed(*SIX), by_seed("tiny_imagenet_held_out")
    longer, log, linear = "SAM, equal time", "CR-SAM log", "CR-SAM linear"

    def mean(found: Any, name: str) -> str:
        return f"{statistics.mean(run['test_accuracy'] for run in found[name].values()):.2f}"

    def gain(found: Any, one: str, other: str, unit: str = "") -> str:
        return paired(found, one, other, "test_accuracy").replace(" (", f"{unit} (")

    def said(difference: str) -> str:
        return difference.replace("(", "(95 %: ")

    for text in (
        f"SAM {mean(cifar, 'SAM')} %, CR-SAM's log form {said(gain(cifar, log, 'SAM'))}",
        f"SAM has {mean(cifar, longer)} %, ahead of it by {by(gain(cifar, longer, log))}",
        f"SAM {mean(tiny, 'SAM')} %, CR-SAM {gain(tiny, 'CR-SAM', 'SAM')}",
        f"{mean(tiny, longer)}, ahead by {by(gain(tiny, longer, 'CR-SAM'))}",
    ):
        assert text in opening
    table = told("The questions")
    six, three = "six seeds)", "three seeds)"
    for text in (
        f"the log form {said(gain(cifar, log, 'SAM', ' points'))[:-1]}, {six}",
        f"the linear one {gain(cifar, linear, 'SAM')[:-1]}, {three}",
        f"by {by(gain(cifar, longer, log, ' points'))[:-1]}, {six}",
        f"Over the linear form by {by(gain(cifar, longer, linear))[:-1]}, {three}",
        f"by {by(gain(tiny, longer, 'CR-SAM'))}",
        f"CR-SAM {gain(tiny, 'CR-SAM', 'SAM', ' points')}",
        f"the log form by {by(gain(cifar, log, 'SGD', ' points'))}",
        f"the linear one by {by(gain(cifar, linear, 'SGD'))}",
        f"Tiny ImageNet by {by(gain(tiny, 'CR-SAM', 'SGD'))}",
        f"log {gain(cifar, log, 'SGD, equal time')}",
        f"linear {gain(cifar, linear, 'SGD, equal time')}",
        f"log by {by(gain(cifar, log, linear))}",
        f"SAM: on CIFAR-10 by {by(gain(cifar, 'SAM', 'SGD'))}",
        f"on Tiny ImageNet by {by(gain(tiny, 'SAM', 'SGD'))}",
        f"Tiny ImageNet {gain(tiny, 'CR-SAM', 'SAM')[:-1]}, {three}",
        by(paired(cifar, "SGD, equal time", log, "test_loss", 3)),
        by(paired(cifar, "SGD, equal time", linear, "test_loss", 3)),
    ):
        assert text in table, text
    for name in ("SGD", "SAM", log, linear, longer, "SGD, equal time"):
        assert mean(cifar, name) in readme
    for name in ("SGD", "SAM", "CR-SAM", longer):
        assert f" {mean(tiny, name)} |" in readme
    for text in (
        *(gain(cifar, name, "SAM")[:-1] for name in (log, linear)),
        gain(tiny, "CR-SAM", "SAM"),
        by(gain(cifar, longer, log)),
    ):
        assert text in readme


def test_whether_c_of_w_is_lower_is_told_as_it_was_measured() -> None:
    table = told("The questions")

    def gain(found: Any, one: str, split: str, digits: int = 0) -> str:
        for runs in found.values():
            for run in runs.values():
                run["it"] = run["measures"][f"normalized_trace, {split}"]
        of = statistics.mean(found["SAM"][seed]["it"] for seed in found[one])
        mean, interval = paired(found, one, "SAM", "it", digits).split(" ", 1)
        return f"{mean} of {of:,.{digits}f}", interval

    for files, one, split, digits, of in (
        (SIX, "CR-SAM log", "train", 0, "SAM's "),
        (SIX, "CR-SAM log", "test", 0, ""),
        (SIX, "CR-SAM linear", "train", 0, ""),
        (("tiny_imagenet_held_out",), "CR-SAM", "train", 0, ""),
        (("tiny_imagenet_held_out",), "CR-SAM", "test", 0, ""),
        (("study_digits_conv_chosen",), "CR-SAM log, trust 0.1", "test", 1, ""),
    ):
        change, interval = gain(by_seed(*files), one, split, digits)
        assert change.replace(" of ", f" of {of}") in table, change
        assert interval in table, interval

    last = json.loads((ROOT / "results/geometry_digits.json").read_text())["epochs"]["40"]
    runs = {name: dict(enumerate(last[name])) for name in ("sam", "crsam")}
    change, interval = paired(runs, "crsam", "sam", "normalized_trace", 0).split(" ", 1)
    assert f"{change} of 283 {interval}" in table


def test_what_fewer_looks_at_the_curvature_cost_is_told_as_it_was_measured() -> None:
    page, name = (ROOT / "docs/crsam.md").read_text(), "study_digits_conv_every"
    found = by_seed(name)
    rows = json.loads((ROOT / f"results/{name}.json").read_text())["verdict"]["rows"]
    times = {row["contestant"]: row["time"] for row in rows}
    for who, runs in found.items():
        assert len(runs) == 32
        for run in runs.values():
            run["C(w)"] = run["measures"]["normalized_trace, test"]
        accuracy, loss, curvature = (
            statistics.mean(run[key] for run in runs.values())
            for key in ("test_accuracy", "test_loss", "C(w)")
        )
        assert (
            f"| {who} | {times[who]:.2f} | {accuracy:.2f} | {loss:.4f} | {curvature:.1f} |" in page
        )
    log, linear = "CR-SAM log", "CR-SAM linear"
    said = paired(found, f"{log}, every 5", log, "test_accuracy")
    assert said.replace(" (", " points, ")[:-1] in page
    assert said.replace(" (", " points (")[:-1] in told("The questions")
    for who in (log, linear):
        assert by(paired(found, f"{who}, every 5", who, "test_loss", 3)) in page
    lost = paired(found, f"{linear}, every 5", linear, "test_accuracy")
    assert lost.replace(" (", ", ") in page


def test_what_another_radius_costs_is_told_as_it_was_tried() -> None:
    tried: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
    for name in ("finer", "linear"):
        summary = json.loads((ROOT / f"results/study_digits_conv_{name}.json").read_text())
        for run in summary["runs"]:
            if run["stage"] == "choose":
                key = run["contestant"], run["setting"]["rho"]
                tried.setdefault(key, {})[run["seed"]] = run
    grid = sorted({rho for _, rho in tried})
    for name in sorted({name for name, _ in tried}):
        means = {
            rho: statistics.mean(r["validation_accuracy"] for r in tried[name, rho].values())
            for rho in grid
        }
        best = max(grid, key=means.__getitem__)
        found = {"best": tried[name, best], "last": tried[name, grid[-1]]}
        found["half"] = tried[name, grid[grid.index(best) - 2]]
        half, last = (
            paired(found, "best", other, "validation_accuracy") for other in ("half", "last")
        )
        bound = "" if name == "SAM" or "trust" in name else ", trust 0.5"
        cells = (f"{best:.3g}", by(half), by(last).removeprefix("+"))
        assert f"| {name}{bound} | {' | '.join(cells)} |" in told("The questions"), name


def test_the_printed_formula_is_told_as_its_summary_has_it() -> None:
    section = told("The printed formula")
    summary = json.loads((ROOT / "results/cifar10_printed.json").read_text())
    assert summary["is_complete"]
    names = {"CR-SAM bounded": "CR-SAM, our defaults"}
    for row in summary["verdict"]["rows"]:
        runs = [run for run in summary["runs"] if run["contestant"] == row["contestant"]]
        losses = [run["epochs"]["train_loss"] for run in runs]
        first, last = (statistics.mean(loss[i] for loss in losses) for i in (0, -1))
        accuracy, name = row["accuracy"], names.get(row["contestant"], row["contestant"])
        shown = f"{accuracy['mean']:.2f} ± {accuracy['std']:.2f}"
        assert f"| {name} | {len(runs)} | {shown} | {first:.2f} | {last:.2f} |" in section


def test_other_bounds_and_weights_are_told_as_their_summaries_have_them() -> None:
    section = told("Other bounds and weights")
    runs = [run for name in ("weights", "resnet18")
            for run in json.loads((ROOT / f"results/cifar10_{name}.json").read_text())["runs"]
            if run["stage"] == "choose"]  # fmt: skip
    tried = {(run["contestant"], *run["setting"].items()): run for run in runs}

    def cell(value: float, run: dict[str, Any]) -> str:
        accuracy, loss = run["validation_accuracy"], run["validation_loss"]
        return f"{value}: {accuracy:.2f} ({loss:.4f})"

    for name, rho, of, key, (less, usual, more) in (
        ("log", 0.1, "trust", "trust", (0.05, 0.1, 0.2)),
        ("log", 0.1, "slope", "β", (0.0, 0.01, 0.1)),
        ("linear", 0.05, "curvature", "α", (0.1, 0.5, 1.0)),
        ("linear", 0.05, "slope", "β", (0.0, 0.1, 0.5)),
    ):
        option = {"α": "alpha", "β": "beta"}.get(key, key)
        cells = [
            cell(less, tried[f"{name} by {of}", (option, less)]),
            cell(usual, tried[f"CR-SAM {name}", ("rho", rho)]),
            cell(more, tried[f"{name} by {of}", (option, more)]),
        ]
        assert f"| {name} | {rho} | {key} | {' | '.join(cells)} |" in section
    for rho in (0.05, 0.1):
        assert f"{tried['SAM', ('rho', rho)]['validation_loss']:.4f}" in section


def test_test_images_of_another_kind_are_told_as_they_were_measured() -> None:
    section = told("Tiny ImageNet's own test images")
    found = {
        name: json.loads((ROOT / f"results/alike_{name}_cpu.json").read_text())
        for name in ("tiny_imagenet", "cifar10", "imagenette")
    }
    sharp = found["tiny_imagenet"]["sharpness"]
    assert f"is {sharp['test']:.3f} on test images and {sharp['train']:.3f} on training" in section
    for name in ("cifar10", "imagenette"):
        assert found[name]["sharpness"]["test"] == pytest.approx(
            found[name]["sharpness"]["train"], rel=0.01
        )
    runs = found["tiny_imagenet"]["runs"]
    held_out, own = (
        statistics.mean(run[key] for run in runs)
        for key in ("validation_accuracy", "test_accuracy")
    )
    assert f"right on {held_out:.1f} % of held-out training images" in section
    assert f"right on {own:.1f} % of them" in section


def test_two_hundred_epochs_are_told_as_their_summary_has_them() -> None:
    page, readme = (ROOT / "docs/results.md").read_text(), (ROOT / "README.md").read_text()
    told = page[page.index("## Two hundred epochs") : page.index("## Sixty epochs")]
    runs = json.loads((ROOT / "results/cifar10_paper.json").read_text())["runs"]
    assert len(runs) == 4
    for run in runs:
        accuracy, epochs = f"{run['test_accuracy']:.2f}", run["epochs"]
        losses = f"{run['test_loss']:.4f} | {epochs['train_loss'][-1]:.4f} |"
        assert re.search(rf"^\| .* \| {accuracy} \| .*\| {re.escape(losses)}", told, re.MULTILINE)
        ratios = [value for value in epochs["measure_approximation_ratio"] if value is not None]
        rows = re.findall(r"^\|[^|]*\| (\d\.\d+(?: \| \d\.\d+){9}) \|", told, re.MULTILINE)
        shown = [[float(cell) for cell in row.split(" | ")] for row in rows]
        assert any(row == pytest.approx(ratios, rel=0.03) for row in shown)
        traces = [value for value in epochs["measure_normalized_trace"] if value is not None]
        assert " | ".join(f"{value:,.0f}" for value in traces) in told
        assert accuracy in readme or run["contestant"] == "SAM at 0.1"


def test_cifar_100_is_told_as_far_as_its_summary_goes() -> None:
    section, readme = told("CIFAR-100"), (ROOT / "README.md").read_text()
    summary = json.loads((ROOT / "results/cifar100_paper.json").read_text())
    assert summary["is_complete"] == ("still to come" not in section)
    assert f"{len(summary['runs'])} of the 15 runs are done" in section
    paper = tomllib.loads((ROOT / "src/crsam/lab/experiment/paper.toml").read_text())
    theirs = paper["cifar"]["resnet18"]["cifar100"]["basic"]
    keys = {"SGD": "sgd", "SAM": "sam", "CR-SAM log": "crsam"}
    runs = {run["contestant"]: run for run in summary["runs"]}
    for row in summary["verdict"]["rows"]:
        name = row["contestant"]
        rho, run = summary["options"][name].get("rho", ""), runs[name]
        printed = "{:.2f} ± {:.2f}".format(*theirs[keys[name]]) if name in keys else ""
        time = f"{row['time']:.1f}×".replace("1.0×", "1×")
        losses = f"{run['test_loss']:.4f} | {run['epochs']['train_loss'][-1]:.4f} |"
        cells = f"{rho} | {time} | {run['test_accuracy']:.2f} | {printed} | {losses}"
        assert re.sub(" +", " ", f"| {name} | {cells}") in section
        measured = [row["figures"][f"{key}, {split}"]["mean"]
                    for key in MEASURED
                    for split in ("train", "test")]  # fmt: skip
        (line,) = re.findall(
            rf"^\| {name} \| ([\d.,]+(?: \| [\d.,]+){{7}}) \|$", section, re.MULTILINE
        )
        for cell, value in zip(line.split(" | "), measured, strict=True):
            assert cell == f"{value:,.{len(cell.partition('.')[2])}f}", name
        assert f"| {run['test_accuracy']:.2f} |" in readme
    accuracy = {name: run["test_accuracy"] for name, run in runs.items()}
    log = accuracy["CR-SAM log"]
    assert f"{log - accuracy['SAM']:.2f} points ahead of SAM at the paper's radii" in section
    assert f"{accuracy['SAM at 0.15'] - log:.2f} behind SAM at its own" in section
    off = {name: accuracy[name] - theirs[key][0] for name, key in keys.items()}
    assert f"end {off['SGD']:.2f} and {off['SAM']:.2f} points above" in section
    assert f"CR-SAM {-off['CR-SAM log']:.2f} below" in section


def test_the_names_in_the_docs_exist() -> None:
    """So a module that moves takes its pages along."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.py")]
    made = {"crsam.SignSAM", "crsam.optim.ascent.sign"}  # docs/adding_a_method.md makes them
    for page in pages:
        for name in re.findall(r"(?<![\w./-])crsam(?:\.[A-Za-z_]\w*)+", page.read_text()):
            if not name.endswith(".md") and name not in made:
                try:
                    pkgutil.resolve_name(name)
                except (AttributeError, ImportError):
                    module = ".".join(name.split(".")[:3])
                    if name.startswith("crsam.integrations.") and find_spec(module):
                        continue  # its framework is not installed here
                    pytest.fail(f"{page.name}: there is no {name}")


def test_the_options_of_methods_are_shown_with_their_defaults() -> None:
    page = (ROOT / "docs/methods.md").read_text()
    for name in crsam.methods():
        (line,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE | re.IGNORECASE)
        told = dict(re.findall(r"`(\w+)=([^`]+)`", line.split(" | ")[-1]))
        common = {"max_norm": None, "model": None, "seed": 0, "scope": "batch", "group": None}
        common |= {"warmup": 0}
        own = {k: v for k, v in defaults(name).items() if k not in common or common[k] != v}
        assert told == {key: repr(value).replace("'", '"') for key, value in own.items()}


def test_the_study_file_of_the_docs_is_accepted(tmp_path: Path) -> None:
    from crsam.lab.experiment.fair.file import load_study
    from crsam.lab.experiment.toml import load_recipe

    study, ranges = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs/study.md").read_text(), re.DOTALL
    )
    (tmp_path / "mine.toml").write_text(study)
    assert len(load_study(tmp_path / "mine.toml").settings("CR-SAM log")) == 4 * 2 * 2
    (tmp_path / "ranges.toml").write_text('base = "digits"\n' + ranges)
    assert load_recipe(tmp_path / "ranges.toml").sweep.trials == 40


def test_every_method_and_part_is_in_the_docs() -> None:
    import crsam
    from crsam.optim import Ascent, Objective, Schedule

    methods = (ROOT / "docs/methods.md").read_text()
    concepts = (ROOT / "docs/concepts.md").read_text()
    api = (ROOT / "docs/api/optimizers.md").read_text()
    for name in crsam.methods():
        cls = type(crsam.make(name, __import__("torch").optim.SGD([_parameter()], lr=0.1)))
        assert f"`{cls.__name__}`" in methods
        assert f"crsam.{cls.__name__}\n" in api
    for kind in (Ascent, Objective, Schedule):
        for part in kind.registered:
            assert f"`{part}`" in concepts


def _parameter() -> object:
    import torch

    return torch.nn.Parameter(torch.zeros(1))


def test_the_times_of_small_nets_are_those_of_their_file() -> None:
    rows = json.loads((ROOT / "results/small_nets_cpu.json").read_text())["rows"]
    page = (ROOT / "docs/cost.md").read_text().partition("## Small nets")[2].partition("\n## ")[0]
    names = {
        "one pass": "pass",
        "SGD": "SGD",
        "pytorch_optimizer 4.1.0, SAM": "pytorch_optimizer SAM",
        "`SAM`": "SAM",
        "`CRSAM`, log": "CRSAM",
    }
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    table = {cells[0]: cells[1:] for cells in shown if cells and cells[0] in names}
    assert table.keys() == names.keys()
    for title, name in names.items():
        for net, (time, beside) in zip(rows, (table[title][:2], table[title][2:]), strict=True):
            assert round(rows[net][name]["microseconds"]) == int(time)
            assert not beside or round(rows[net][name]["beside"]) == int(beside)
    for net, told in (("20 layers", "0.98"), ("3 layers", "1.21")):
        ratio = rows[net]["SAM"]["against_pytorch_optimizer"]
        assert abs(ratio - float(told)) <= 0.0051
        assert told in page
