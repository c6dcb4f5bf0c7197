"""``ckpt-patch explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import explain
from patcher.cli.options import output_options

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command(epilog="Example: ckpt-patch explain KV001")
@click.argument("finding", required=False)
@output_options()
def command(out: Output, finding: str | None) -> None:
    """Explain a finding; without an id, list them all."""
    if finding is None:
        titles = explain.titles()
        if out.format == "json":
            out.document({"schema": "ckpt-patch/explain@1", "findings": dict(titles)})
        else:
            out.answer(f"{name}  {title}" for name, title in titles.items())
        return
    page = explain.page(finding)
    if out.format == "json":
        name = finding.upper()
        out.document({"schema": "ckpt-patch/explain@1", "id": name, "page": page})
    else:
        out.raw(page)
