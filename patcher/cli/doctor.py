"""``ckpt-patch doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patcher import doctor
from patcher.cli.options import output_options
from patcher.report.escape import plain
from patcher.report.human import columns

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command(epilog="Exit codes: 0 all is well, 1 something needs attention.")
@click.argument("checkpoint", metavar="[CKPT]", required=False, type=click.Path())
@output_options()
def command(out: Output, checkpoint: str | None) -> int:
    """Say what this machine and a checkpoint's file system can do.

    With CKPT, scratch files are made in it and removed again.
    """
    found = tuple(doctor.examine(Path(checkpoint) if checkpoint else None))
    sick = [each for each in found if not each.healthy]
    if out.format == "json":
        rows = [
            {"subject": each.subject, "state": each.state, "healthy": each.healthy}
            for each in found
        ]
        out.document({"schema": "ckpt-patch/doctor@1", "healthy": not sick, "symptoms": rows})
    elif out.format == "quiet":
        out.answer(each.subject for each in sick)
    else:
        out.answer(
            columns(
                ("ok" if each.healthy else "!", each.subject, plain(each.state)) for each in found
            )
        )
    return int(bool(sick))
