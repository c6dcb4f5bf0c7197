"""``ckpt-patch diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher import jsontext
from patcher.cli.options import checkpoint_argument, output_options
from patcher.in_cache import located
from patcher.transaction import kept, status

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.cli.output import Output


@click.command()
@checkpoint_argument
@click.option("--patch", is_flag=True, help="Print the RFC 6902 patches instead.")
@click.option("--exit-code", is_flag=True, help="Exit 1 when there are differences.")
@output_options()
def command(
    out: Output,
    checkpoint: str,
    patch: bool,
    exit_code: bool,
) -> int:
    """Show the original metadata against the present one."""
    root = located(checkpoint)
    record = status(root).record
    before = kept.originals(root)
    texts = {
        name: jsontext.unified_diff(data, _present(root / name), name)
        for name, data in before.items()
    }
    files = record.files if record else ()
    if out.format == "json" or patch:
        rows = [{"file": file.file, "patch": list(file.patch)} for file in files]
        out.document(
            {"schema": "ckpt-patch/diff@1", "files": rows, "diff": "".join(texts.values())}
        )
    elif out.format == "quiet":
        out.answer(name for name, text in texts.items() if text)
    elif not any(texts.values()):
        out.answer("No differences: the metadata is as it was before ckpt-patch.")
    else:
        out.raw("".join(texts.values()))
    return int(exit_code and any(texts.values()))


def _present(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
