"""``ckpt-patch recover``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli.options import checkpoint_argument, output_options
from patcher.in_cache import located
from patcher.report.escape import plain
from patcher.transaction import recover

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command()
@checkpoint_argument
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait for another writer.")
@output_options()
def command(out: Output, checkpoint: str, wait: float) -> None:
    """Finish or roll back an interrupted transaction. Apply and undo do it by themselves."""
    done = recover(located(checkpoint), wait=wait)
    if out.format == "json":
        document = {"schema": "ckpt-patch/recover@1", "checkpoint": checkpoint}
        out.document(document | {"recovered": list(done)})
    elif out.format != "quiet":
        out.answer(map(plain, done or ("Nothing to recover: no transaction was interrupted.",)))
