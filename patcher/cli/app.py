"""The command group. Commands are imported when they run, so that start-up stays small."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from patcher import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: command -> module under patcher.cli and one line of help, in the order of ``--help``.
COMMANDS = {
    "check": ("check", "Say what this checkpoint will do on a GPU; exit 1 on a conflict."),
    "apply": ("apply", "Patch the metadata so that it runs; reversible, no weights touched."),
    "undo": ("undo", "Take the last patch back, byte for byte."),
    "mirror": ("mirror", "Make a patched copy whose weights are links; the source stays as it is."),
    "status": ("status", "Say whether a checkpoint is pristine, patched, edited or interrupted."),
    "report": ("report", "Write the diff report, as Markdown or JSON."),
    "export": ("export", "Write the patch as a pull request to the checkpoint's author."),
    "inspect": ("inspect", "List every KV-cache statement and which file each engine believes."),
    "plan": ("plan", "Show what apply would do; save it with -o."),
    "diff": ("diff", "Show what the applied patch changed."),
    "log": ("log", "List all transactions of a checkpoint."),
    "verify": ("verify", "Say whether a mirror and its source are still as they were made."),
    "mounts": ("mounts", "Print container mounts of the patched files over the unpatched model."),
    "recover": ("recover", "Finish or roll back an interrupted transaction."),
    "doctor": ("doctor", "Say what this machine and a checkpoint's file system can do."),
    "explain": ("explain", "Explain a finding, such as KV001."),
    "targets": ("targets", "List the GPUs and their names."),
    "recipes": ("recipes", "List, show or validate recipes."),
    "matrix": ("matrix", "Show which attention backend runs which KV-cache dtype on a GPU."),
    "engines": ("engines", "List, probe or compare engine releases."),
}


class ReaderLeftError(Exception):
    """The reader of stdout or stderr has left. No OSError: click makes exit code 1 of those."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, daily commands first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command itself."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"patcher.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and options, without importing any command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - lazy: only for shells

        lines = ((name, line) for name, (_, line) in COMMANDS.items())
        found = [CompletionItem(n, help=line) for n, line in lines if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "CKPT_PATCH",
        "max_content_width": 100,
    },
    epilog="Start with: ckpt-patch check --target sm120 --engine vllm==0.16.0 ./CHECKPOINT",
)
@click.version_option(__version__, prog_name="ckpt-patch")
def cli() -> None:
    """Tell what a checkpoint's KV-cache metadata will do on your GPU, patch it, take it back."""
