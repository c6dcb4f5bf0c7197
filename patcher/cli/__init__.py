"""The command line: parse, call, render, exit code. Nothing else prints."""

from __future__ import annotations

import gc
import sys

#: Objects. Hardly any of ours are in cycles; to look for some while 100,000 are made takes a tenth
#: of the time of ``check``.
_COLLECT_AFTER = 200_000


def main() -> None:
    """Entry point of the ``ckpt-patch`` command."""
    gc.set_threshold(_COLLECT_AFTER)
    from patcher.cli.run import run  # noqa: PLC0415 - lazy: importing the package costs nothing

    code = run(sys.argv[1:])
    # As it ends, Python looks through all objects for cycles, several times; these it leaves out.
    gc.freeze()
    sys.exit(code)
