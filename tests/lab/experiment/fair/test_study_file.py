"""Study files: what they may say, and that all are held to the same terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from crsam.errors import UserError
from crsam.lab.experiment.fair.file import load_study
from crsam.lab.experiment.fair.jobs import look
from crsam.lab.experiment.recipe import differences
from crsam.lab.experiment.toml import load_recipe, studies
from lab.experiment.fair.studies import small


def test_contestants_differ_in_method_and_its_options_alone(tmp_path: Path) -> None:
    study = small(tmp_path)
    jobs = look(study, tmp_path).jobs
    for stage in ("choose", "final"):
        first, *rest = [job for job in jobs if job.stage == stage and job.recipe.seed in (0, 7)]
        for other in rest:
            said = differences(first.recipe, other.recipe)
            assert all(line.startswith(("method", "methods.")) for line in said), said


def test_choosing_never_reads_the_test_set_and_final_runs_train_on_all(tmp_path: Path) -> None:
    study = small(tmp_path, 'measure.metrics=["loss"]')
    jobs = look(study, tmp_path).jobs
    choosing = [job.recipe for job in jobs if job.stage == "choose"]
    assert len(choosing) == 4  # two values of ρ, two that have one
    for recipe in choosing:
        assert (recipe.log.test, recipe.data.validation, recipe.train.epochs) == (False, 0.2, 1)
        assert recipe.measure.metrics == ()
        assert recipe.seed == 7
    for recipe in (job.recipe for job in jobs if job.stage != "choose"):
        assert (recipe.log.test, recipe.data.validation) == (True, 0.0)
    assert {job.epochs for job in jobs if job.stage == "equal-time"} == {3}


def test_the_grid_goes_to_whoever_has_the_option_and_dotted_keys_to_all(tmp_path: Path) -> None:
    more = '[study.contestants."CR-SAM linear"]\nmethod = "crsam"\ngrid = {alpha = [0.1, 0.5]}\n'
    more += 'tuned = true\n[study.contestants."SAM, untuned"]\nmethod = "sam"\ntuned = false\n'
    study = small(tmp_path, "study.choose.grid.train={batch_size=[128, 256]}", more=more)
    counts = {name: len(study.settings(name)) for name in study.contestants}
    assert counts == {
        "SGD": 2,
        "SAM": 4,
        "CR-SAM log": 4,
        "CR-SAM linear": 8,
        "SAM, untuned": 1,
    }
    recipe = study.recipe_of("SAM", {"rho": 0.5, "train.batch_size": 128}, 3)
    assert (recipe.methods["sam"]["rho"], recipe.train.batch_size, recipe.seed) == (0.5, 128, 3)
    assert study.recipe_of("CR-SAM log", {}, 0).method_options["form"] == "log"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["study.seed=[0]"], "did you mean study.seeds?"),
        (["study.seeds=[0, 0]"], "different"),
        (['study.reference="SAN"'], "did you mean 'SAM'?"),
        (["study.choose.validation=0"], "above 0 and below 1"),
        (["study.choose.grid.roh=[0.1]"], "study.choose.grid.roh"),
        (["study.choose.grid.rho=0.1"], "a list of values"),
        (["study.choose.grid.rho=[-1.0]", "study.choose.epochs=0"], "study.choose.epochs"),
        (['study.choose.grid.rho=["big"]'], "a number"),
        (["study.contestants.SAM.options.roh=0.1"], "roh"),
        (["study.contestants.SAM.grid.alpha=[0.1]"], "study.contestants.SAM.grid.alpha"),
        (['study.contestants.SAM.method="sma"'], "did you mean"),
        (['study.equal_time.of="SAM"'], "must differ"),
        (["study.equal_time.factor=0"], "above 0"),
        (['study.equal_time.factor="big"'], "a number"),
        (['study.equal_time.give="SAN"'], "did you mean 'SAM'?"),
        (['study.equal_time.give=["SAM", "SGD"]'], "a number for each, such as {SAM = 1.3}"),
        (["study.equal_time.factor={SGD = 2}"], "study.equal_time.factor.SGD"),
        (['study.equal_time.give=["SAM", "SAM"]', "study.equal_time.factor={}"], "must differ"),
        (["study.choose.widen={roh = 1}"], "did you mean study.choose.widen.rho?"),
        (["study.choose.widen={rho = 0}"], "a whole number, at least 1"),
        (["study.choose.grid.form=['log', 'linear']", "study.choose.widen={form = 1}"], "numbers"),
        (['study.measure.metrics=["los"]'], "did you mean 'loss'?"),
        (['study.measure.samples=5'], "study.measure.metrics must be given"),
        (['study.checkpoints="some"'], "one of 'none', 'final', 'all'"),
        (["train.epoch=3"], "train.epochs"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_runs(
    overrides: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")) as error:
        small(tmp_path, *overrides)
    assert "\n" not in str(error.value)


def test_final_runs_train_on_all_and_are_tested_whatever_the_recipe_says(tmp_path: Path) -> None:
    study = small(tmp_path, "data.validation=0.3", "log.test=false")
    recipe = study.recipe_of("SAM", {}, 0)
    assert (recipe.data.validation, recipe.log.test) == (0.0, True)


def test_contestants_need_folders_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="share a folder"):
        small(tmp_path, more="[study.contestants.sam]\n")


def test_a_study_needs_something_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no \\[study\\] table"):
        load_study("demo")
    file = tmp_path / "none.toml"
    file.write_text('base = "demo"\n[study.contestants.sam]\n')
    with pytest.raises(UserError, match=r"needs study\.seeds"):
        load_study(file)
    with pytest.raises(UserError, match="crsam study"):
        load_recipe(file)
    with pytest.raises(UserError, match="unknown study 'digit': did you mean 'digits'"):
        load_study("digit")


@pytest.mark.parametrize("name", studies())
def test_shipped_studies_are_accepted_and_say_their_command_and_cost(name: str) -> None:
    study = load_study(name)
    progress = look(study, "nowhere")
    assert {job.contestant for job in progress.jobs} == set(study.contestants)
    if not name.startswith("digits"):  # the others are for a GPU that is lent by the minute
        seconds = [progress.seconds(job) for job in progress.jobs]
        assert all(each is not None and each < 9 * 60 for each in seconds)
