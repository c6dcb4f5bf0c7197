"""``ckpt-patch targets``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import gpus
from patcher.cli.options import output_options
from patcher.report.human import columns

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command(epilog="Example: ckpt-patch targets 'RTX PRO 6000'")
@click.argument("name", required=False)
@output_options()
def command(out: Output, name: str | None) -> None:
    """List the GPUs that can be a target; or say which one a name means."""
    found = (gpus.find(name),) if name else gpus.gpus()
    if out.format == "json":
        rows = [
            {
                "name": gpu.name,
                "vendor": gpu.vendor,
                "capability": gpu.capability,
                "products": list(gpu.products),
            }
            for gpu in found
        ]
        out.document({"schema": "ckpt-patch/targets@1", "targets": rows})
    elif out.format == "quiet":
        out.answer(gpu.name for gpu in found)
    else:
        rows_ = [(gpu.name, gpu.capability or "-", gpu.summary) for gpu in found]
        out.answer(columns([("target", "capability", "products"), *rows_]))
        if name or out.verbose:
            out.answer(f"{gpu.name}: {', '.join(gpu.products)}" for gpu in found)
