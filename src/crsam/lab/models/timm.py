"""Any model of Wightman's timm, "PyTorch Image Models", by its name, where timm is installed.

Nothing here is imported from timm until one of its models is asked for.
"""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

from torch import nn

from crsam._names import plain
from crsam.errors import UserError
from crsam.lab.models.layers import check_sizes

PREFIX = "timm:"


def is_timm(name: str) -> bool:
    """Whether it is the name of a model of timm's.

    Example:
        >>> is_timm("timm:resnet50"), is_timm("resnet50")
        (True, False)
    """
    return name.lower().startswith(PREFIX)


def timm_name(name: str) -> str:
    """The name as timm writes it, with the prefix.

    Args:
        name: Such as ``"timm:ViT-Small-Patch32-224"``, or ``"timm:resnet50.a1_in1k"`` with the tag
            of certain weights.

    Raises:
        UserError: If timm is not installed, or has no such model or tag; names the nearest.
    """
    timm = _timm(name)
    asked, dot, tag = name[len(PREFIX) :].strip().partition(".")
    names = timm.list_models()
    spelled = {plain(each): each for each in names} | {each: each for each in names}
    found = spelled.get(asked) or spelled.get(plain(asked))
    if found is None:
        raise UserError(f"unknown model {name!r}: {_nearest(plain(asked), spelled)}")
    tags = [each.partition(".")[2] for each in timm.list_models(f"{found}.*", pretrained=True)]
    if dot and tag not in tags:
        known = ", ".join(tags) or "none"
        raise UserError(f"unknown tag {tag!r} of timm's {found}: its weights are {known}")
    return f"{PREFIX}{found}{dot}{tag}"


def make_timm(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int | None = None,
    **options: Any,
) -> nn.Module:
    """A model of timm's, for these classes and images.

    Args:
        name: With its prefix; see `timm_name`.
        num_classes: Outputs.
        in_channels: Channels of the images.
        image_size: Their side, for models that are made for one; others do not look at it.
        **options: Passed on, such as ``drop_path_rate=0.1``. With ``pretrained=True`` timm fetches
            weights, or finds those that it has fetched before.

    Raises:
        UserError: If there is no such model, or timm cannot make it so.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    found = timm_name(name).removeprefix(PREFIX)
    timm = _timm(name)
    config = timm.models.get_pretrained_cfg(found.partition(".")[0])
    if image_size is not None and config is not None and config.fixed_input_size:
        options.setdefault("img_size", image_size)
    try:
        return timm.create_model(found, num_classes=num_classes, in_chans=in_channels, **options)
    except Exception as error:  # whatever a constructor, a cache or a network may raise
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if options.get("pretrained"):
            raise UserError(
                f"timm found no weights for {found}, here or on the network ({reason}): "
                "fetch them elsewhere and give the file, init=FILE"
            ) from error
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise UserError(f"timm cannot make {found}({given}): {reason}") from error


def _timm(name: str) -> ModuleType:
    try:
        import timm
        import timm.models
    except ImportError as error:
        raise UserError(
            f"model {name!r} needs timm and torchvision ({error}): pip install timm"
        ) from None
    return timm


def _nearest(asked: str, spelled: dict[str, str]) -> str:
    close = difflib.get_close_matches(asked, spelled, n=12)
    near = list(dict.fromkeys(spelled[each] for each in close))[:3]
    hint = f"did you mean {', '.join(PREFIX + each for each in near)}? " if near else ""
    num = len(set(spelled.values()))
    return f"{hint}timm has {num:,} models, timm.list_models() names them"
