"""``python -m patcher`` is the ``ckpt-patch`` command."""

from patcher.cli import main

main()
