"""The command line: parse, call, render, exit code. Nothing else prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``ckpt-patch`` command."""
    from patcher.cli.run import run  # noqa: PLC0415 - lazy: importing the package costs nothing

    sys.exit(run(sys.argv[1:]))
