"""``ckpt-patch inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli.options import gravest, network_option, opened, output_options
from patcher.cli.output import error_document
from patcher.engines import NAMES
from patcher.errors import CkptPatchError
from patcher.readers import readers
from patcher.report.escape import plain, value
from patcher.report.human import ATTENTION, columns
from patcher.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.checkpoint import Checkpoint
    from patcher.cli.output import Output
    from patcher.metadata.model import Model

ORIGINS = {
    "directory": "a plain directory",
    "cache": "a Hugging Face cache snapshot",
    "local_dir": "a download with --local-dir",
    "hub": "the metadata",
}


@click.command(epilog="Example: ckpt-patch inspect ./Kimi-K2.5-NVFP4")
@click.argument("checkpoints", metavar="CKPT...", nargs=-1, type=click.Path())
@network_option
@output_options()
def command(out: Output, checkpoints: tuple[str, ...]) -> int:
    """List every KV-cache statement, and which file each engine believes."""
    codes, documents = [], []
    for path in checkpoints or (".",):
        try:
            checkpoint = opened(out, path)
            subject = Subject.of(checkpoint.documents)
        except CkptPatchError as error:
            if len(checkpoints) < 2:  # noqa: PLR2004 - a single error is the whole answer
                raise
            documents.append(error_document(error) | {"path": path})
            codes.append(out.error(error) if out.format != "json" else error.exit_code)
            continue
        documents.append(_document(checkpoint, subject))
        if out.format == "human":
            out.answer(_lines(checkpoint, subject))
        elif out.format == "quiet":
            out.answer(f"{item.file}:{item.pointer}" for item in subject.declarations)
    if out.format == "json":
        many = {"schema": "ckpt-patch/inspects@1", "results": documents}
        out.document(many if len(documents) > 1 else documents[0])
    return gravest(codes)


def _model(checkpoint: Checkpoint, model: Model) -> Iterator[str]:
    origin = checkpoint.origin
    where = ORIGINS.get(origin.kind, origin.kind)
    if origin.repo_id:
        where += f" of {plain(origin.repo_id)}"
    if origin.revision:
        where += f" at {plain(origin.revision)}"
    size = f", {model.head_size} elements per token, layer and KV head" if model.head_size else ""
    window = f", sliding window {model.sliding_window}" if model.sliding_window else ""
    sinks = ", attention sinks" if model.sinks else ""
    yield from columns(
        (
            ("Checkpoint", f"{plain(str(checkpoint.root))} ({where})"),
            ("Files", ", ".join(checkpoint.documents)),
            (
                "Model",
                f"{plain(model.model_type or 'unknown')}, {ATTENTION[model.attention]}{size}"
                f"{window}{sinks}",
            ),
            (
                "Layers",
                f"{model.layers}, {model.attention_layers} with a KV cache; "
                f"{model.kv_heads} KV heads; dtype {plain(model.dtype or 'not stated')}",
            ),
        )
    )


def _lines(checkpoint: Checkpoint, subject: Subject) -> Iterator[str]:
    yield from _model(checkpoint, subject.model)
    yield ""
    if not subject.declarations:
        yield "No statement about the KV cache: every engine uses the model's own dtype."
    else:
        yield "Statements about the KV cache:"
        yield from columns(
            (
                (
                    f"{item.file}:{item.line}",
                    plain(item.pointer),
                    f"= {value(item.value)}",
                    f"({item.producer}: {item.meaning})",
                )
                for item in subject.declarations
            ),
            "  ",
        )
    for gap in subject.missing:
        yield f"  {gap.file}:{gap.line}  {plain(gap.pointer)}  deleted, but vLLM demands it"
    yield ""
    yield "Which file each engine believes here:"
    yield from columns(
        ((NAMES[item.engine], item.file or "none", item.order) for item in readers(subject.values)),
        "  ",
    )
    yield "No weights were read or changed."


def _document(checkpoint: Checkpoint, subject: Subject) -> dict[str, Any]:
    model, origin = subject.model, checkpoint.origin
    return {
        "schema": "ckpt-patch/inspect@1",
        "checkpoint": {
            "path": str(checkpoint.root),
            "origin": origin.kind,
            "repo_id": origin.repo_id,
            "revision": origin.revision,
            "layout": checkpoint.layout,
            "files": list(checkpoint.documents),
        },
        "model": {
            "model_type": model.model_type,
            "text_model_type": model.text_model_type,
            "attention": model.attention,
            "head_size": model.head_size,
            "kv_heads": model.kv_heads,
            "layers": model.layers,
            "attention_layers": model.attention_layers,
            "hybrid": model.hybrid,
            "sliding_window": model.sliding_window,
            "sinks": model.sinks,
            "dtype": model.dtype,
        },
        "declarations": [item.to_dict() for item in subject.declarations],
        "missing": [
            {"file": gap.file, "pointer": gap.pointer, "line": gap.line} for gap in subject.missing
        ],
        "readers": [
            {"engine": item.engine, "file": item.file, "order": item.order}
            for item in readers(subject.values)
        ],
    }
