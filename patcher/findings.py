"""From an engine's answer and the files to findings: what is wrong, where, how bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from patcher.engines import NAMES
from patcher.verdict import FAILING, Finding, Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from patcher.engines.base import Answer, Notice, Place
    from patcher.headers import ScaleCounts, ScaleValues
    from patcher.metadata.declarations import Declaration
    from patcher.subject import Subject

#: What each refusal amounts to, in one line; the engine's own text goes to ``detail``.
REFUSALS = {
    "KV001": "no attention backend of {engine} runs {model} with {cache} on {gpu}",
    "KV002": "{engine} selects a backend that then refuses {cache} on {gpu}",
    "KV003": "{engine} refuses {cache} before it looks at the GPU",
    "KV004": "{engine} cannot read this KV-cache statement",
    "KV005": "a key that {engine} demands was deleted; null is the safe way to turn it off",
    "KV009": "the launch flag does not work here on {engine}",
    "KV010": "{engine} forces a KV-cache dtype whatever the files say",
    "KV006": "{engine} refuses files that disagree about the KV cache",
    "KV012": "{engine} fails on malformed metadata",
    "KV016": "{engine} refuses this model, its weights' quantization, or {gpu}",
    "KV011": "the chosen attention backend and {cache} exclude each other on {engine}",
}
_ATTENTION = {
    "gqa": "this model",
    "mla": "this model (MLA)",
    "sparse-mla": "this model (sparse MLA)",
}
QUIET = {"none", "unreadable"}


def failing(answer: Answer) -> list[Notice]:
    """What is expected to fail at run time, in a kernel, although the release starts."""
    return [notice for notice in answer.notices if notice.message.startswith(FAILING)]


def of_answer(
    subject: Subject, answer: Answer, engine: str, release: str, gpu: str
) -> Iterator[Finding]:
    """The findings that one release's answer amounts to."""
    cache = answer.resolution.kv_cache_dtype if answer.resolution else "auto"
    words = {
        "engine": f"{NAMES[engine]} {release}",
        "gpu": gpu,
        "model": _ATTENTION.get(subject.model.attention, "this model"),
        "cache": "a cache in the model's dtype" if cache == "auto" else f"an {cache} KV cache",
    }
    if cache.startswith("nv"):
        words["cache"] = "an NVFP4 KV cache"
    for refusal in answer.refusals:
        places = _where(subject, refusal.place, refusal.finding)
        message = REFUSALS[refusal.finding].format(**words)
        yield Finding(refusal.finding, "error", message, places, refusal.message)
    for notice in answer.notices:
        if notice.finding == "KV009" and notice.severity == "info" and not answer.refusals:
            continue  # that the flag cannot turn it off matters only where it should be off
        place = _where(subject, notice.place, notice.finding)
        yield Finding(notice.finding, notice.severity, notice.message, place)


def _where(subject: Subject, place: Place | None, finding: str) -> tuple[Location, ...]:
    """The deciding value first; with a refused dtype also every other statement of it."""
    first = [] if place is None else [subject.location(place.file, place.pointer)]
    if finding not in {"KV001", "KV002", "KV003"}:
        return tuple(first)
    others = (
        Location(item.file, item.pointer, item.line)
        for item in subject.declarations
        if item.meaning not in QUIET
    )
    return tuple(dict.fromkeys([*first, *others]))


def settled_by_scales(
    found: Iterable[Finding], values: Callable[[], ScaleValues | None]
) -> Iterator[Finding]:
    """KV015 depends on the scales themselves: dropped where all are 1.0, else with their range."""
    for finding in found:
        if finding.id != "KV015":
            yield finding
            continue
        scales = values()
        if scales is None:
            yield replace(finding, message=f"{finding.message}; the shards are not here to tell")
        elif not scales.all_one:
            span = f"{scales.lowest:.6g} to {scales.highest:.6g}"
            yield replace(finding, message=f"{finding.message}; here they are {span}")


def of_files(subject: Subject, decided_by: Place | None) -> Iterator[Finding]:
    """The findings that the files give whatever the engine."""
    for location in subject.ambiguous:
        key = location.pointer.rpartition("/")[2]
        yield Finding(
            "KV012",
            "warning",
            f'the key "{key}" stands twice; parsers differ on which one counts',
            (location,),
        )
    for name in subject.bom:
        yield Finding(
            "KV012",
            "warning",
            f"{name} starts with a byte order mark, which engines fail to read",
            (Location(name, "", 1),),
        )
    yield from _half_off(subject)
    yield from _disagreement(subject, decided_by)


def _half_off(subject: Subject) -> Iterator[Finding]:
    """Quark's group was emptied and its layers were not; see metadata.forms for the runs."""
    quark = [item for item in subject.declarations if item.producer == "quark" and item.obeyed]
    emptied = {item.file for item in quark if item.value == []}
    left = [item for item in quark if item.file in emptied and item.meaning != "none"]
    if left:
        yield Finding(
            "KV004",
            "warning",
            "export.kv_cache_group is empty, but q, k or v projections still have output_tensors: "
            "vLLM and SGLang refuse to make such layers (ckpt-patch apply --recipe "
            "kv-cache-model-dtype turns off the rest)",
            tuple(Location(item.file, item.pointer, item.line) for item in left),
        )


def _disagreement(subject: Subject, decided_by: Place | None) -> Iterator[Finding]:
    """KV006: the files of one checkpoint say different things about the same cache."""
    stated = [item for item in subject.declarations if item.producer == "modelopt"]
    meanings: dict[str, set[str]] = {}
    for item in stated:
        meanings.setdefault(item.file, set()).add(item.meaning)
    if "hf_quant_config.json" in meanings and _has_quantization_config(subject):
        meanings.setdefault("config.json", {"none"})
    effective = {file: tuple(sorted(said - {"none"})) for file, said in meanings.items()}
    if len(set(effective.values())) < 2:  # noqa: PLR2004 - two files that differ
        return
    said = "; ".join(f"{file} says {_said(words)}" for file, words in sorted(effective.items()))
    if decided_by is None:
        winner = "neither decides on this release"
    else:
        winner = f"{decided_by.file} decides here, and engines differ in which file wins"
    locations = tuple(Location(item.file, item.pointer, item.line) for item in stated)
    yield Finding("KV006", "warning", f"the files disagree: {said}; {winner}", locations)


def _has_quantization_config(subject: Subject) -> bool:
    config = subject.values.get("config.json")
    return isinstance(config, dict) and isinstance(config.get("quantization_config"), dict)


def _said(meanings: tuple[str, ...]) -> str:
    return " and ".join(meanings) or "no KV quantization"


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, each finding once."""
    rank = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(dict.fromkeys(found), key=lambda item: (rank[item.severity], item.id)))


def of_scales(declaration: Declaration, scales: ScaleCounts) -> Iterator[Finding]:
    """KV007: static quantization is declared, but its scale tensors are absent or unpaired."""
    location = (Location(declaration.file, declaration.pointer, declaration.line),)
    if scales.source == "none":
        return
    if scales.unpaired:
        yield Finding(
            "KV007",
            "warning",
            f"{len(scales.unpaired)} attention layers have a scale for only one of k and v, "
            f"for example {scales.unpaired[0]}",
            location,
        )
    elif not scales.k_scales and not scales.kv_scales:
        yield Finding(
            "KV007",
            "info",
            "no k/v scale tensors in the weights: engines use scale 1.0, which is what ModelOpt's "
            "*_cast exports mean and a loss of accuracy for calibrated ones",
            location,
        )
