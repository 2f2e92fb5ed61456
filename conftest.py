"""The bridges' doctests are collected where their frameworks are installed."""

from importlib.util import find_spec

BRIDGES = {
    "lightning": ["lightning", "pytorch_lightning", "_lightning_steps"],
    "accelerate": ["accelerate", "transformers"],
    "transformers": ["transformers"],
}

collect_ignore = [
    f"src/crsam/integrations/{name}.py"
    for package, names in BRIDGES.items()
    if find_spec(package) is None
    for name in names
]
