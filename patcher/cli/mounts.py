"""``ckpt-patch mounts``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import mounting
from patcher.cli.options import output_options
from patcher.report.escape import plain
from patcher.report.human import shell_path

if TYPE_CHECKING:
    from patcher.cli.output import Output


@click.command(
    epilog="Example: ckpt-patch mounts --at /models/Kimi ./Kimi-patched; "
    'eval "docker run $(ckpt-patch mounts -q --at /models/Kimi ./Kimi-patched) ... IMAGE"'
)
@click.argument("folder", metavar="MIRROR|CKPT", default=".", type=click.Path())
@click.option("--at", required=True, metavar="PATH", help="The checkpoint's path in the container.")
@output_options("docker", "kubernetes")
def command(out: Output, folder: str, at: str) -> None:
    """Print read-only mounts of the patched files over the unpatched checkpoint in a container."""
    wanted = mounting.mounts(folder, at)
    if out.format == "json":
        out.document(wanted.to_dict())
        return
    source = f" ({shell_path(wanted.source)})" if wanted.source else ""
    out.note(f"Note: mount the unpatched checkpoint{source} at {plain(wanted.at)} as well.")
    if out.format == "kubernetes":
        out.answer(plain(line) for line in mounting.kubernetes(wanted))
    elif out.format == "quiet":
        out.answer(" ".join(mounting.docker(wanted)))
    else:
        out.answer(f"{plain(line)} \\" for line in mounting.docker(wanted))
