"""A recipe: all that decides what a run computes, checked as soon as it is put together."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

from crsam._names import plain
from crsam.experiment.literal import literal
from crsam.experiment.options import canonical, checked, optimizers
from crsam.experiment.ranges import Sweep
from crsam.experiment.values import RecipeError, Table, fitted, require
from crsam.train.schedule import Schedule

CHOICES = ("augment", "model", "optimizer")
"""The tables of a recipe that name a thing and give its options."""


@dataclass(frozen=True)
class Choice:
    """A thing by name, with its options.

    Example:
        >>> Choice("resnet18", {"width": 16}).options["width"]
        16
    """

    name: str
    """In any spelling; a `Recipe` puts it right."""
    options: Mapping[str, Any] = field(default_factory=Table)
    """What is not given is as the thing's own default says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", Table(self.options))


@dataclass(frozen=True)
class Data:
    """Which images, and what is done to the set as a whole.

    Example:
        >>> Data(label_noise=3)
        Traceback (most recent call last):
        crsam.experiment.values.RecipeError: data.label_noise must be between 0 and 1, got 3.0
    """

    name: str = "digits"
    """One of `crsam.data.datasets`."""
    root: str = "data"
    """The folder that holds it."""
    validation: float = 0.0
    """Share of the training set that is held out, to choose by."""
    label_noise: float = 0.0
    """Share of the training labels that are made wrong."""
    image_size: int | None = None
    """Height and width that images are brought to; None: as they are."""
    download: bool = False
    """Whether what is missing is fetched."""
    hold: bool | None = None
    """Of folders: whether images are held decoded; None: if they fit, and no random windows of
    whole photographs are asked for, as ``augment = "inception"`` does."""
    middle: float | None = None
    """Of folders: share of the shorter side that a model is judged on; None: 0.875 with windows of
    whole photographs, else all of it."""
    draft: bool | None = None
    """Of folders: whether JPEGs may be decoded smaller than they are where no more is needed;
    None: for random windows, not for evaluation."""
    workers: int | None = None
    """Of folders: processes that decode; None: the cores there are for each process that trains."""

    def __post_init__(self) -> None:
        _fit_fields(self, "data")
        require(
            self.workers is None or self.workers >= 0, "data.workers", self.workers, "at least 0"
        )
        share = self.middle
        require(share is None or 0 < share <= 1, "data.middle", share, "above 0 and at most 1")
        object.__setattr__(self, "name", canonical("data", self.name, "data.name"))
        require(0 <= self.validation < 1, "data.validation", self.validation, _BELOW_ONE)
        noise, size = self.label_noise, self.image_size
        require(0 <= noise <= 1, "data.label_noise", noise, "between 0 and 1")
        require(size is None or size >= 1, "data.image_size", size, "at least 1")


@dataclass(frozen=True)
class Loss:
    """What is done to the targets of the cross-entropy."""

    label_smoothing: float = 0.0
    """Probability that is spread over all classes."""
    mixup: float = 0.0
    """Its α; 0: none."""

    def __post_init__(self) -> None:
        _fit_fields(self, "loss")
        smoothing = self.label_smoothing
        require(0 <= smoothing < 1, "loss.label_smoothing", smoothing, _BELOW_ONE)
        require(self.mixup >= 0, "loss.mixup", self.mixup, "at least 0")


@dataclass(frozen=True)
class Train:
    """How long, and in which portions and precision.

    Example:
        >>> Train(epochs=0)
        Traceback (most recent call last):
        crsam.experiment.values.RecipeError: train.epochs must be at least 1, got 0
    """

    epochs: int = 40
    """Times that the training set is seen."""
    batch_size: int = 64
    """Images of a step, over all processes and micro-batches."""
    accumulate: int = 1
    """Micro-batches that a batch is cut into, to save memory."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """``"bfloat16"`` is autocast: weights and losses stay float32."""
    clip_norm: float | None = None
    """The norm that gradients, or a method's surrogate, are clipped to; None: not clipped."""
    backbone_lr: float = 1.0
    """Learning rate of all layers but the last, in those of the last; below 1 to fine-tune."""
    ema: float | None = None
    """Decay of the average of the weights that is judged in their place; None: no average."""
    channels_last: bool = False
    """Memory order that convolutions on GPUs are faster in."""
    capture: bool = True
    """On a CUDA device: capture whole steps in a CUDA graph."""
    compile: bool = True
    """Where steps are captured: compile model and loss first, which takes up to minutes for nets
    of very many layers."""

    def __post_init__(self) -> None:
        _fit_fields(self, "train")
        for name in ("epochs", "batch_size", "accumulate"):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "at least 1")
        if self.batch_size % self.accumulate:
            message = f"must divide train.batch_size = {self.batch_size}, got {self.accumulate}"
            raise RecipeError(f"train.accumulate {message}", "train.accumulate")
        require(self.backbone_lr > 0, "train.backbone_lr", self.backbone_lr, "above 0")
        norm, decay = self.clip_norm, self.ema
        require(norm is None or norm > 0, "train.clip_norm", norm, 'above 0 or "none"')
        require(decay is None or 0 < decay < 1, "train.ema", decay, 'between 0 and 1 or "none"')


@dataclass(frozen=True)
class Log:
    """What is written down, and how often."""

    every: int = 50
    """Steps between two training lines of ``metrics.jsonl``."""
    evaluate: int = 1
    """Epochs between two looks at the validation images."""
    checkpoint: int = 1
    """Epochs between two checkpoints."""
    tensorboard: bool = False
    """Whether the same figures are written for TensorBoard."""
    test: bool = True
    """Whether the test set is read, after the last epoch; False for a run to choose by."""

    def __post_init__(self) -> None:
        _fit_fields(self, "log")
        for name in ("every", "evaluate", "checkpoint"):
            require(getattr(self, name) >= 1, f"log.{name}", getattr(self, name), "at least 1")


@dataclass(frozen=True)
class Measures:
    """Which figures of flatness are taken while training goes on, and how often."""

    metrics: tuple[str, ...] = ()
    """Names that ``crsam list metrics`` shows; none: nothing is measured."""
    every: int = 1
    """Epochs between."""
    samples: int = 2048
    """Images, without augmentation."""
    split: Literal["train", "test"] = "train"
    """Which images. The paper's Table 3 is of the test set; nothing is to be chosen by that."""
    num_probes: int = 20
    """Random vectors of a trace."""

    def __post_init__(self) -> None:
        _fit_fields(self, "measure")
        for name in ("every", "samples", "num_probes"):
            require(getattr(self, name) >= 1, f"measure.{name}", getattr(self, name), "at least 1")


@dataclass(frozen=True)
class Recipe:
    """All that decides what a run computes.

    Names are put into the registries' spelling, numbers into the types that are asked for; two
    recipes that say the same are equal.

    Raises:
        RecipeError: For whatever is not known, not of its type or not allowed.

    Example:
        >>> recipe = Recipe(model=Choice("ResNet-18", {"width": 16}), methods={"sam": {"rho": 0.2}})
        >>> recipe.model.name, recipe.with_method("SAM").method_options
        ('resnet18', {'rho': 0.2})
    """

    seed: int = 0
    """Of the first weights, the order of the images, their augmentation and a method's draws."""
    method: str = "crsam"
    """One of `crsam.methods`, or the optimizer's name (or ``"base"``) for the optimizer alone."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=Table)
    """Options of methods, by name: of the one that is used, and of others to compare it with."""
    data: Data = field(default_factory=Data)
    """The images."""
    augment: Choice = field(default_factory=lambda: Choice("none"))
    """One of `crsam.data.augment.augmentations`."""
    loss: Loss = field(default_factory=Loss)
    """Label smoothing and mixup."""
    model: Choice = field(default_factory=lambda: Choice("digits_mlp"))
    """One of `crsam.models.models`, or ``timm:NAME``."""
    init: str | None = None
    """A file of weights to start from, or the folder of a run; None: weights are drawn."""
    optimizer: Choice = field(
        default_factory=lambda: Choice("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4})
    )
    """The base optimizer: any of ``torch.optim``, by its name in lower case."""
    schedule: Schedule = field(default_factory=Schedule)
    """Of the learning rate."""
    train: Train = field(default_factory=Train)
    """Epochs, batches, precision."""
    log: Log = field(default_factory=Log)
    """What is written down."""
    measure: Measures = field(default_factory=Measures)
    """Figures of flatness through training."""
    sweep: Sweep = field(default_factory=Sweep)
    """What ``crsam sweep`` tries; of no effect on a run."""

    def __post_init__(self) -> None:
        set_ = functools.partial(object.__setattr__, self)
        set_("seed", fitted("seed", self.seed, int))
        require(0 <= self.seed < 2**63, "seed", self.seed, "at least 0 and below 2**63")
        set_("init", fitted("init", self.init, str | None))
        require(self.init != "", "init", self.init, 'a file or "none"')
        for table in CHOICES:
            set_(table, _settled(table, getattr(self, table)))
        if "lr" not in self.optimizer.options:
            # The optimizers' own defaults differ by a factor of a thousand.
            name = self.optimizer.name
            raise RecipeError(f"optimizer.lr must be given; {name!r} has none here", "optimizer")
        set_("methods", self._settled_methods())
        set_("method", self._settled_method())
        if not (self.log.test or self.data.validation):
            raise RecipeError(
                "log.test = false leaves nothing to judge a run by: data.validation must be above "
                f"0, got {self.data.validation}",
                "log.test",
            )

    @property
    def method_options(self) -> Mapping[str, Any]:
        """The options of the method that is used."""
        return self.methods.get(self.method, Table())

    def with_method(self, name: str) -> Recipe:
        """The same recipe with another method."""
        return replace(self, method=name)

    def _settled_method(self) -> str:
        own = self.optimizer.name
        name = plain(fitted("method", self.method, str))
        if name in ("base", own):
            return own
        if name in optimizers():
            raise RecipeError(
                f"method {self.method!r} is not the optimizer of this recipe: for that alone, say "
                f"{own!r} or 'base'",
                "method",
            )
        return canonical("methods", self.method, "method", also=(own,))

    def _settled_methods(self) -> Table:
        found: dict[str, Table] = {}
        for given, options in self.methods.items():
            key = f"methods.{given}"
            if plain(given) in ("base", *optimizers()):
                raise RecipeError(f"{key}: the options of the base are those of [optimizer]", key)
            name = canonical("methods", given, key)
            if name in found:
                raise RecipeError(f"{key}: there is another table of {name}", key)
            require(isinstance(options, Mapping), key, options, "a table of options")
            found[name] = checked("methods", name, options, key)
        return Table(found)


def as_tables(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a TOML file has it: plain values first, then tables.

    Example:
        >>> as_tables(Recipe())["model"]
        {'name': 'digits_mlp'}
    """
    tables: dict[str, Any] = {"seed": recipe.seed, "method": recipe.method}
    if recipe.init is not None:
        tables["init"] = recipe.init
    swept = ("sweep",) if recipe.sweep.ranges else ()
    for table in ("data", "augment", "loss", "model", "optimizer", "schedule", "train", "log",
                  "measure", *swept):  # fmt: skip
        value = getattr(recipe, table)
        if isinstance(value, Choice):
            tables[table] = {"name": value.name, **value.options}
        else:
            tables[table] = {f.name: getattr(value, f.name) for f in fields(value)}
    return {**tables, "methods": {name: dict(given) for name, given in recipe.methods.items()}}


def differences(a: Recipe, b: Recipe) -> list[str]:
    """What is not the same in two recipes, a line each, in the order of the tables.

    Args:
        a: The one that is there.
        b: The one that is here.

    Example:
        >>> differences(Recipe(), Recipe(train=Train(epochs=60)))
        ['train.epochs: 40 there, 60 here']
    """
    there, here = flat(as_tables(a)), flat(as_tables(b))
    tables = list({**as_tables(a), **as_tables(b)})
    keys = sorted({**there, **here}, key=lambda key: tables.index(key.split(".")[0]))

    def said(values: dict[str, Any], key: str) -> str:
        return literal(values[key]) if key in values else "nothing"

    return [
        f"{key}: {said(there, key)} there, {said(here, key)} here"
        for key in keys
        if said(there, key) != said(here, key)
    ]


def flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """All values by their dotted keys.

    Example:
        >>> flat({"seed": 0, "train": {"epochs": 40}})
        {'seed': 0, 'train.epochs': 40}
    """
    found: dict[str, Any] = {}
    for name, value in tables.items():
        deeper = isinstance(value, dict) and (value or not above)
        found |= flat(value, f"{above}{name}.") if deeper else {above + name: value}
    return found


_BELOW_ONE = "at least 0 and below 1"


def _fit_fields(section: Any, table: str) -> None:
    for name, wanted in get_type_hints(type(section)).items():
        value = fitted(f"{table}.{name}", getattr(section, name), wanted)
        object.__setattr__(section, name, value)


def _settled(table: str, choice: Choice) -> Choice:
    key = f"{table}.name"
    name = canonical(table, fitted(key, choice.name, str), key)
    return Choice(name, checked(table, name, choice.options, table))
