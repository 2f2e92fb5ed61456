"""The command line: each command parses, calls one function and prints."""

from __future__ import annotations

import os
import shlex
import sys

from crsam.lab.cli import training  # noqa: F401  # isort: skip  (these in the order of --help)
from crsam.lab.cli import looking  # noqa: F401  # isort: skip
from crsam.lab.cli import corrupting  # noqa: F401  # isort: skip
from crsam.lab.cli import knowing  # noqa: F401  # isort: skip
from crsam.errors import UserError
from crsam.lab.cli.app import app, check_order
from crsam.lab.train.interrupt import Stopped

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line: a user's mistake is one line and exit code 2."""
    try:
        check_order(sys.argv[1:])
        app()
    except Stopped:
        if os.environ.get("RANK", "0") == "0":
            words = [word for word in sys.argv[1:] if word != "--fresh"]
            command = shlex.join(["crsam", *words])
            print(f"stopped; the same command goes on from here: {command}", file=sys.stderr)
        sys.exit(130)
    except (UserError, OSError) as error:
        if os.environ.get("CRSAM_TRACEBACK"):
            raise
        if os.environ.get("RANK", "0") == "0":
            print(f"crsam: {error}", file=sys.stderr)
        sys.exit(2)
