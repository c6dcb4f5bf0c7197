"""``ckpt-patch engines``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import engines
from patcher.cli.options import output_options
from patcher.report.human import columns

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command()
@output_options()
def command(out: Output) -> None:
    """List the engine releases whose behaviour is known."""
    known = {name: engines.releases(name) for name in engines.NAMES}
    if out.format == "json":
        rows = {name: list(releases) for name, releases in known.items()}
        out.document({"schema": "ckpt-patch/engines@1", "releases": rows})
    elif out.format == "quiet":
        out.answer(f"{name}=={release}" for name, group in known.items() for release in group)
    else:
        out.answer(
            columns(
                (engines.NAMES[name], " ".join(releases) or "none in this version: answers unknown")
                for name, releases in known.items()
            )
        )
