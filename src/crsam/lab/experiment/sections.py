"""The tables of a recipe, each checked as soon as it is put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from crsam.lab.experiment.options import canonical
from crsam.lab.experiment.values import RecipeError, Table, fitted, require


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
        crsam.lab.experiment.values.RecipeError: data.label_noise must be between 0 and 1, got 3.0
    """

    name: str = "digits"
    """One of `crsam.lab.data.datasets`."""
    root: str = "data"
    """The folder that holds it."""
    validation: float = 0.0
    """Share of the training set that is held out, to choose by."""
    test_share: float = 0.0
    """Share of the training set that is held out to test on, in place of the set's own test images;
    0: those."""
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
        for held_out in ("validation", "test_share"):
            value = getattr(self, held_out)
            require(0 <= value < 1, f"data.{held_out}", value, _BELOW_ONE)
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
        crsam.lab.experiment.values.RecipeError: train.epochs must be at least 1, got 0
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
    rho_warmup: int | None = None
    """Steps over which ρ rises from 0 to its value, the same for every method. It is at most a
    fifth of the training's steps. None: each method's own default, with the same limit. The option
    ``warmup`` of a method replaces it, without a limit."""
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
        rises = self.rho_warmup
        require(rises is None or rises >= 0, "train.rho_warmup", rises, 'at least 0 or "none"')
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
    split: Literal["train", "test", "both"] = "train"
    """Which images. The paper's Table 3 is of the test set, and its Figure 2 of both. Do not choose
    anything by figures of the test set."""
    num_probes: int = 20
    """Random vectors of a trace."""
    rho: float = 0.05
    """The radius of sharpness and of the approximation ratio. It does not follow the method's."""
    batch_size: int = 512
    """Images in a batch. Only the figures ``…_of_batches`` depend on it."""

    def __post_init__(self) -> None:
        _fit_fields(self, "measure")
        for name in ("every", "samples", "num_probes", "batch_size"):
            require(getattr(self, name) >= 1, f"measure.{name}", getattr(self, name), "at least 1")
        require(self.rho > 0, "measure.rho", self.rho, "above 0")


_BELOW_ONE = "at least 0 and below 1"


def _fit_fields(section: Any, table: str) -> None:
    for name, wanted in get_type_hints(type(section)).items():
        value = fitted(f"{table}.{name}", getattr(section, name), wanted)
        object.__setattr__(section, name, value)
