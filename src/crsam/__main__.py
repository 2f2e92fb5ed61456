"""The command ``crsam``, and ``python -m crsam`` as ``torchrun -m`` needs it."""

import sys
from importlib.util import find_spec

NEEDED = {"PIL": "pillow", "rich": "rich", "scipy": "scipy", "sklearn": "scikit-learn",
          "typer": "typer"}  # fmt: skip
"""What the extra ``lab`` brings, by the name of its import."""


def main() -> None:
    """Runs the command line, or says what to install for it."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        print(
            f"crsam: the command line needs {', '.join(missing)}: pip install 'crsam[lab]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from crsam.lab.cli import main as run

    run()


if __name__ == "__main__":
    main()
