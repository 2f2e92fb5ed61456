"""Weights out of a file into a model: to fine-tune what others, or an earlier run, have trained."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from crsam.errors import UserError
from crsam.lab import _torch_files
from crsam.lab.models.safetensors import read_safetensors
from crsam.lab.models.vit import resized_positions

NESTED = (
    "training", "average", "state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model",
)  # fmt: skip
"""Where checkpoints keep their weights, ours and others'; averaged ones first."""
POSITIONS = ("positions", "pos_embed")
"""Names of position embeddings, ours and timm's."""


@dataclass(frozen=True)
class Loaded:
    """What became of the tensors of a model."""

    taken: tuple[str, ...]
    """As they are in the file."""
    resized: tuple[str, ...] = ()
    """Position embeddings of another image size, interpolated."""
    new: tuple[str, ...] = ()
    """As they were before: those of the head."""

    def __str__(self) -> str:
        num = len(self.taken) + len(self.resized)
        said = f"{num} of {num + len(self.new)} tensors"
        if self.resized:
            said += f"; interpolated: {_some(self.resized)}"
        return said + (f"; new: {_some(self.new)}" if self.new else "")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The weights of a file, by name; nothing in it is run.

    Args:
        path: A ``.safetensors`` file; or a state_dict of torch's, or a checkpoint that has one in
            it, read with ``weights_only=True``; or the folder of a run of ours. Of a checkpoint
            with averaged weights, these.

    Raises:
        UserError: If there are no weights to be had from it.

    Example:
        >>> import tempfile, torch
        >>> file = Path(tempfile.mkdtemp()) / "net.pt"
        >>> torch.save({"epoch": 3, "state_dict": nn.Linear(2, 1).state_dict()}, file)
        >>> list(read_weights(file))
        ['weight', 'bias']
    """
    file = weights_file(path)
    if not file.is_file():
        what = "holds no checkpoint.pt" if Path(path).expanduser().is_dir() else "does not exist"
        raise UserError(f"{path} {what}: give a .safetensors, .pt or .pth file, or a run's folder")
    content = read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    inside = _innermost(content)
    found = {name: value for name, value in inside.items() if isinstance(value, Tensor)}
    found.pop("n_averaged", None)  # torch's AveragedModel counts
    if not found:
        keys = _some(map(str, inside)) or "nothing"
        raise UserError(f"{file} holds no weights: in it are {keys}")
    return found


def weights_file(path: str | Path) -> Path:
    """The file itself, or the checkpoint of a run's folder."""
    file = Path(path).expanduser()
    return file / "checkpoint.pt" if file.is_dir() else file


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Loaded:
    """Gives a model these weights; its head stays new where the number of classes differs.

    Names may have been prefixed by ``DistributedDataParallel``, ``torch.compile`` or a module
    around the model. Position embeddings of another image size are interpolated. A head for as
    many classes is taken as it is.

    Args:
        model: Changed in place; as it was where an error is raised.
        weights: As of `read_weights`.

    Raises:
        UserError: If anything else does not fit; names the tensors.

    Example:
        >>> from crsam.lab.models import DigitsMLP
        >>> print(load_weights(DigitsMLP(4), DigitsMLP(10).state_dict()))
        4 of 6 tensors; new: layers.5.weight, layers.5.bias
    """
    own = model.state_dict()
    given = _named_alike(weights, own)
    head = head_of(model)
    taken: dict[str, Tensor] = {}
    resized: dict[str, Tensor] = {}
    new: list[str] = []
    wrong: list[str] = []
    for name, mine in own.items():
        theirs, in_head = given.get(name), name.startswith(head)
        if theirs is None:
            counter = name.endswith("num_batches_tracked")  # not in files of old versions
            (new if in_head or counter else wrong).append(name)
        elif theirs.shape == mine.shape and _counts_alike(theirs, mine):
            taken[name] = theirs
        elif in_head and theirs.shape[1:] == mine.shape[1:]:
            new.append(name)
        elif name.endswith(POSITIONS) and (fit := resized_positions(theirs, mine)) is not None:
            resized[name] = fit
        else:
            wrong.append(f"{name} ({_kind(theirs)} there, {_kind(mine)} here)")
    unknown = [name for name in given if name not in own]
    if not taken and unknown:
        names, here = _some(weights, 3), _some(own, 3)
        raise UserError(f"these are weights of another model: {names}; here there are {here}")
    if wrong or unknown:
        parts = [f"do not fit or are missing there: {_some(wrong)}"] * bool(wrong)
        parts += [f"are not of this model: {_some(unknown)}"] * bool(unknown)
        raise UserError(f"tensors {'; '.join(parts)}")
    if not_finite := [name for name, tensor in taken.items() if not tensor.isfinite().all()]:
        raise UserError(f"values are not finite in {_some(not_finite)}")
    model.load_state_dict({**taken, **resized}, strict=False)
    return Loaded(tuple(taken), tuple(resized), tuple(new))


def head_of(model: nn.Module) -> tuple[str, ...]:
    """What the names of the head's tensors begin with: the last linear layer's, or as timm says.

    Example:
        >>> from crsam.lab.models import ResNet
        >>> head_of(ResNet(18, num_classes=10, width=4))
        ('fc.',)
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    names = config.get("classifier") or ()
    if not names:
        names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)][-1:]
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def _read_torch(file: Path) -> dict[str, Any]:
    try:
        content = _torch_files.read(file, legacy=True)
    except _torch_files.Damaged as error:
        raise UserError(f"{error}: copy the file again from where it is whole") from error
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} holds more than tensors and plain values, or is no file of torch's; if you "
            "trust it, load it yourself and save its state_dict"
        ) from error
    except Exception as error:  # of a disk, or whatever bytes that are no pickle lead to
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} is not a whole file of torch's: {reason}") from error
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds no weights, but a {type(content).__name__}")
    return dict(content)


def _innermost(content: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in NESTED:
        inside = content.get(key)
        if isinstance(inside, Mapping) and inside:
            return _innermost(inside)
    return content


def _named_alike(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without what was put before all of their names."""
    found = {name.replace("_orig_mod.", ""): tensor for name, tensor in weights.items()}
    while found and not found.keys() & own.keys():
        firsts = {name.partition(".")[0] for name in found}
        if len(firsts) > 1 or any("." not in name for name in found):
            return dict(weights)
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    return found


def _counts_alike(theirs: Tensor, mine: Tensor) -> bool:
    """Whether both are measures, or both counters, though of whole numbers in halves maybe."""
    if mine.is_floating_point() or not theirs.is_floating_point():
        return mine.is_floating_point() == theirs.is_floating_point()
    return bool((theirs == theirs.round()).all())


def _kind(tensor: Tensor) -> str:
    size = "×".join(map(str, tensor.shape)) or "a number"
    return size if tensor.is_floating_point() else f"{size} of {tensor.dtype}"


def _some(names: Iterable[str], most: int = 6) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
