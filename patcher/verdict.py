"""The answer of ``check``: outcome, findings, cures, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from patcher.engines import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patcher.engines.base import BackendAnswer, Place, Resolution
    from patcher.headers import ScaleCounts
    from patcher.metadata.declarations import Declaration
    from patcher.metadata.model import Model
    from patcher.target import Target

Outcome = Literal["compatible", "conflict", "unknown"]
Severity = Literal["error", "warning", "info"]
#: How findings begin that are about kernels: no check at start-up shows what they say.
FAILING = "expected to fail"


class Location(Struct, frozen=True):
    """Where a finding is seen: 1-based ``line`` of the key at ``pointer`` in ``file``."""

    file: str
    pointer: str
    line: int

    def to_dict(self) -> dict[str, Any]:
        """As in ``check --json``."""
        return {"file": self.file, "pointer": self.pointer, "line": self.line}


class Finding(Struct, frozen=True):
    """One finding; ``ckpt-patch explain ID`` prints the page of its id.

    ``error`` means that the engine will not start. ``detail`` is the engine's own text.
    """

    id: str
    severity: Severity
    message: str
    locations: tuple[Location, ...] = ()
    detail: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in ``check --json``."""
        return {
            "id": self.id,
            "severity": self.severity,
            "message": self.message,
            "locations": [place.to_dict() for place in self.locations],
            "detail": self.detail,
        }


class Cure(Struct, frozen=True):
    """One way out that was tried against the same release's answers and works.

    ``argv`` for a flag, ``engine`` and ``version`` (PEP 440 specifier) for an upgrade, ``recipe``
    and ``edits`` for a patch. ``effect`` says in a few words what it costs or keeps.
    """

    kind: Literal["flag", "upgrade", "patch"]
    effect: str
    argv: tuple[str, ...] = ()
    engine: str | None = None
    version: str | None = None
    recipe: str | None = None
    edits: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As in ``check --json``: only the members that belong to the kind."""
        members: dict[str, dict[str, Any]] = {
            "flag": {"argv": list(self.argv)},
            "upgrade": {"engine": self.engine, "version": self.version},
            "patch": {"recipe": self.recipe, "edits": self.edits},
        }
        return {"kind": self.kind, **members[self.kind], "effect": self.effect}


class Cost(Struct, frozen=True):
    """KV-cache bytes per token and rank-free: all layers, all KV heads.

    ``before`` with the resolved dtype, ``after`` with KV quantization off; ``None`` where the model
    or the dtype is not known well enough.
    """

    before: float | None
    after: float | None

    def to_dict(self) -> dict[str, Any]:
        """As in ``check --json``."""
        return {"kv_bytes_per_token": {"before": self.before, "after": self.after}}


class ReleaseAnswer(Struct, frozen=True):
    """What one release does, for the portable verdict.

    ``state`` is ``ignores`` (starts, does not read the declaration), ``runs`` (starts with what is
    declared), ``fails`` (starts, and a kernel is expected to fail at run time), ``refuses`` (reads
    the declaration and does not start), ``no-backend`` (does not start whatever the files say) or
    ``unknown``. ``finding`` is the id of why it does not start, or fails.
    """

    engine: str
    release: str
    state: Literal["ignores", "runs", "fails", "refuses", "no-backend", "unknown"]
    kv_cache_dtype: str | None
    finding: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in ``check --json``."""
        return {
            "engine": self.engine,
            "version": self.release,
            "state": self.state,
            "kv_cache_dtype": self.kv_cache_dtype,
            "finding": self.finding,
        }


class Judgement(Struct, frozen=True):
    """What the engine's facts say about one checkpoint on one target.

    Attributes:
        kv_cache_dtype: what the cache is asked to hold; ``None`` when nothing was resolved.
        facts_version: the release whose facts answered; ``None`` for the portable verdict.
        resolution: ``None`` for the portable verdict.
        evidence: counts of scale tensors, where a statement made them matter.
        notes: sentences that qualify the verdict, such as a stand-in release.
        portable: one entry per known release when none was named, else empty.
    """

    outcome: Outcome
    findings: tuple[Finding, ...]
    cures: tuple[Cure, ...]
    kv_cache_dtype: str | None
    facts_version: str | None = None
    resolution: Resolution | None = None
    backends: tuple[BackendAnswer, ...] = ()
    selected: str | None = None
    evidence: ScaleCounts | None = None
    notes: tuple[str, ...] = ()
    portable: tuple[ReleaseAnswer, ...] = ()


class Verdict(Struct, frozen=True):
    """What this checkpoint will do on this target: a judgement and what it is about."""

    path: str
    origin: Mapping[str, Any]
    model: Model
    target: Target
    declarations: tuple[Declaration, ...]
    cost: Cost
    judgement: Judgement

    @property
    def outcome(self) -> Outcome:
        """``compatible``, ``conflict`` or ``unknown``."""
        return self.judgement.outcome

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, errors first."""
        return self.judgement.findings

    @property
    def cures(self) -> tuple[Cure, ...]:
        """What helps, least harm first; empty when nothing is wrong."""
        return self.judgement.cures

    @property
    def resolution(self) -> Resolution | None:
        """Which KV-cache dtype the release ends up with; ``None`` without a release."""
        return self.judgement.resolution

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep the engine from starting."""
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def is_failing(self) -> bool:
        """Whether it starts and a kernel is expected to fail."""
        return any(finding.message.startswith(FAILING) for finding in self.findings)

    @property
    def overruled(self) -> str | None:
        """A sentence where nothing in the files decides the KV-cache dtype, but the engine does."""
        resolution, target = self.resolution, self.target
        if resolution is None or resolution.decided_by != "model hook":
            return None
        return (
            f"nothing in the files can help, because {NAMES.get(target.engine or '')} sets "
            f"{resolution.kv_cache_dtype} for this model on {target.gpu.name} by itself"
        )

    def was_read(self, declaration: Declaration) -> bool:
        """Whether the judged release looks at this statement."""
        return self.resolution is not None and _place(declaration) in {
            (place.file, place.pointer) for place in self._places()
        }

    def _places(self) -> tuple[Place, ...]:
        assert self.resolution is not None
        decided = self.resolution.decided_by
        return self.resolution.read + (() if isinstance(decided, str) else (decided,))

    def to_dict(self) -> dict[str, Any]:
        """The document of ``check --json`` (schema ``ckpt-patch/check@1``)."""
        return {
            "schema": "ckpt-patch/check@1",
            "checkpoint": {
                "path": self.path,
                **self.origin,
                "model_type": self.model.model_type,
                "attention": self.model.attention,
                "head_size": self.model.head_size,
                "layers": self.model.layers,
                "attention_layers": self.model.attention_layers,
                "dtype": self.model.dtype,
            },
            "target": {**self.target.to_dict(), "facts_version": self.judgement.facts_version},
            "declarations": [
                item.to_dict() | {"read": self.was_read(item)} for item in self.declarations
            ],
            "resolved": self._resolved(),
            "backends": [
                {
                    "name": backend.name,
                    "accepts": backend.accepts,
                    "stage": backend.stage,
                    "reasons": list(backend.reasons),
                }
                for backend in self.judgement.backends
            ],
            "selected": self.judgement.selected,
            "outcome": self.outcome,
            "findings": [finding.to_dict() for finding in self.findings],
            "cures": [cure.to_dict() for cure in self.cures],
            "cost": self.cost.to_dict(),
            "evidence": self.judgement.evidence.to_dict()
            if self.judgement.evidence
            else {"weight_bytes_read": 0},
            "portable": [release.to_dict() for release in self.judgement.portable],
            "notes": list(self.judgement.notes),
        }

    def _resolved(self) -> dict[str, Any] | None:
        if self.resolution is None:
            return None
        decided = self.resolution.decided_by
        return {
            "kv_cache_dtype": self.resolution.kv_cache_dtype,
            "decided_by": decided
            if isinstance(decided, str)
            else {"file": decided.file, "pointer": decided.pointer},
        }


def _place(declaration: Declaration) -> tuple[str, str]:
    return declaration.file, declaration.pointer
