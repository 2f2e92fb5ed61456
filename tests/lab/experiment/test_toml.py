"""Recipes as TOML: files, bases, overrides, and what is said of mistakes."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import pytest

from crsam.errors import UserError
from crsam.lab.experiment.recipe import Recipe, differences
from crsam.lab.experiment.sections import Choice, Train
from crsam.lab.experiment.toml import load_recipe
from crsam.lab.train.schedule import Schedule


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(source: str | Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(source, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Files


def test_an_empty_file_is_the_default_recipe(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "a.toml", "")) == Recipe()


def test_what_is_not_said_is_as_the_defaults_say(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "a.toml", "[optimizer]\nlr = 1\n[train]\nepochs = 2\n"))
    assert recipe.optimizer == Choice("sgd", {"lr": 1.0, "momentum": 0.9, "weight_decay": 5e-4})
    assert recipe.train == Train(epochs=2)


def test_a_named_optimizer_has_no_options_but_those_given(tmp_path: Path) -> None:
    text = '[optimizer]\nname = "sgd"\nlr = 1'
    assert load_recipe(write(tmp_path, "a.toml", text)).optimizer == Choice("sgd", {"lr": 1.0})


def test_options_of_the_default_optimizer_stay_when_a_child_names_it(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", "[optimizer]\nlr = 1\n")
    child = write(tmp_path, "b.toml", 'base = "a.toml"\n[optimizer]\nname = "SGD"\n')
    assert load_recipe(child).optimizer == Choice("sgd", {"lr": 1.0})


def test_a_choice_may_be_just_its_name(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "a.toml", 'model = "ResNet-18"')).model.name == "resnet18"


def test_later_files_win_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", "seed = 1\n[train]\nepochs = 2\nbatch_size = 4\n")
    write(tmp_path, "b.toml", 'base = "a.toml"\n[train]\nepochs = 3\n')
    recipe = load_recipe(write(tmp_path, "c.toml", 'base = "b.toml"\n[methods.SAM]\nrho = 1\n'))
    assert (recipe.seed, recipe.train) == (1, Train(epochs=3, batch_size=4))
    assert recipe.methods == {"sam": {"rho": 1.0}}


@pytest.mark.parametrize(
    ("table", "first", "option", "second"),
    [
        ("model", "resnet18", "width = 16", "wrn28_10"),
        ("augment", "basic", "pad = 2", "none"),
        ("optimizer", "sgd", "momentum = 0.5\nlr = 1", "rprop"),
    ],
)
def test_another_name_drops_the_options_of_the_first(
    tmp_path: Path, table: str, first: str, option: str, second: str
) -> None:
    write(tmp_path, "a.toml", f'[{table}]\nname = "{first}"\n{option}\n')
    lr = "lr = 2" if table == "optimizer" else ""
    child = write(tmp_path, "b.toml", f'base = "a.toml"\n[{table}]\nname = "{second}"\n{lr}\n')
    expected = Choice(second, {"lr": 2.0} if lr else {})
    assert getattr(load_recipe(child), table) == expected


@pytest.mark.parametrize("said", ["", 'name = "ResNet-18"\n'])
def test_the_same_name_keeps_the_options(tmp_path: Path, said: str) -> None:
    write(tmp_path, "a.toml", '[model]\nname = "resnet18"\nwidth = 16\nstem = "imagenet"\n')
    child = write(tmp_path, "b.toml", f'base = "a.toml"\n[model]\n{said}width = 8\n')
    assert load_recipe(child).model == Choice("resnet18", {"width": 8, "stem": "imagenet"})


def test_options_of_the_default_model_go_when_a_child_names_another(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", "[model]\nbatch_norm = true\n")
    child = write(tmp_path, "b.toml", 'base = "a.toml"\n[model]\nname = "resnet18"\n')
    assert load_recipe(child).model == Choice("resnet18")


def test_methods_in_two_spellings_are_merged(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", "[methods.crsam]\nrho = 1\nalpha = 2\n")
    child = write(tmp_path, "b.toml", 'base = "a.toml"\n[methods.CR-SAM]\nrho = 3\n')
    assert load_recipe(child).method_options == {"rho": 3.0, "alpha": 2.0}


def test_a_base_is_relative_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    write(tmp_path, "a.toml", "seed = 5")
    write(tmp_path / "inner", "b.toml", 'base = "../a.toml"')
    monkeypatch.chdir(tmp_path)
    assert load_recipe("inner/b.toml").seed == 5


def test_a_base_may_be_a_shipped_recipe(tmp_path: Path) -> None:
    mine = load_recipe(write(tmp_path, "a.toml", 'base = "demo"\nseed = 7\n'))
    assert differences(load_recipe("demo"), mine) == ["seed: 0 there, 7 here"]


def test_bases_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", 'base = "b.toml"')
    write(tmp_path, "b.toml", 'base = "../' + tmp_path.name + '/a.toml"')
    message = refusal(tmp_path / "a.toml")
    assert "circle" in message
    assert re.search(r"a\.toml → .*b\.toml → .*a\.toml$", message)
    assert "circle" in refusal(write(tmp_path, "own.toml", 'base = "own.toml"'))


def test_a_missing_base_names_both_files(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "a.toml", 'base = "b.toml"'))
    assert message == f"{tmp_path}/a.toml: its base {tmp_path}/b.toml does not exist"
    message = refusal(write(tmp_path, "a.toml", 'base = "cifar10/resnet19"'))
    assert message.startswith(f"{tmp_path}/a.toml: base: unknown recipe 'cifar10/resnet19': did")
    assert "base must be text, got 3" in refusal(write(tmp_path, "a.toml", "base = 3"))


def test_missing_files_are_said(tmp_path: Path) -> None:
    assert refusal("demo.toml").endswith("did you mean the shipped recipe 'demo'?")
    assert refusal(tmp_path / "x.toml") == f"there is no file '{tmp_path}/x.toml'"
    path = "give a path to a .toml file"
    assert refusal("dmo") == f"unknown recipe 'dmo': did you mean 'demo'? Or {path}"
    assert refusal("qqq").startswith("unknown recipe 'qqq': there are demo, digits, ")
    assert refusal("qqq").endswith(f", or {path}")


def test_a_path_is_never_taken_for_a_shipped_name(tmp_path: Path) -> None:
    assert "there is no file" in refusal(Path("demo"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seed = \n", "line 1, column 8"),
        ("[train\n", "line 1, column 7"),
        ("a = 1\na = 2\nb = 3", "line 2"),
    ],
)
def test_syntax_errors_say_file_and_position(tmp_path: Path, text: str, place: str) -> None:
    message = refusal(write(tmp_path, "a.toml", text))
    assert message.startswith(f"{tmp_path}/a.toml: not valid TOML: ")
    assert place in message


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe")
    assert refusal(path).startswith(f"{path}: not valid TOML: 'utf-8'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rho = 0.2", "unknown key 'rho': did you mean methods.crsam.rho?"),
        ('method = "sam"\nrho = 0.2', "unknown key 'rho': did you mean methods.sam.rho?"),
        ("lr = 0.2", "unknown key 'lr': did you mean optimizer.lr?"),
        ("epochs = 3", "unknown key 'epochs': did you mean train.epochs?"),
        ("epoch = 3", "unknown key 'epoch': did you mean train.epochs?"),
        ("warmup = 3", "did you mean schedule.warmup or methods.crsam.warmup?"),
        ("metod = 3", "unknown key 'metod': did you mean method? a recipe takes seed, method,"),
        ("zzz = 3", "unknown key 'zzz': a recipe takes seed, method, methods, data"),
        (
            "[train]\nepoch = 3",
            "unknown key 'train.epoch': did you mean train.epochs? [train] takes",
        ),
        ("[train]\nlr = 3", "unknown key 'train.lr': did you mean optimizer.lr?"),
        ("[train]\nzzz = 3", "unknown key 'train.zzz': [train] takes epochs, batch_size"),
        ("[model]\nwidht = 3", "unknown key 'model.widht': did you mean model.width? digits_mlp"),
        (
            "[methods.sam]\nrhoo = 3",
            "unknown key 'methods.sam.rhoo': did you mean methods.sam.rho?",
        ),
        ("[methods.smm]\nrho = 3", "unknown method 'smm': did you mean 'sam'"),
        ("[train]\nepochs = 'ten'", "train.epochs must be a whole number, got 'ten'"),
        ("[train]\nepochs = 3.0", "train.epochs must be a whole number, got 3.0"),
        ("[train]\nepochs = true", "train.epochs must be a whole number, got True"),
        ("[train]\nclip_norm = inf", "train.clip_norm must be a finite number, got inf"),
        ("[optimizer]\nlr = nan", "optimizer.lr must be a finite number, got nan"),
        ("[data]\nroot = 2024-01-01", "data.root must be text, got datetime.date(2024, 1, 1)"),
        ("train = 3", "train must be a table, got 3"),
        ("data = 'cifar10'", "data must be a table, got 'cifar10': did you mean data.name?"),
        ("methods = 3", "methods must be a table, got 3"),
        ("model = 3", "model must be a table, got 3"),
        ("zzz = 3\nmodel = 3", "unknown key 'zzz'"),
        ("[methods]\nsam = 3", "methods.sam must be a table of options, got 3"),
        ("[methods.sam]\n[methods.SAM]", "methods.SAM: there is another table of sam"),
        ("[schedule]\nname = 'cosin'", "schedule.name must be one of 'cosine', 'step', 'constant'"),
        ("[schedule]\nname = 'step'", "schedule.milestones must name the epochs"),
        ("[schedule]\nmilestones = [-1]", "schedule.milestones must be a number of at least 0"),
        (
            "[schedule]\nmilestones = ['a']",
            "schedule.milestones must be a list of numbers, got ['a']",
        ),
        ("[optimizer]\nname = 'adamw'", "optimizer.lr must be given; 'adamw' has none here"),
    ],
)
def test_a_mistake_is_said_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, "a.toml", text)
    child = write(tmp_path, "b.toml", 'base = "a.toml"\n[log]\nevery = 3\n')
    assert refusal(child).startswith(f"{tmp_path}/a.toml: ")
    assert message in refusal(child)


def test_a_mistake_that_is_overridden_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "[train]\nepochs = 'ten'")
    assert load_recipe(path, ["train.epochs=10"]).train.epochs == 10


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.root=/some/path", "/some/path"),
        ("data.root=~/a b#c", "~/a b#c"),
        ("data.root='/some/path'", "/some/path"),
        ('data.root="a\\tb"', "a\tb"),
        ("data.root=''", ""),
        ("data.root=C:\\new", "C:\\new"),
        ("data.root=a=b", "a=b"),
        (" data . root = here ", "here"),
        ("data.root=1\nb=2", "1\nb=2"),
    ],
)
def test_values_are_toml_or_else_text(override: str, value: str) -> None:
    assert load_recipe("demo", [override]).data.root == value


def test_overrides_of_every_type() -> None:
    recipe = load_recipe(
        "demo",
        [
            "method=sam",
            "train.epochs=7",
            "train.clip_norm=1",
            "train.ema=none",
            "log.tensorboard=true",
            "schedule.name=step",
            "schedule.milestones=[0.5, 30]",
            "methods.crsam.trust=none",
            'model={name="resnet18", width=4}',
        ],
    )
    assert recipe.method == "sam"
    assert recipe.train == Train(epochs=7, clip_norm=1.0, rho_warmup=200)
    assert recipe.log.tensorboard
    assert recipe.schedule == Schedule("step", milestones=(0.5, 30.0))
    assert recipe.methods["crsam"] == {"rho": 0.3, "trust": None}
    assert recipe.model == Choice("resnet18", {"width": 4})


def test_later_overrides_win() -> None:
    assert load_recipe("demo", ["seed=1", "seed=2"]).seed == 2


def test_a_name_and_its_options_may_come_in_any_order() -> None:
    for overrides in permutations(["model=resnet18", "model.width=8", "model.stem=imagenet"]):
        wanted = Choice("resnet18", {"width": 8, "stem": "imagenet"})
        assert load_recipe("demo", overrides).model == wanted


def test_an_overriding_name_drops_the_options_of_the_recipes_own() -> None:
    recipe = load_recipe("cifar10/quick", ["model=wrn28_10", "optimizer=adamw", "optimizer.lr=1"])
    assert recipe.model == Choice("wrn28_10")
    assert recipe.optimizer == Choice("adamw", {"lr": 1.0})


def test_the_optimizers_own_name_keeps_its_options(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "")
    assert load_recipe(path, ["optimizer=SGD"]).optimizer == Recipe().optimizer


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rho=0.2", "unknown key 'rho': did you mean methods.crsam.rho?"),
        ("lr=0.2", "unknown key 'lr': did you mean optimizer.lr?"),
        ("epochs=2", "unknown key 'epochs': did you mean train.epochs?"),
        ("train.epochs=ten", "train.epochs must be a whole number, got 'ten'"),
        ("method=base.", "unknown method 'base.'"),
        ("train", "an override is key=value, such as train.epochs=10, got 'train'"),
        ("=3", "an override is key=value, such as train.epochs=10, got '=3'"),
        ("train..epochs=3", "an override is key=value"),
        ("data.root=", "an override is key=value"),
        ("data.root=[1", "'data.root=[1' is no key=value of TOML: "),
        ('data.root="a', "is no key=value of TOML: "),
        ("base=digits", "a base is read before the overrides and cannot be one"),
        ("optimizer=lbfgs", "optimizer.name must not be 'lbfgs'"),
        ("optimizer=adamw", "optimizer.lr must be given; 'adamw' has none here"),
        ("seed=1979-05-27", "seed must be a whole number, got datetime.date"),
    ],
)
def test_a_wrong_override_is_refused(override: str, message: str) -> None:
    assert message in refusal("demo", override)


def test_an_override_is_not_blamed_on_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "[train]\nepochs = 3")
    assert refusal(path, "train.epochs=0") == "train.epochs must be at least 1, got 0"


@pytest.mark.parametrize(
    "words",
    [
        ["data=cifar10", "data.root=/x"],
        ["schedule.gamma=0.5", "schedule=step"],
        ["log=3", "log.every=5"],
    ],
)
def test_a_table_and_a_value_for_it_do_not_go_together(words: list[str]) -> None:
    with pytest.raises(UserError, match="is a table"):
        load_recipe("digits", words)
