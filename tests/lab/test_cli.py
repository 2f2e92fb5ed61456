"""The commands as people type them, most of them in a process of their own."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crsam.errors import UserError
from crsam.lab.cli import app, main
from lab.experiment.runs import TINY, assert_same

COMMAND = [sys.executable, "-m", "crsam"]


def crsam(*words: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload]
        [*COMMAND, *words], cwd=cwd, capture_output=True, text=True, timeout=240, **options
    )


def fails_in_one_line(ended: subprocess.CompletedProcess[str], *said: str) -> None:
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    for words in said:
        assert words in ended.stderr


def test_train_evaluate_and_dry_run(tmp_path: Path) -> None:
    shown = crsam("train", "digits", *TINY, "method=sam", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0
    assert 'method = "sam"' in shown.stdout
    assert not list(tmp_path.iterdir())
    ended = crsam("train", "digits", *TINY, "method=sam", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "sam, seed 0: test accuracy" in ended.stdout
    assert "epoch 3/3  loss" in ended.stderr
    (tmp_path / "resolved.toml").write_text(shown.stdout)
    again = crsam("train", "resolved.toml", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert_same(tmp_path / "runs/digits/sam/seed0", tmp_path / "again")
    judged = crsam("evaluate", "again", cwd=tmp_path)
    accuracy = ended.stdout.split("test accuracy ")[1].split(" ")[0]
    assert f"accuracy {accuracy} %" in judged.stdout


def test_a_run_that_diverged_ends_with_1(tmp_path: Path) -> None:
    for _ in range(2):  # the second time it is only told
        ended = crsam("train", "digits", *TINY, "optimizer.lr=1e30", cwd=tmp_path)
        assert ended.returncode == 1, ended.stderr
        assert "The loss was not finite any more" in ended.stdout


def test_compare_and_demo_print_a_table_with_all_that_was_promised(tmp_path: Path) -> None:
    ended = crsam("compare", "digits", *TINY, "--methods", "base,sam", "--seeds", "2", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "against sgd" in ended.stdout
    assert ended.stdout.count("±") >= 3
    assert (tmp_path / "runs/digits/comparison.json").exists()
    ended = crsam("demo", "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for words in ("sgd", "sam", "crsam", "gradient norm", "sharpness", "crsam train digits"):
        assert words in ended.stdout
    assert "runs/demo/report.html" in ended.stdout
    assert b"</html>" in (tmp_path / "runs/demo/report.html").read_bytes()
    ended = crsam("report", "runs", "-o", "both.html", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "both.html: 7 runs" in ended.stdout


def test_compare_has_methods_by_default_for_every_optimizer(tmp_path: Path) -> None:
    shown = crsam("compare", "paper/imagenet/vit_s32", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    adamw = ["optimizer.name=adamw", "optimizer.lr=1e-3"]
    ended = crsam("compare", "digits", *TINY, *adamw, "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "against adamw" in ended.stdout


def test_list_and_version(tmp_path: Path) -> None:
    everything = crsam("list", cwd=tmp_path).stdout
    for words in ("cifar10/resnet18", "crsam", "wrn28_10", "cifar100", "autoaugment"):
        assert words in everything
    assert "sam" in crsam("list", "methods", cwd=tmp_path).stdout.splitlines()
    assert crsam("--version", cwd=tmp_path).stdout.startswith("crsam ")


STUDY = """
base = "digits"
[model]
width = 8
[train]
epochs = 2
batch_size = 256
[study]
seeds = [0, 1]
reference = "SAM"
[study.contestants.SGD]
method = "sgd"
[study.contestants.SAM]
method = "sam"
"""


def test_a_study_is_shown_run_summed_up_and_set_beside_the_paper(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    shown = crsam("study", "mine.toml", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "4 runs" in shown.stdout
    words = ["study", "mine.toml", "--summary", "results/mine.json"]
    assert crsam(*words, "--minutes", "0", cwd=tmp_path).returncode == 0
    ended = crsam(*words, "--minutes", "5", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "95 % interval" in ended.stdout
    assert "against SAM" in ended.stdout
    assert (tmp_path / "runs/studies/mine/final/sgd/seed1/result.json").exists()
    table = crsam("table", "cifar", "--results", "results", cwd=tmp_path)
    assert "96.95" in table.stdout
    assert "Of these we have none." in table.stdout


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = ["train", "digits", *TINY, "train.epochs=60", "--threads", "1"]
    assert crsam(*words, "--out", "whole", cwd=tmp_path).returncode == 0
    running = subprocess.Popen(
        [*COMMAND, *words, "--out", "parts"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "parts/metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size > 2000):
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert "crsam train digits" in said
    assert "--out parts" in said
    assert not (tmp_path / "parts/result.json").exists()
    assert crsam(*words, "--out", "parts", cwd=tmp_path).returncode == 0
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_full_disk_while_checkpointing_is_told_and_leaves_nothing_half_written(
    tmp_path: Path,
) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    ended = crsam("train", "digits", *TINY, "--out", "x", cwd=tmp_path, preexec_fn=small_files)
    assert ended.returncode == 2
    assert "cannot write x/checkpoint.pt: File too large" in ended.stderr.splitlines()[-1]
    assert not list((tmp_path / "x").glob("*.tmp"))
    assert not (tmp_path / "x/checkpoint.pt").exists()
    ended = crsam("train", "digits", *TINY, "--out", "x", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "digit"], ["did you mean 'digits'?"]),
        (["train", "digits", "train.epoch=3"], ["train.epoch", "train.epochs"]),
        (["train", "digits", "method=sma"], ["sma", "did you mean"]),
        (["train", "cifar10/resnet18"], ["cifar-10-batches-py", "download"]),
        (["train", "digits", "model=resnet18", "model.width=0"], ["model", "width"]),
        (["train", "digits", "train.batch_size=5000"], ["batch_size", "1437"]),
        (["train", "digits", "--device", "cuda:7"], ["cuda:7"]),
        (["evaluate", "nowhere"], ["there is no folder nowhere"]),
        (["evaluate", "."], [". is not the folder of a run", "recipe.toml"]),
        (["report", "nowhere"], ["nowhere"]),
        (["report"], ["--serve"]),
        (["list", "method"], ["did you mean 'methods'?"]),
        (["table", "cifer"], ["did you mean 'cifar'?"]),
        (["study", "digit"], ["did you mean 'digits'?"]),
        (["sweep", "digits"], ["[sweep.ranges]"]),
        (["train", "digits", "--import", "x.py"], ["crsam --import FILE train"]),
        (["compare", "digits", "--methods", "sam,crsam:form=log"], ["methods.crsam.form=linear"]),
        (["train", "digits", "data.root=[0,"], ["in quotes"]),
        (["train", "digits", "augment=cutout"], ["augment: side must be below 16", "8 × 8"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["crsam", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    fails_in_one_line(subprocess.CompletedProcess(words, ended.value.code, out, err), *said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "digits", "methods.sam.rho=0.3"], "methods.sam.rho=0.3 has no part in this"),
        (["train", "digits", "methods.cr-sam.rho=0.3"], ""),
        (["compare", "digits", "method=sam", "--seeds", "1"], "method=sam has no part in this"),
        (["compare", "digits", "methods.sam.rho=0.3", "--seeds", "1"], ""),
    ],
)
def test_what_has_no_part_in_a_run_is_told(words: list[str], said: str, tmp_path: Path) -> None:
    small = ("train.epochs=1", "model.width=8", "train.batch_size=700")
    words = [*words, *small, "--out", str(tmp_path)]
    told = CliRunner().invoke(app, words, catch_exceptions=False).stderr
    assert ("has no part" in told) == bool(said)
    assert said in told


def test_what_is_wrong_with_a_recipe_is_told_before_whose_folder_it_is(tmp_path: Path) -> None:
    def train(*words: str) -> None:
        made = ["train", "digits", "train.epochs=1", "model.width=8", *words]
        CliRunner().invoke(app, [*made, "--out", str(tmp_path)], catch_exceptions=False)

    train()
    with pytest.raises(UserError, match="rho must not be negative"):
        train("methods.crsam.rho=-1")
    with pytest.raises(UserError, match=r"none\.pth"):
        train("init=none.pth")
    with pytest.raises(UserError, match="holds a run of another recipe"):
        train("methods.crsam.rho=0.5")


def test_a_run_cannot_begin_from_its_own_checkpoint_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["train", "digits", f"init={tmp_path / 'run'}", "--out", str(tmp_path / "run")]
    with pytest.raises(UserError, match="cannot begin from a checkpoint that it will overwrite"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_runs_that_is_taken_for_one_is_told_where_they_are(tmp_path: Path) -> None:
    made = ["train", "digits", "train.epochs=1", "model.width=8"]
    for k in range(2):
        CliRunner().invoke(app, [*made, "--out", str(tmp_path / f"seed{k}")])
    with pytest.raises(UserError, match=r"there are 2 below it, such as .*seed0"):
        CliRunner().invoke(app, ["evaluate", str(tmp_path)], catch_exceptions=False)


def test_a_process_ends_with_the_exit_code_of_its_mistake(tmp_path: Path) -> None:
    fails_in_one_line(crsam("train", "digit", cwd=tmp_path), "did you mean 'digits'?")
