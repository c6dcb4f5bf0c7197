"""What a user should know although SGLang starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher.engines import facts as packaged
from patcher.engines.base import Notice, Place
from patcher.engines.sglang import forms, pool
from patcher.engines.sglang.launch import asked_as, construction, server_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Documents, Resolution
    from patcher.metadata.model import Model

_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")
_NESTED = "/quantization"
_UNQUANTIZED = frozenset({"auto", "bfloat16"})
_OFF = frozenset({"", "auto", "none"})
#: Backends that could be taken instead of one that applies stored scales; fa3 has not been run with
#: stored scales and a flag that asks for an unquantized cache, so it is not among them.
_ALTERNATIVES = ("trtllm_mha", "trtllm_mla", "triton", "flashinfer")


class Case(Struct, frozen=True):
    """A launch that starts.

    Attributes:
        kind: of the facts: mla, kimi, mha or dsa.
        backends: those that are constructed, the prefill's first.
        dsa_backends: the kernels of sparse attention for prefill and decode.
        flag: ``--kv-cache-dtype``.
        scales: the class that loads k/v scales, ``None`` when they stay in the files.
        statements: of the quantization block that is used.
        is_deaf: the model's class drops the quantization config before the cache is made.
    """

    release: str
    gpu: str
    kind: str
    model: Model
    backends: tuple[str, ...]
    dsa_backends: tuple[str | None, ...]
    flag: str
    resolution: Resolution
    scales: str | None
    statements: tuple[pool.Statement, ...]
    is_deaf: bool


def notices(
    facts: Mapping[str, Any], given: Mapping[str, str], documents: Documents, case: Case
) -> tuple[Notice, ...]:
    """All of them, the gravest kind first."""
    return (
        *_kernels(case),
        *_scales(facts, documents, case),
        *_hook(documents, case),
        *_ignored(facts, given, documents, case),
        *_slower(case),
        *_read_default(case),
    )


def by_hand_backend(release: str, kind: str, gpu: str) -> tuple[str, ...]:
    """The default backend of the releases that choose it after ServerArgs; read, not run."""
    for entry in _by_hand("defaults"):
        if _holds(entry, release=release, gpu=gpu, kind=kind):
            return (entry["backend"],)
    return ()


def by_hand_unknown(release: str, model: Model, given: Mapping[str, str]) -> str | None:
    """Why the launches that were run say nothing about documents of these forms."""
    for entry in _by_hand("unknown"):
        if (
            entry["architecture"] in model.architectures[:1]
            and all(given.get(name) == value for name, value in entry["forms"].items())
            and _within(release, *entry["releases"])
        ):
            return f"SGLang {release}: {entry['message']}"
    return None


def _by_hand(part: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = packaged.load("sglang", "kernels", "read")[part]
    return found


def _holds(entry: Mapping[str, Any], *, release: str, gpu: str, kind: str) -> bool:
    return (
        gpu in entry.get("gpus", (gpu,))
        and kind in entry.get("kinds", (kind,))
        and _within(release, *entry.get("releases", (None, None)))
    )


def _within(release: str, first: str | None, last: str | None) -> bool:
    from packaging.version import Version  # noqa: PLC0415 - start-up time

    asked = Version(release)
    return (first is None or Version(first) <= asked) and (last is None or asked <= Version(last))


def _matching(part: str, case: Case) -> Iterator[dict[str, Any]]:
    dtype, heads = case.resolution.kv_cache_dtype, case.model.attention_heads
    for entry in _by_hand(part):
        backends = set(entry.get("backends", case.backends)) & set(case.backends)
        prefill = set(entry.get("prefill_backends", case.backends)) & set(case.backends[:1])
        kernels = set(entry.get("dsa_backends", case.dsa_backends)) & set(case.dsa_backends)
        if (
            _holds(entry, release=case.release, gpu=case.gpu, kind=case.kind)
            and backends
            and prefill
            and kernels
            and dtype in entry.get("kv", (dtype,))
            and case.flag in entry.get("flags", (case.flag,))
            and not set(entry.get("without_backends", ())) & set(case.backends)
            and heads != entry.get("heads_other_than")
        ):
            yield entry


def _kernels(case: Case) -> Iterator[Notice]:
    for entry in _matching("kernels", case):
        text = f"expected to fail at run time: {entry['message']}"
        yield Notice(entry["finding"], "warning", f"{text} (read {entry['date']}, not run)")


def _scales(facts: Mapping[str, Any], documents: Documents, case: Case) -> Iterator[Notice]:
    """Stored scales that are loaded although nothing was divided by them."""
    if case.scales is None or not any(_declared(documents, everything=True)):
        return
    for entry in _matching("scales", case):
        text = f"{case.scales} loads stored scales, and {entry['message']}"
        other = next(_unscaled(facts, case), None)
        hint = f" (right with --attention-backend {other})" if other else ""
        yield Notice("KV015", "warning", f"{text}: answers are wrong unless all are 1.0{hint}")


def _unscaled(facts: Mapping[str, Any], case: Case) -> Iterator[str]:
    """The backends that start here and leave stored scales alone; sparse attention has one."""
    for name in _ALTERNATIVES if case.kind != "dsa" else ():
        row = server_args(
            facts,
            cap=case.gpu,
            kind=asked_as(facts, case.kind, case.model),
            attention_backend_flag=name,
            decode_flag=None,
            kv_flag=case.flag,
        )
        other = replace(case, backends=(name,))
        if (
            row is not None
            and row.ok
            and row.stopped is None
            and construction(facts, name, mla=case.kind != "mha", cap=case.gpu) is None
            and not any(part for part in ("scales", "kernels") for _ in _matching(part, other))
        ):
            yield name


def _slower(case: Case) -> Iterator[Notice]:
    for entry in _matching("slower", case):
        yield Notice("KV014", "info", f"{' and '.join(case.backends)} {entry['message']}")


def _read_default(case: Case) -> Iterator[Notice]:
    for backend in by_hand_backend(case.release, case.kind, case.gpu):
        if case.backends[0] == backend:
            text = f"SGLang {case.release} chooses {backend} after the checks that were run"
            yield Notice("KV014", "info", f"{text}; this was read in its source")


def _hook(documents: Documents, case: Case) -> Iterator[Notice]:
    """The engine set another dtype than the one that was asked for."""
    dtype = case.resolution.kv_cache_dtype
    if case.flag != "auto" and case.resolution.decided_by != "flag":
        text = f"--kv-cache-dtype {case.flag} is replaced by {dtype} on this release"
        yield Notice("KV009", "warning", text)
    elif case.resolution.decided_by == "model hook":
        grave = any(_declared(documents))
        text = f"SGLang sets {dtype} for this model on {case.gpu}, whatever the files say"
        yield Notice("KV010", "warning" if grave else "info", text)


def _ignored(
    facts: Mapping[str, Any], given: Mapping[str, str], documents: Documents, case: Case
) -> Iterator[Notice]:
    """Declarations that do not change the cache of this launch."""
    if case.flag != "auto":
        return
    used = {statement.place: statement.feature for statement in case.statements}
    block = forms.block(documents)
    for place in _declared(documents):
        is_read = place in used and pool.is_read(facts, given, used[place])
        if block is not None and not is_read and used.get(place, "sidecar") == "sidecar":
            text = f"not read: {_shown(block)} is where SGLang looks"
            yield Notice("KV013", "info", text, place)
        elif case.is_deaf:
            text = f"{case.model.architectures[0]} drops it before the cache is made"
            yield Notice("KV008", "warning", f"SGLang {case.release} ignores this: {text}", place)
        elif not is_read:
            yield Notice("KV008", "warning", f"SGLang {case.release} does not read this", place)
        elif case.resolution.kv_cache_dtype in _UNQUANTIZED:
            text = "does not make the cache anything but the model's dtype because of this"
            yield Notice("KV008", "warning", f"SGLang {case.release} {text}", place)


def _shown(place: Place) -> str:
    return f"{place.file}:{place.pointer}" if place.pointer else place.file


def _declared(documents: Documents, *, everything: bool = False) -> Iterator[Place]:
    """KV-cache statements at the places SGLang could look; ``everything`` counts null too."""
    parents = [Place(forms.CONFIG, pointer) for pointer in forms.BLOCKS]
    parents += [Place(forms.SIDECAR, pointer) for pointer in (_NESTED, "")]
    for parent in parents:
        holder = forms.at(documents.get(parent.file), parent.pointer)
        for key in _KEYS:
            if isinstance(holder, dict) and key in holder and (everything or _is_on(holder[key])):
                yield Place(parent.file, f"{parent.pointer}/{key}")


def _is_on(value: Any) -> bool:
    return value is not None and not (isinstance(value, str) and value.lower() in _OFF)
