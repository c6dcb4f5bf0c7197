"""``ckpt-patch diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import jsontext
from patcher.cli.options import checkpoint_argument, output_options
from patcher.in_cache import located
from patcher.report.escape import plain
from patcher.report.values import differences
from patcher.transaction import kept, status

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.cli.output import Output


@click.command()
@checkpoint_argument
@click.option("--patch", is_flag=True, help="Print the RFC 6902 patches instead.")
@click.option("--values", is_flag=True, help="Compare values instead of lines, with deepdiff.")
@click.option("--exit-code", is_flag=True, help="Exit 1 when there are differences.")
@output_options()
def command(
    out: Output,
    checkpoint: str,
    patch: bool,
    values: bool,
    exit_code: bool,
) -> int:
    """Show the original metadata against the present one."""
    root = located(checkpoint)
    record = status(root).record
    compare = _differences if values else jsontext.unified_diff
    texts = {
        name: compare(data, _present(root / name), name)
        for name, data in kept.originals(root).items()
    }
    files = record.files if record else ()
    if out.format == "json" or patch:
        rows = [{"file": file.file, "patch": list(file.patch)} for file in files]
        found = "".join(texts.values())
        told = {"values": found.splitlines()} if values else {"diff": found}
        out.document({"schema": "ckpt-patch/diff@1", "files": rows, **told})
    elif out.format == "quiet":
        out.answer(name for name, text in texts.items() if text)
    elif not any(texts.values()):
        out.answer("No differences: the metadata is as it was before ckpt-patch.")
    else:
        out.raw("".join(texts.values()))
    return int(exit_code and any(texts.values()))


def _differences(before: bytes, after: bytes, name: str) -> str:
    return "".join(f"{name}: {plain(line)}\n" for line in differences(before, after, name))


def _present(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
