"""Several processes on one study: every run once, and none too early."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crsam.errors import UserError
from crsam.lab.experiment.fair import conduct as conducting
from crsam.lab.experiment.fair.conduct import conduct
from crsam.lab.experiment.fair.jobs import look
from crsam.lab.experiment.locks import alone, claimed, is_held
from crsam.lab.train.distributed import World
from crsam.lab.train.interrupt import Stopped
from lab.experiment.fair.studies import pretend, small


def test_two_processes_share_the_runs_of_a_study(tmp_path: Path) -> None:
    study = small(tmp_path)
    words = ["study", str(tmp_path / "small.toml"), "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "crsam", *words, "--device", "cpu", "--threads", "1"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)]  # fmt: skip
    said = [each.communicate(timeout=300) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    done = [{line.partition(":  ")[0] for line in err.splitlines() if "accuracy" in line}
            for _, err in said]  # fmt: skip
    assert len(done[0] | done[1]) == len(done[0]) + len(done[1]) == 12
    assert look(study, tmp_path / "runs").is_complete
    written = json.loads((tmp_path / "runs/study.json").read_text())
    assert len(written["runs"]) == 12
    assert all("SAM, equal time" in out for out, _ in said)  # both show all of it


def first_place(study: Any, runs: Path) -> Path:
    place = runs / look(study, runs).pending[0].place
    place.mkdir(parents=True)
    return place


@pytest.mark.parametrize("held", [".study", ".lock"])  # by a study, by `crsam train`
def test_what_another_holds_is_waited_for_and_taken_over(
    held: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    study, runs = small(tmp_path), tmp_path / "runs"
    place = first_place(study, runs)
    ran: list[Path] = []
    waits: list[float] = []
    real = conducting.run

    def run(recipe: Any, folder: Path, *args: Any, **options: Any) -> Any:
        ran.append(folder)
        return real(recipe, folder, *args, **options)

    with ExitStack() as other:
        assert other.enter_context(claimed(place / held))

        def sleep(seconds: float) -> None:
            stages = {folder.relative_to(runs).parts[0] for folder in ran}
            assert stages == {"choose", "final"}  # of SGD and CR-SAM: SAM has not chosen yet
            assert len(ran) == 3 + 2 * 2
            waits.append(seconds)
            if len(waits) == 3:
                other.close()  # it has been killed, say

        time = SimpleNamespace(monotonic=conducting.time.monotonic, sleep=sleep)
        monkeypatch.setattr(conducting, "time", time)
        monkeypatch.setattr(conducting, "run", run)
        assert conduct(study, runs).is_complete
    assert len(waits) == 3
    assert capsys.readouterr().err.count("waiting") == 1
    assert ran.index(place) == 7
    assert len(ran) == len(set(ran)) == 12


def test_a_run_that_another_has_just_ended_is_not_repeated(
    tmp_path: Path, monkeypatch: Any
) -> None:
    study, runs = small(tmp_path), tmp_path / "runs"
    pretend(study, runs, lambda job: 50.0)  # all that is to be chosen, and SGD's final runs
    (runs / ".lock").touch()  # as the process that ran them leaves it
    (last,) = [p for p in runs.rglob("result.json") if p.parent.match("cr-sam-log/rho=0.5/seed7")]
    content = last.read_text()
    last.unlink()

    @contextmanager
    def late(file: Path, **options: Any) -> Any:
        with claimed(file, **options) as claim:
            if file.parent == last.parent:
                last.write_text(content)
            yield claim

    time = SimpleNamespace(monotonic=conducting.time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr(conducting, "time", time)
    monkeypatch.setattr(conducting, "claimed", late)
    monkeypatch.setattr(conducting, "write_summary", lambda *_: None)
    assert conduct(study, runs).is_complete
    assert last.read_text() == content
    # Of SAM's and CR-SAM's final runs, and of those at equal time.
    assert len(list(runs.rglob("checkpoint.pt"))) == 6


def test_summaries_are_written_by_one_process_at_a_time(tmp_path: Path, monkeypatch: Any) -> None:
    held: list[bool] = []
    monkeypatch.setattr(
        conducting, "write_summary", lambda *_: held.append(is_held(tmp_path / "runs/.summary"))
    )
    conduct(small(tmp_path, "study.seeds=[0]"), tmp_path / "runs")
    assert held
    assert all(held)


@pytest.mark.parametrize(
    ("size", "fresh", "said"), [(1, True, "lose its runs"), (2, False, "torchrun")]
)
def test_what_cannot_be_shared_is_refused(
    tmp_path: Path, size: int, fresh: bool, said: str
) -> None:
    study, runs = small(tmp_path), tmp_path / "runs"
    pretend(study, runs, lambda job: 50.0)
    with claimed(runs / ".lock", shared=True), pytest.raises(UserError, match=said):
        conduct(study, runs, World(size=size), fresh=fresh)
    assert len(list(runs.rglob("result.json"))) == 6
    with claimed(runs / ".lock"), pytest.raises(UserError, match="starts over"):
        conduct(study, runs)


def test_a_lock_is_free_when_its_holder_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_held(file)
    code = (
        "import sys, time; from pathlib import Path; from crsam.lab.experiment.locks import alone\n"
        "with alone(Path(sys.argv[1])): print('mine', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(file)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ)
    assert other.stdout is not None
    assert other.stdout.readline() == b"mine\n"
    assert is_held(file)
    with claimed(file) as claim:
        assert claim is None
    other.kill()
    with alone(file):  # waits until it is
        assert is_held(file)
    other.communicate()
    with claimed(file) as one:
        assert one is not None
        one.share()
        with claimed(file, shared=True) as two, claimed(file) as three:
            assert two is not None
            assert three is None


def test_locks_are_open_to_read_and_write_as_nfs_wants_them(
    tmp_path: Path, monkeypatch: Any
) -> None:
    real, file = fcntl.flock, tmp_path / "lock"

    def flock(lock: Any, kind: int) -> None:
        assert fcntl.fcntl(lock, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        real(lock, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(file, shared=True) as claim:
        assert claim is not None
        claim.share()
        assert is_held(file)
    with alone(file):
        pass


def test_with_little_time_left_it_still_waits_for_what_others_will_end(tmp_path: Path) -> None:
    study, runs = small(tmp_path, "study.overhead_seconds=40"), tmp_path / "runs"
    for _ in range(3):
        pretend(study, runs, lambda job: 50.0)
    place = runs / "choose/sam/rho=0.5/seed7"
    (place / "result.json").unlink()
    progress, clock = look(study, runs), conducting.Clock(1.0)
    assert [runs / job.place for job in progress.pending] == [place]
    clock.began -= 30  # of 60 s; a run takes 40

    def turn() -> tuple[Any, bool]:
        with conducting._turn(progress, runs, clock, World()) as (job, again):
            return job, again

    assert turn() == (None, False)
    with claimed(place / ".study"):
        assert turn() == (None, True)
        clock.began -= 60
        assert turn() == (None, False)


def test_a_stop_asked_for_while_it_waits_begins_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    study, runs = small(tmp_path), tmp_path / "runs"
    place = first_place(study, runs)
    pretend(study, runs, lambda job: 50.0)
    (place / "result.json").unlink()
    for job in look(study, runs).pending:
        (runs / job.place).mkdir(parents=True, exist_ok=True)
    with ExitStack() as others:
        for job in look(study, runs).pending:
            others.enter_context(claimed(runs / job.place / ".study"))

        def sleep(seconds: float) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            others.close()

        time = SimpleNamespace(monotonic=conducting.time.monotonic, sleep=sleep)
        monkeypatch.setattr(conducting, "time", time)
        monkeypatch.setattr(conducting, "run", lambda *_, **__: pytest.fail("begun"))
        with pytest.raises(Stopped):
            conduct(study, runs)
