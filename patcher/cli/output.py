"""Where a command's words go: the answer to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from patcher.cli.app import ReaderLeftError
from patcher.report.escape import lines, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patcher.errors import CkptPatchError
    from patcher.report.human import Style


class Output(Struct, frozen=True):
    """What the user asked for.

    Attributes:
        format: human, json, quiet, markdown or github.
        verbose: show what is hidden by default.
        style: colour for stdout.
    """

    format: str
    verbose: bool
    style: Style

    def answer(self, text: str | Iterable[str]) -> None:
        """Lines of the answer."""
        for line in [text] if isinstance(text, str) else text:
            _write(line + "\n", sys.stdout)

    def raw(self, text: str) -> None:
        """A text that brings its own line ends, such as a diff."""
        _write(lines(text), sys.stdout)

    def document(self, document: Any) -> None:
        """The answer as JSON."""
        _write(json.dumps(document, indent=2) + "\n", sys.stdout)

    def note(self, text: str) -> None:
        """Something that is not the answer."""
        if self.format != "quiet":
            _write(text + "\n", sys.stderr)

    def error(self, error: CkptPatchError) -> int:
        """Say what is wrong and what to do; returns the exit code."""
        if self.format == "json":
            self.document(error_document(error))
        _write(f"Error: {plain(str(error))}\n", sys.stderr)
        if error.detail:
            _write(lines(error.detail).rstrip("\n") + "\n", sys.stderr)
        for line in (error.hint or "").splitlines():
            _write(f"Hint: {plain(line)}\n", sys.stderr)
        return error.exit_code


def error_document(error: CkptPatchError) -> dict[str, Any]:
    """An error for machines (schema ``ckpt-patch/error@1``)."""
    return {
        "schema": "ckpt-patch/error@1",
        "error": {
            "slug": error.slug,
            "message": error.message,
            "path": error.path,
            "pointer": error.pointer,
            "offset": error.offset,
            "hint": error.hint,
            "detail": error.detail,
            "exit_code": error.exit_code,
        },
    }


def use_color(choice: str) -> bool:
    """``--color`` first, then NO_COLOR, FORCE_COLOR, and whether stdout is a capable terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _write(text: str, stream: Any) -> None:
    """Write whatever the stream's encoding makes of it; never fail on a character."""
    encoding = stream.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        click.echo(shown, file=stream, nl=False, color=True)  # whether to colour was decided before
    except BrokenPipeError as error:
        raise ReaderLeftError from error
