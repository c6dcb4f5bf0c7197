"""The states of a checkpoint: what brought it there, the exit code, and the next command."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import COMMIT, make_cache, make_checkpoint, shard
from hub_server import Hub, Repository, running
from hubs import measured
from running import Done, Run, snapshot

from patcher.origin import has_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPO = "acme/Kimi"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
METADATA = {name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")}
SHARD = "model-00001-of-00001.safetensors"
FILES = {**METADATA, SHARD: shard("w")}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
NEWER = "89abcdef0123456789abcdef0123456789abcdef"


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def genuine_cache(cache: Path, files: Mapping[str, bytes], commit: str = COMMIT) -> Path:
    """A Hub cache whose blobs have the names that the client gives them."""
    folder = cache / f"models--{REPO.replace('/', '--')}"
    make_checkpoint(folder, {"refs/main": commit.encode()})
    snapshots = folder / "snapshots" / commit
    snapshots.mkdir(parents=True)
    for name, data in files.items():
        make_checkpoint(folder / "blobs", {git_sha1(data): data})
        (snapshots / name).symlink_to(f"../../blobs/{git_sha1(data)}")
    return snapshots


def without(data: bytes, *keys: str) -> bytes:
    document = json.loads(data)
    node = document
    for key in keys[:-1]:
        node = node[key]
    del node[keys[-1]]
    return json.dumps(document, indent=4).encode()


@pytest.fixture
def kimi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_checkpoint(tmp_path / "Kimi", FILES)


@pytest.fixture
def seen(run: Run, tmp_path: Path) -> Any:
    """Run ``status --json`` and in words; it must not change anything that is there."""

    def call(path: Path | str) -> dict[str, Any]:
        before = snapshot(tmp_path)
        done = run("status", "--json", str(path))
        words = run("status", str(path))
        assert snapshot(tmp_path) == before
        document: dict[str, Any] = json.loads(done.out)
        assert done.code == words.code
        assert document["commands"]
        for command in document["commands"]:
            assert command in words.out
        return document | {"code": done.code, "words": words.out}

    return call


def paste(run: Run, command: str) -> Done:
    program, *words = shlex.split(command)
    assert program == "ckpt-patch"
    return run(*words)


def test_pristine_patched_and_undone(kimi: Path, seen: Any, run: Run) -> None:
    pristine = seen(kimi)
    assert (pristine["state"], pristine["code"]) == ("pristine", 0)
    assert pristine["commands"] == ["ckpt-patch check Kimi"]
    run("apply", *TARGET, str(kimi))
    patched = seen(kimi)
    assert (patched["state"], patched["code"]) == ("patched", 0)
    assert patched["words"].splitlines()[0] == f"{kimi}: patched, and intact"
    assert paste(run, patched["commands"][0]).code == 0
    assert seen(kimi)["state"] == "pristine"


def test_edited_after_apply(kimi: Path, seen: Any, run: Run) -> None:
    run("apply", *TARGET, str(kimi))
    config = kimi / "config.json"
    config.write_bytes(config.read_bytes().replace(b'"kimi_k25"', b'"kimi_k26"'))
    edited = seen(kimi)
    assert (edited["state"], edited["code"]) == ("edited", 0)
    assert [f["state"] for f in edited["files"]] == ["edited", "after"]
    assert paste(run, edited["commands"][0]).code == 0
    assert b"kimi_k26" in config.read_bytes()


def test_reverted_outside(kimi: Path, seen: Any, run: Run) -> None:
    run("apply", *TARGET, "--backend", "TRITON_MLA", str(kimi))
    make_checkpoint(kimi, METADATA)
    reverted = seen(kimi)
    assert (reverted["state"], reverted["code"]) == ("reverted", 0)
    again, close = reverted["commands"]
    assert again == (
        "ckpt-patch apply --target sm120 --engine vllm==0.16.0 --backend TRITON_MLA Kimi"
    )
    assert close == "ckpt-patch undo Kimi"
    assert paste(run, again).code == 0
    assert seen(kimi)["state"] == "patched"


def test_interrupted_and_damaged(kimi: Path, seen: Any, run: Run) -> None:
    run("apply", *TARGET, str(kimi))
    journal = kimi / ".ckpt-patch"
    os.rename(journal / "0001.applied", journal / "0001.pending")
    interrupted = seen(kimi)
    assert (interrupted["state"], interrupted["code"]) == ("interrupted", 0)
    assert paste(run, interrupted["commands"][0]).code == 0
    assert seen(kimi)["state"] == "patched"
    record = journal / "0001.applied/record.json"
    record.chmod(0o644)
    record.write_bytes(record.read_bytes().replace(b"sm120", b"sm121"))
    damaged = seen(kimi)
    assert (damaged["state"], damaged["code"]) == ("damaged", 4)
    assert paste(run, damaged["commands"][0]).code == 0


def test_a_mirror_is_called_one(kimi: Path, seen: Any, run: Run) -> None:
    run("mirror", *TARGET, str(kimi), "mirror")
    there = seen("mirror")
    assert (there["state"], there["code"]) == ("mirror", 0)
    assert paste(run, there["commands"][0]).code == 0


def test_several_checkpoints_give_the_gravest_code(kimi: Path, run: Run) -> None:
    other = make_checkpoint(kimi.parent / "other", FILES)
    run("apply", *TARGET, str(other))
    make_checkpoint(other, METADATA)
    done = run("status", "-q", str(kimi), str(other))
    assert (done.code, done.out) == (0, f"{kimi}: pristine\n{other}: reverted\n")
    assert run("status", "-q", "--exit-code", str(kimi), str(other)).code == 1
    assert run("status", "-q", "--exit-code", str(kimi)).code == 0
    assert run("status", "-q", str(kimi), "nowhere").code == 4


# A new revision in a Hub cache


def test_a_new_revision_came_unpatched(tmp_path: Path, seen: Any, run: Run) -> None:
    old = genuine_cache(tmp_path / "hub", METADATA)
    assert seen(old)["state"] == "pristine"
    run("apply", *TARGET, str(old))
    assert seen(old)["state"] == "patched"
    new = genuine_cache(tmp_path / "hub", METADATA, NEWER)
    left = seen(old)
    assert (left["state"], left["code"]) == ("new-revision", 0)
    assert left["problem"] == f"refs/main names revision {NEWER[:12]} now, which came unpatched"
    for arrived in (seen(new), seen(new.parent.parent)):
        assert (arrived["state"], arrived["code"]) == ("new-revision", 0)
        assert f"revision {COMMIT[:12]} is patched, and this newer one is not" in arrived["words"]
        assert arrived["commands"] == left["commands"]
    assert left["commands"] == [f"ckpt-patch apply --target sm120 --engine vllm==0.16.0 {new}"]
    assert paste(run, left["commands"][0]).code == 0
    assert [seen(each)["state"] for each in (old, new)] == ["patched", "patched"]
    run("undo", str(new))
    assert [seen(each)["state"] for each in (old, new)] == ["patched", "pristine"]


def test_without_refs_main_there_is_no_newer_revision(tmp_path: Path, seen: Any, run: Run) -> None:
    old = genuine_cache(tmp_path / "hub", METADATA)
    run("apply", *TARGET, str(old))
    for text in ("", "../../../etc", NEWER):
        (old.parent.parent / "refs/main").write_text(text)
        assert seen(old)["state"] == "patched"


# Changed by something else, without a record


def test_a_replaced_link_in_a_cache(tmp_path: Path, seen: Any) -> None:
    root = genuine_cache(tmp_path / "hub", METADATA)
    (root / "config.json").unlink()
    (root / "config.json").write_bytes(METADATA["config.json"].replace(b"false", b"true"))
    found = seen(root)
    assert (found["state"], found["code"]) == ("foreign", 0)
    assert found["problem"] == "config.json is not the file that was downloaded"
    assert found["commands"] == [
        f"rm {root / 'config.json'} && hf download {REPO} --revision {COMMIT} "
        f"--cache-dir {tmp_path / 'hub'} config.json"
    ]


def test_a_blob_that_was_written_through_its_link(tmp_path: Path, seen: Any) -> None:
    root = genuine_cache(tmp_path / "hub", METADATA)
    with (root / "config.json").open("ab") as file:
        file.write(b"\n")
    found = seen(root)
    assert found["state"] == "foreign"
    assert found["commands"][0].endswith("config.json --force-download")


def test_a_cache_without_links_says_nothing(tmp_path: Path, seen: Any) -> None:
    root = make_cache(tmp_path / "hub", REPO, METADATA, links=False)
    assert seen(root)["state"] == "pristine"


def test_a_key_deleted_from_the_sidecar(kimi: Path, seen: Any, run: Run) -> None:
    path = kimi / "hf_quant_config.json"
    path.write_bytes(without(path.read_bytes(), "quantization", "kv_cache_quant_algo"))
    found = seen(kimi)
    assert (found["state"], found["code"]) == ("foreign", 0)
    assert "hf_quant_config.json lacks /quantization/kv_cache_quant_algo (KV005" in found["problem"]
    assert found["commands"] == ["ckpt-patch apply --recipe kv-cache-repair Kimi"]
    assert paste(run, f"{found['commands'][0]} {' '.join(TARGET)}").code == 0
    assert json.loads(path.read_bytes())["quantization"]["kv_cache_quant_algo"] is None


def test_a_key_deleted_from_config(kimi: Path, seen: Any, run: Run) -> None:
    path = kimi / "config.json"
    path.write_bytes(without(path.read_bytes(), "quantization_config", "kv_cache_scheme"))
    found = seen(kimi)
    assert found["state"] == "foreign"
    assert "config.json lacks /quantization_config/kv_cache_scheme (KV005" in found["problem"]
    assert found["commands"] == ["ckpt-patch apply --recipe kv-cache-model-dtype Kimi"]
    assert paste(run, f"{found['commands'][0]} {' '.join(TARGET)}").code == 0
    sidecar = json.loads((kimi / "hf_quant_config.json").read_bytes())
    assert sidecar["quantization"]["kv_cache_quant_algo"] is None


def test_two_exports_that_differ_are_no_deleted_key(kimi: Path, seen: Any) -> None:
    """As published: an older inline block without a statement beside a newer sidecar with one."""
    path = kimi / "config.json"
    path.write_bytes(
        without(path.read_bytes(), "quantization_config", "kv_cache_scheme").replace(
            b'"0.41.0"', b'"0.37.0"'
        )
    )
    assert seen(kimi)["state"] == "pristine"


def test_what_was_published_so_is_not_foreign(tmp_path: Path, seen: Any) -> None:
    broken = without(METADATA["hf_quant_config.json"], "quantization", "kv_cache_quant_algo")
    root = genuine_cache(tmp_path / "hub", {**METADATA, "hf_quant_config.json": broken})
    assert seen(root)["state"] == "pristine"


def test_real_checkpoints_are_pristine(shared: Path, run: Run) -> None:
    roots = sorted(path.parent for path in (shared / "corpus").rglob("config.json"))
    assert len(roots) > 50
    states = {str(root): run("status", "-q", str(root)).out for root in roots}
    assert {root: out for root, out in states.items() if out != "pristine\n"} == {}


@pytest.mark.parametrize(
    ("digest", "fits"),
    [
        ("95d09f2b10159347eece71399a7e2e907ea3df4f", True),  # git hash-object
        ("b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9", True),
        ("0" * 40, False),
        (None, False),
    ],
)
def test_the_hubs_two_hashes(digest: str | None, *, fits: bool) -> None:
    assert has_digest(b"hello world", digest) is fits


# hf download --local-dir, with the real client


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    from huggingface_hub import utils

    with running() as hub:
        yield hub
    close: Any = getattr(utils, "close_session", lambda: None)
    close()


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    from huggingface_hub import constants, file_download

    server.reset()
    server.repositories[REPO] = Repository(dict(METADATA))
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    for module in (constants, file_download):
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return server


def download(root: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, local_dir=root)


def age(root: Path, seconds: float) -> None:
    """Let the download be older than it is: the files, and the times that its notes hold."""
    for name in METADATA:
        note = root / ".cache/huggingface/download" / f"{name}.metadata"
        commit, etag, when, *_ = note.read_text().split("\n")
        note.write_text(f"{commit}\n{etag}\n{float(when) - seconds}\n")
        status = (root / name).stat()
        os.utime(root / name, (status.st_atime, status.st_mtime - seconds))


@pytest.mark.usefixtures("hub")
def test_the_next_download_puts_the_original_back(tmp_path: Path, seen: Any, run: Run) -> None:
    root = tmp_path / "Kimi"
    download(root)
    age(root, 60)
    assert seen(root)["state"] == "pristine"
    done = run("apply", *TARGET, str(root))
    assert "the next `hf download --local-dir` into this folder puts the originals back" in done.err
    assert "--keep-mtime" in done.err
    download(root)
    assert (root / "config.json").read_bytes() == METADATA["config.json"]
    assert (seen(root)["state"], seen(root)["code"]) == ("reverted", 0)
    assert paste(run, seen(root)["commands"][0]).code == 0
    assert seen(root)["state"] == "patched"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("seconds", "kept"), [(0.9, True), (1.1, False)])
def test_a_patch_within_a_second_of_the_download_is_kept(
    tmp_path: Path, seen: Any, run: Run, seconds: float, *, kept: bool
) -> None:
    """The library takes what is at most a second newer than its note for what it wrote itself."""
    root = tmp_path / "Kimi"
    download(root)
    run("apply", *TARGET, str(root))
    patched = (root / "config.json").read_bytes()
    for name in METADATA:
        note = root / ".cache/huggingface/download" / f"{name}.metadata"
        written = float(note.read_text().splitlines()[2]) + seconds
        os.utime(root / name, (written, written))
    download(root)
    assert ((root / "config.json").read_bytes() == patched) is kept
    assert seen(root)["state"] == ("patched" if kept else "reverted")


def test_keep_mtime_survives_until_the_content_is_new(
    hub: Hub, tmp_path: Path, seen: Any, run: Run
) -> None:
    root = tmp_path / "Kimi"
    download(root)
    age(root, 60)
    time = (root / "config.json").stat().st_mtime_ns
    done = run("apply", "--keep-mtime", *TARGET, str(root))
    assert "keep their old times" in done.err
    assert "rsync" in done.err
    patched = (root / "config.json").read_bytes()
    assert (root / "config.json").stat().st_mtime_ns == time
    for commit in ("c" * 40, "d" * 40):
        hub.repositories[REPO].commit = commit
        download(root)
        assert (root / "config.json").read_bytes() == patched
        assert seen(root)["state"] == "patched"
    hub.repositories[REPO].files["config.json"] += b"\n"
    hub.repositories[REPO].commit = "e" * 40
    download(root)
    arrived = seen(root)
    assert (arrived["state"], arrived["code"]) == ("new-revision", 0)
    assert arrived["problem"] == "config.json came with revision eeeeeeeeeeee, after the patch"
    assert paste(run, arrived["commands"][0]).code == 0
    assert seen(root)["state"] == "patched"


def offline(_root: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from huggingface_hub import constants

    patch.setattr(constants, "HF_HUB_OFFLINE", True)
    return {}


def without_notes(root: Path, _patch: pytest.MonkeyPatch) -> dict[str, Any]:
    shutil.rmtree(root / ".cache/huggingface")
    return {}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (lambda *_: {}, False),
        (lambda *_: {"force_download": True}, False),
        (without_notes, False),
        pytest.param(offline, True, marks=measured),
        (lambda *_: {"ignore_patterns": list(METADATA)}, True),
    ],
    ids=["again", "forced", "without its notes", "offline", "ignored"],
)
@pytest.mark.parametrize("keep", [False, True], ids=["new times", "--keep-mtime"])
def test_what_a_download_does_to_a_patch(  # noqa: PLR0913 - one row of what was measured
    tmp_path: Path, seen: Any, run: Run, monkeypatch: pytest.MonkeyPatch, how: Any, *,
    kept: bool, keep: bool,
) -> None:  # fmt: skip
    """And what ``status`` says of it then; where it is lost, the command that patches again."""
    from huggingface_hub import snapshot_download

    root = tmp_path / "Kimi"
    download(root)
    age(root, 60)
    told = run("apply", *TARGET, *(["--keep-mtime"] if keep else []), str(root)).err
    words = "or it is forced" if keep else "puts the originals back"
    assert words in told
    options = how(root, monkeypatch)
    snapshot_download(REPO, local_dir=root, **options)
    stays = kept or (keep and not options and how is not without_notes)
    assert seen(root)["state"] == ("patched" if stays else "reverted")
    if not stays:
        assert paste(run, seen(root)["commands"][0]).code == 0
        assert seen(root)["state"] == "patched"


@pytest.mark.usefixtures("hub")
def test_another_tool_in_a_local_dir(tmp_path: Path, seen: Any) -> None:
    root = tmp_path / "Kimi"
    download(root)
    path = root / "config.json"
    path.write_bytes(without(path.read_bytes(), "quantization_config", "kv_cache_scheme"))
    found = seen(root)
    assert found["state"] == "foreign"
    assert "KV005" in found["problem"]
    assert "config.json is not the file that was downloaded" in found["problem"]
    repair, restore = found["commands"]
    assert repair.startswith("ckpt-patch apply --recipe kv-cache-model-dtype")
    assert restore.startswith("hf download ORG/NAME --local-dir ")


def test_a_hub_id_is_looked_up_in_the_cache(hub: Hub, seen: Any, run: Run) -> None:
    hub.repositories[REPO].files[SHARD] = shard("w")
    assert run("status", REPO).code == 4  # nothing is cached yet
    run("check", *TARGET, REPO)
    asked = len(hub.log)
    assert seen(REPO)["state"] == "pristine"
    assert len(hub.log) == asked


def test_no_shard_is_opened(kimi: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("apply", *TARGET, str(kimi))
    opened: list[str] = []
    real = os.open

    def watched(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(os.fspath(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    assert run("status", str(kimi)).code == 0
    assert opened
    assert not [path for path in opened if path.endswith(".safetensors")]
