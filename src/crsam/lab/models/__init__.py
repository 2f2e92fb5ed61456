"""The paper's image models, two small ones, and timm's; each by its class or by its name.

A forward pass depends on weights, batch-norm buffers and torch's random numbers, on nothing else:
what a sharpness-aware step needs to call it again as the same function of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import nn

from crsam._arguments import arguments
from crsam._names import enter, named
from crsam.lab.models.pyramidnet import PyramidNet
from crsam.lab.models.resnet import ResNet
from crsam.lab.models.small import DigitsConv, DigitsMLP
from crsam.lab.models.timm import is_timm, make_timm
from crsam.lab.models.vit import ViT
from crsam.lab.models.weights import Loaded, load_weights, read_weights
from crsam.lab.models.wide_resnet import WideResNet

__all__ = [
    "DigitsConv",
    "DigitsMLP",
    "Loaded",
    "PyramidNet",
    "ResNet",
    "ViT",
    "WideResNet",
    "load_weights",
    "make_model",
    "models",
    "options",
    "read_weights",
    "register",
]

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": partial(ResNet, 18),
    "resnet50": partial(ResNet, 50),
    "resnet101": partial(ResNet, 101),
    "wrn28_10": WideResNet,
    "pyramidnet110": PyramidNet,
    "vit_s32": ViT,
    "vit_b32": partial(ViT, width=768, heads=12),
    "digits_conv": DigitsConv,
    "digits_mlp": DigitsMLP,
}


M = TypeVar("M", bound=Callable[..., nn.Module])


def register(model: M) -> M:
    """Gives a model of your own its name, for `make_model`, recipes and the command line.

    That of the class or function, in lower case. It is called with the number of classes; its other
    arguments are the options that recipes may give. The command line has to import the file first:
    ``crsam --import FILE …``.

    Args:
        model: A class or function whose first argument is ``num_classes``.

    Raises:
        TypeError: If it is something else.
        ValueError: If the name is another model's already.

    Example:
        >>> from torch import nn
        >>> from crsam.lab.models import make_model, register
        >>> @register
        ... def one_layer(num_classes: int, pixels: int = 64) -> nn.Module:
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(pixels, num_classes))
        >>> make_model("one-layer", 10, pixels=784)[1]
        Linear(in_features=784, out_features=10, bias=True)
    """
    taken = list(arguments(model)) if callable(model) else []
    if taken[:1] != ["num_classes"]:
        raise TypeError(f"the first argument of a model must be num_classes, in {model!r}")
    if "name" in taken:
        raise TypeError(f"no argument of {model!r} may be called name: in recipes that is its own")
    name = getattr(model, "__name__", "")
    if not name.isidentifier():
        raise TypeError(f"a model is a class or function with a name of its own, got {model!r}")
    enter("model", name.lower(), model, _MODELS)
    return model


def models() -> list[str]:
    """The names that `make_model` takes, beside those of timm's models.

    Example:
        >>> from crsam.lab.models import models
        >>> "resnet18" in models()
        True
    """
    return list(_MODELS)


def is_own(name: str) -> bool:
    """Whether the model, which is none of timm's, is a user's own.

    Example:
        >>> from crsam.lab.models import is_own
        >>> is_own("resnet18")
        False
    """
    made = named("model", name, _MODELS)
    inner = made.func if isinstance(made, partial) else made
    return not inner.__module__.startswith("crsam.")


def make_model(name: str, num_classes: int, **options: Any) -> nn.Module:
    """A model by its name, whatever its case, dashes or underscores.

    Args:
        name: One of `models`, such as ``"wrn28_10"`` or ``"WRN-28-10"``; or ``"timm:NAME"`` for any
            model of timm's, such as ``"timm:vit_small_patch32_224"``, where timm is installed.
        num_classes: Outputs.
        **options: Other arguments of the model's class, such as ``in_channels``; of timm's models,
            all that ``timm.create_model`` takes, such as ``drop_path_rate``, and ``image_size``.

    Raises:
        UserError: If there is no such model; names the nearest.

    Example:
        >>> from crsam.lab.models import make_model
        >>> make_model("ResNet-18", num_classes=10, stem="cifar", width=4).fc
        Linear(in_features=32, out_features=10, bias=True)
    """
    if is_timm(name):
        return make_timm(name, num_classes, **options)
    return named("model", name, _MODELS)(num_classes, **options)


def options(name: str) -> dict[str, Any]:
    """The options that `make_model` takes for this model, each with its type.

    Of timm's models just those that are the same for all of them.

    Example:
        >>> from crsam.lab.models import options
        >>> list(options("resnet18"))
        ['in_channels', 'stem', 'width', 'zero_init_residual']
    """
    if is_timm(name):
        return {"in_channels": int, "image_size": int, "pretrained": bool}
    found = arguments(named("model", name, _MODELS))
    del found["num_classes"]
    return found
