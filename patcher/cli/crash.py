"""A bug in ckpt-patch: a note that can be pasted into an issue, instead of a traceback."""

from __future__ import annotations

import os
import platform
import sys
import traceback

import click

from patcher import __version__, outfile
from patcher.errors import CkptPatchError

EXIT_CODE = 70


def report(error: BaseException, args: list[str]) -> int:
    """Write the note and name it; with ``--debug`` the traceback is shown too."""
    text = "".join(traceback.format_exception(error))
    if "--debug" in args or os.environ.get("CKPT_PATCH_DEBUG"):
        click.echo(text, err=True)
    click.echo(f"Error: this is a bug in ckpt-patch: {type(error).__name__}: {error}", err=True)
    note = (
        f"# ckpt-patch {__version__}\n\n- python {platform.python_version()} on "
        f"{platform.platform()}\n- arguments: `{args}`\n\n```\n{text}```\n"
    )
    path = outfile.cache_folder() / f"crash-{os.getpid()}.md"
    try:
        outfile.make_folder(path.parent)
        outfile.write(path, note.encode("utf-8", "backslashreplace"))
    except (OSError, CkptPatchError):
        click.echo("Hint: run it again with --debug and report what it prints.", err=True)
    else:
        click.echo(f"Hint: please report it with the note in {path}", err=True)
    sys.stdout.flush()
    return EXIT_CODE
