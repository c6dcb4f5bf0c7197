"""Facts about the user's own builds: found, asked within limits, kept, and believed only if whole.

The tests that run a release's code need its files in the cache of the extraction
(``python -m patcher.engines.extract vllm 0.16.0`` fills it) and are skipped without.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patcher.engines import answer, differences, examples, facts, nearest, probing
from patcher.engines.base import Launch
from patcher.engines.extract.child import said
from patcher.engines.facts import probed
from patcher.errors import CkptPatchError, UnreadableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from running import Run

_CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
KIMI = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
RELEASE = "0.16.0"
FILES = Path(_CACHE, "ckpt-patch", "sources", f"vllm-{RELEASE}")
DEV = "0.16.1.dev3+gabc"
TRITON_MLA = "vllm/v1/attention/backends/mla/triton_mla.py"
ASKED = Launch("sm120", "12.0", kv_cache_dtype="fp8_e4m3")

needs_python = pytest.mark.skipif(
    sys.version_info < probing.PYTHON, reason="facts are made with Python 3.11 or later"
)
needs_release = pytest.mark.skipif(
    not (FILES / "MEMBERS.json").is_file(), reason=f"{FILES} is not there"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    facts.load.cache_clear()
    yield
    facts.load.cache_clear()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment without any package."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


def site_packages(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3*/site-packages"))


def install(python: Path, version: str, files: Path | None = None) -> Path:
    """Put vLLM into an environment: unpacked from the cache, or only its name."""
    folder = site_packages(python)
    if files is None:
        (folder / "vllm").mkdir()
    else:
        shutil.copytree(files / "vllm", folder / "vllm")
        members = json.loads((files / "MEMBERS.json").read_text(encoding="utf-8"))["members"]
        for name in members:
            if name.endswith(".so"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).touch()
    (folder / "vllm" / "__init__.py").write_text("raise SystemExit('vllm was imported')\n")
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def packaged(release: str = RELEASE) -> dict[str, Any]:
    """The packaged facts, as a probe would find them."""
    known: dict[str, Any] = json.loads(json.dumps(differences.loaded("vllm", release)))
    return known


def keep(version: str, parts: dict[str, Any] | None = None) -> Path:
    date = "2026-11-30T12:00:00+00:00"
    return probed.save("vllm", version, tree="/a", date=date, parts=parts or packaged())


def found(version: str, tree: Path) -> probing.Installed:
    return probing.Installed("vllm", version, str(tree))


def selected(version: str) -> tuple[str | None, str | None]:
    """Backend and first refusal of a Kimi-K2 with --kv-cache-dtype fp8_e4m3 on sm120."""
    documents, model = examples.checkpoint("mla-dense-576")
    result = answer("vllm", nearest("vllm", version)[0], documents, model, ASKED)
    assert result.unknown is None
    return result.selected, result.refusals[0].finding if result.refusals else None


# What is installed


def test_an_installed_engine_is_found_and_not_imported(python: Path) -> None:
    folder = install(python, "0.16.1.DEV3+GABC")
    (engine,) = probing.installed(str(python))
    assert (engine.engine, engine.version) == ("vllm", DEV)
    assert os.path.realpath(engine.tree) == os.path.realpath(folder)


def test_an_editable_installation_is_found(python: Path, tmp_path: Path) -> None:
    folder = install(python, DEV)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.move(folder / "vllm", checkout / "vllm")
    (folder / "editable.pth").write_text(f"{checkout}\n")
    (engine,) = probing.installed(str(python))
    assert os.path.realpath(engine.tree) == os.path.realpath(checkout)


def test_the_current_directory_is_not_searched(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match="has no vLLM or SGLang installed") as caught:
        probing.installed(str(python))
    assert "engines probe --python" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["/nowhere/python", "/bin/true", "/bin/false", "/etc"])
def test_what_is_no_python_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} does not answer like a Python"):
        probing.installed(name)


# Asking


@needs_python
@needs_release
def test_a_build_with_one_edited_list_changes_the_verdict(python: Path, run: Run) -> None:
    assert selected(DEV) == (None, "KV001")
    folder = install(python, DEV, FILES)
    edit(folder / TRITON_MLA, '"bfloat16",\n    ]', '"bfloat16", "fp8", "fp8_e4m3",\n    ]')
    done = run("engines", "probe", "--python", str(python), "--json")
    assert (done.code, run("engines", "list", "-q").out.count(f"vllm=={DEV}\n")) == (0, 1)
    (row,) = json.loads(done.out)["probed"]
    assert (row["known_as"], row["nearest"]) == (DEV, RELEASE)
    assert row["changed"] == ["selection.constructors", "selection.backends"]
    # The selector accepts now; the implementation, which was not edited, still refuses.
    assert selected(DEV) == (None, "KV002")
    assert selected(RELEASE) == (None, "KV001")


@needs_python
@needs_release
def test_a_tree_with_a_renamed_function_says_what_is_missing(python: Path, run: Run) -> None:
    folder = install(python, DEV, FILES)
    edit(folder / "vllm/platforms/cuda.py", "def _get_backend_priorities", "def _backend_order")
    done = run("engines", "probe", "--python", str(python))
    assert done.code == 4
    assert "vllm.platforms.cuda:_get_backend_priorities is not in this release" in done.err
    hint = f"facts answers instead: ckpt-patch check --engine vllm=={RELEASE}"
    assert hint in done.err
    assert not probed.exists("vllm", DEV)


@needs_python
def test_an_empty_tree_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"cannot be probed: .*vllm\.") as caught:
        probing.ask(found(DEV, tmp_path))
    assert caught.value.path == str(tmp_path)


@needs_python
def test_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probing.SECONDS, "vllm", 0.01)
    with pytest.raises(UnreadableError, match=r"did not answer within 0\.01 s"):
        probing.ask(found(DEV, tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is not enforced everywhere")
def test_memory_is_limited() -> None:
    code = "from patcher.engines.extract.child import limit_memory as l; l(); bytearray(3 << 30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MemoryError" in done.stderr
    assert "2 GB" in said(MemoryError(), "vllm")


def test_a_failure_deep_in_the_engine_names_its_definition() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def support():\n    return {}['fp8']", "vllm/attention/a.py", "exec"), scope)
    with pytest.raises(KeyError) as caught:
        scope["support"]()
    assert said(caught.value, "vllm") == "KeyError: 'fp8' (in vllm/attention/a.py:2 support)"


# What is made of the answers


def test_a_release_as_published_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ask", lambda _: packaged())
    result = probing.probe(found(RELEASE, tmp_path))
    assert (result.known_as, result.path, result.changed) == (None, None, ())
    assert probed.versions("vllm") == ()


def test_a_changed_release_gets_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    parts = packaged()
    parts["selection"]["backends"]["TRITON_MLA"]["supports_kv_cache_dtype"][1] = True
    monkeypatch.setattr(probing, "ask", lambda _: parts)
    result = probing.probe(found(RELEASE, tmp_path))
    assert (result.known_as, result.changed) == (f"{RELEASE}+probed", ("selection.backends",))
    assert nearest("vllm", RELEASE) == (RELEASE, None)
    words = ("check", str(KIMI), "--target", "sm120", "-q", "--engine")
    assert run(*words, f"vllm=={RELEASE}+probed").out == "compatible\n"
    assert run(*words, f"vllm=={RELEASE}").out == "conflict KV001\n"


def test_a_resolver_that_is_gone_is_not_taken_for_one_that_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = packaged()
    parts["resolution"]["resolver"] = None
    monkeypatch.setattr(probing, "ask", lambda _: parts)
    words = rf"found nothing for resolution\.resolver, .* at vllm\.utils\.\w+:\d+ \({RELEASE}\)"
    with pytest.raises(UnreadableError, match=words):
        probing.probe(found(DEV, tmp_path))
    assert probed.versions("vllm") == ()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_release_has_lost_a_block(engine: str) -> None:
    known = [differences.loaded(engine, release) for release in facts.releases(engine)]
    for before, after in itertools.pairwise(known):
        assert differences.lost(before, after) is None


# What is kept, and who answers for which version


def test_what_is_kept_comes_back() -> None:
    path = keep(DEV)
    assert path == probed.path("vllm", DEV)
    kept = probed.load("vllm", DEV)
    assert kept["parts"] == packaged()
    assert (kept["version"], kept["date"][:10], len(kept["tree_sha256"])) == (DEV, "2026-11-30", 64)


@pytest.mark.parametrize(
    ("version", "kept", "release", "words"),
    [
        (DEV, DEV, DEV, "`ckpt-patch engines probe` found on 2026-11-30"),
        ("0.16.1.DEV3+GABC", DEV, DEV, "engines probe"),
        ("0.16.0+cu128", "0.16.0+cu128", "0.16.0+cu128", "engines probe"),
        ("0.16.0+cu128", DEV, "0.16.0", "the release it is built from"),
        ("0.16.1.dev4", DEV, "0.16.0", "the nearest older release"),
        ("0.16.0", "0.16.0", "0.16.0", None),
        ("0.9.1", "0.9.1", "0.9.1", "engines probe"),
    ],
)
def test_a_probe_answers_for_exactly_its_version(
    version: str, kept: str, release: str, words: str | None
) -> None:
    keep(kept)
    chosen, note = nearest("vllm", version)
    assert chosen == release
    assert (note is None) if words is None else (words in str(note))


def test_the_portable_verdict_asks_published_releases_only() -> None:
    keep(DEV)
    assert DEV not in facts.releases("vllm")


def test_versions_are_in_order_and_other_files_are_not_counted() -> None:
    for version in ("0.17.0", "0.16.1.dev10", DEV):
        keep(version)
    folder = probed.path("vllm", DEV).parent
    (folder / "notes.json").write_text("{}")
    (folder / "0.1.0.txt").touch()
    assert probed.versions("vllm") == (DEV, "0.16.1.dev10", "0.17.0")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda text: text[: len(text) // 2],
    "one byte less": lambda text: text[:-3],
    "zeros": lambda text: bytes(len(text)),
    "not an object": lambda _: b"[]",
    "deep": lambda _: b"[" * 200_000,
    "not UTF-8": lambda text: text[:100] + b"\xff" + text[100:],
    "an edited fact": lambda text: text.replace(b"TRITON_MLA", b"TRITON_MLX", 1),
    "another version": lambda text: text.replace(DEV.encode(), b"0.16.2", 1),
    "another tool": lambda text: text.replace(b'"made_by": "', b'"made_by": "9', 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_not_believed(damage: str, run: Run) -> None:
    path = keep(DEV)
    text = path.read_bytes()
    path.write_bytes(DAMAGES[damage](text))
    assert path.read_bytes() != text
    with pytest.raises(CkptPatchError) as caught:
        nearest("vllm", DEV)
    assert isinstance(caught.value, UnreadableError)
    assert (caught.value.path, caught.value.hint) == (str(path), "ckpt-patch engines probe")
    listed = json.loads(run("engines", "--json").out)["facts"]
    assert {"engine": "vllm", "release": DEV, "how": "damaged", "date": None} in listed
