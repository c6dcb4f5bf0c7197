"""One run of the command line, from arguments to exit code."""

from __future__ import annotations

import os
import sys

import click

from patcher.cli.app import ReaderLeftError, cli
from patcher.errors import CkptPatchError


def run(args: list[str]) -> int:
    """Run one command; every error becomes a message and an exit code.

    Commands report their own ``CkptPatchError``; what arrives here is usage, interruption, a closed
    pipe, or a bug.
    """
    try:
        code = cli.main(args, prog_name="ckpt-patch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CkptPatchError as error:
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, ReaderLeftError):
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback for users
        from patcher.cli import crash  # noqa: PLC0415 - lazy: there should be none

        return crash.report(error, args)
    return code if isinstance(code, int) else 0


def _reader_left() -> int:
    """The reader of a pipe has left (head, less); say so as a shell does for SIGPIPE.

    Python would complain again while it shuts down, so what is left goes nowhere.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
