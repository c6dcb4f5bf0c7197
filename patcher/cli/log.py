"""``ckpt-patch log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli.options import checkpoint_argument, output_options
from patcher.in_cache import located
from patcher.report.escape import plain
from patcher.report.human import columns
from patcher.transaction import log

if TYPE_CHECKING:
    from patcher.cli.output import Output
    from patcher.transaction import LogEntry


@click.command()
@checkpoint_argument
@output_options()
def command(out: Output, checkpoint: str) -> None:
    """List all transactions of a checkpoint, oldest first."""
    entries = log(located(checkpoint))
    if out.format == "json":
        rows = [
            {
                "id": entry.id,
                "state": entry.state,
                "problem": entry.problem,
                "record": entry.record.to_dict() if entry.record else None,
            }
            for entry in entries
        ]
        out.document({"schema": "ckpt-patch/log@1", "transactions": rows})
    elif out.format == "quiet":
        out.answer(f"{entry.id:04d}.{entry.state}" for entry in entries)
    elif not entries:
        out.answer("No transactions: ckpt-patch has never changed this checkpoint.")
    else:
        out.answer(columns(map(_row, entries)))


def _row(entry: LogEntry) -> tuple[str, ...]:
    record = entry.record
    if record is None:
        return (f"{entry.id:04d}", entry.state, plain(entry.problem or ""), "", "")
    target = " ".join(str(v) for k, v in record.target.items() if v and k != "kv_cache_dtype")
    files = ", ".join(file.file for file in record.files)
    return (
        f"{entry.id:04d}", entry.state, plain(record.created), plain(record.recipe),
        plain(f"{files} ({target})"),
    )  # fmt: skip
