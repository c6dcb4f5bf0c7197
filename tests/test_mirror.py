"""A mirror is there whole or not at all, and its source is never touched."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_cache, make_checkpoint, shard
from msgspec.structs import replace
from running import snapshot

from patcher import fsio, mirroring, planning
from patcher.checkpoint import Checkpoint, Kind, open_checkpoint
from patcher.edits import sha256
from patcher.errors import RefusedError, UnreadableError, UsageError
from patcher.mirroring import manifest as manifests
from patcher.target import Target

if TYPE_CHECKING:
    from patcher.planning import Plan

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
CONFIG = (FIXTURE / "config.json").read_bytes()
QUANT = (FIXTURE / "hf_quant_config.json").read_bytes()
TARGET = Target.parse("sm120", engine="vllm==0.16.0")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FILES = {
    "config.json": CONFIG,
    "hf_quant_config.json": QUANT,
    "generation_config.json": {"eos_token_id": 1},
    ".hidden": b"dot file",
    "modeling.py": b"print()\n",
    "chat_template.jinja": b"{{ messages }}",
    "sub/tokenizer.json": {"a": 1},
    "sub/adapter.bin": b"weights too",
    SHARDS[0]: shard("a"),
    SHARDS[1]: shard("b", "c"),
}
WEIGHTS = {name for name in FILES if name.endswith((".safetensors", ".bin"))}

Hook = Callable[[str, str], "int | OSError | None"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "source", FILES)


def plan_for(checkpoint: Checkpoint, target: Target = TARGET) -> Plan:
    return planning.plan(checkpoint, target)


def mirror(
    source: Path, destination: Path | str, link: str = "auto", target: Target = TARGET
) -> mirroring.Mirrored:
    checkpoint = open_checkpoint(source)
    plan = plan_for(checkpoint, target)
    return mirroring.make(mirroring.prepare(checkpoint, plan, destination, link))


def links(made: mirroring.Mirrored) -> set[str | None]:
    return {file.link for file in made.manifest.files if file.kind == "weights"}


def failing(*errors: tuple[str, int]) -> Hook:
    """Let some calls always fail."""
    numbers = dict(errors)

    def hook(call: str, _file: str) -> None:
        if call in numbers:
            raise OSError(numbers[call], os.strerror(numbers[call]))

    return hook


# --- What it holds


@pytest.mark.parametrize("link", ["auto", "hardlink", "symlink", "copy"])
def test_patched_copied_and_linked(source: Path, tmp_path: Path, link: str) -> None:
    before = snapshot(source)
    made = mirror(source, tmp_path / "mirror", link)
    root = tmp_path / "mirror"
    assert (made.path, made.outcome) == (str(root), "made")
    assert (
        json.loads((root / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
        is None
    )
    assert (
        json.loads((root / "hf_quant_config.json").read_text())["quantization"][
            "kv_cache_quant_algo"
        ]
        is None
    )
    for name in FILES:
        assert (root / name).exists()
        if not name.endswith("config.json") or name.startswith("gen"):
            assert (root / name).read_bytes() == (source / name).read_bytes()
        linked = (root / name).stat().st_ino == (source / name).stat().st_ino
        assert linked == (name in WEIGHTS and bool(links(made) & {"hardlink", "symlink"}))
        assert (root / name).is_symlink() == (name in WEIGHTS and link == "symlink")
    kinds = {file.path: file.kind for file in made.manifest.files}
    assert {name for name, kind in kinds.items() if kind == "weights"} == WEIGHTS
    assert {name for name, kind in kinds.items() if kind == "patched"} == {
        "config.json",
        "hf_quant_config.json",
    }
    assert snapshot(source) == before
    assert sorted(os.listdir(tmp_path)) == ["mirror", "source"]
    assert mirroring.verify(root).problems == ()
    assert planning.plan(open_checkpoint(root), TARGET).before.outcome == "compatible"


def test_modes_and_times_of_copies_stay_and_umask_has_no_influence(
    source: Path, tmp_path: Path
) -> None:
    (source / "modeling.py").chmod(0o750)
    os.utime(source / "modeling.py", ns=(5, 1_600_000_000_123_456_789))
    (source / "config.json").chmod(0o640)
    former = os.umask(0o077)
    try:
        mirror(source, tmp_path / "mirror")
    finally:
        os.umask(former)
    status = (tmp_path / "mirror" / "modeling.py").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o750, 1_600_000_000_123_456_789)
    assert (tmp_path / "mirror" / "config.json").stat().st_mode & 0o7777 == 0o640


def test_what_belongs_to_the_source_alone_is_left_out(source: Path, tmp_path: Path) -> None:
    make_checkpoint(
        source,
        {
            ".git/HEAD": b"ref",
            ".cache/huggingface/download/config.json.metadata": b"",
            ".cache/other": b"kept",
            ".ckpt-patch/0001.undone/record.json": b"{}",
            "sub/.git": b"kept",
        },
    )
    mirror(source, tmp_path / "mirror")
    root = tmp_path / "mirror"
    assert sorted(os.listdir(root / ".ckpt-patch")) == [".gitignore", "mirror.json"]
    assert not (root / ".git").exists()
    assert os.listdir(root / ".cache") == ["other"]
    assert (root / "sub/.git").read_bytes() == b"kept"


def test_a_large_file_of_any_name_is_linked(source: Path, tmp_path: Path) -> None:
    with (source / "embedding.dat").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    made = mirror(source, tmp_path / "mirror", "hardlink")
    kinds = {file.path: file.kind for file in made.manifest.files}
    assert kinds["embedding.dat"] == "weights"
    assert (tmp_path / "mirror/embedding.dat").stat().st_nlink == 2


def test_the_manifest_is_the_same_bytes_each_time(source: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        mirror(source, tmp_path / name)
        texts.append((tmp_path / name / manifests.PATH).read_bytes())
    assert texts[0] == texts[1]
    body = json.loads(texts[0])
    assert body["schema"] == "ckpt-patch/mirror-manifest@1"
    assert body["source"] == {
        "path": str(source), "origin": "directory", "repo_id": None, "revision": None,
    }  # fmt: skip
    assert body["recipe"]["id"] == "kv-cache-model-dtype"
    assert body["target"]["gpu"] == "sm120"
    assert body["releases"] == {"engine": "vllm", "runs": ["0.16.0"], "needed_for": ["0.16.0"]}


def test_a_portable_target_lists_its_releases(source: Path, tmp_path: Path) -> None:
    made = mirror(source, tmp_path / "mirror", target=Target.parse("sm120"))
    needed = made.manifest.releases["needed_for"]
    assert "0.16.0" in needed
    assert "0.33.0" not in needed
    assert {"0.13.0", "0.16.0", "0.33.0"} <= set(made.manifest.releases["runs"])


# --- Hub caches


def cached(tmp_path: Path) -> Path:
    return make_cache(tmp_path / "hub", "nvidia/Kimi-K2.5-NVFP4", flat_files())


def flat_files() -> dict[str, Any]:
    return {name: content for name, content in FILES.items() if "/" not in name}


@pytest.mark.parametrize("link", ["hardlink", "symlink", "copy"])
def test_from_a_hub_cache_the_blobs_are_linked(tmp_path: Path, link: str) -> None:
    root = cached(tmp_path)
    before = snapshot(tmp_path / "hub")
    made = mirror(root, tmp_path / "mirror", link)
    blob = os.path.realpath(root / SHARDS[0])
    if link == "symlink":
        text = os.readlink(tmp_path / "mirror" / SHARDS[0])
        assert text == os.path.relpath(blob, tmp_path / "mirror")
        assert not os.path.isabs(text)
    if link == "hardlink":
        assert (tmp_path / "mirror" / SHARDS[0]).stat().st_ino == os.stat(blob).st_ino
    assert not (tmp_path / "mirror" / "config.json").is_symlink()
    assert made.manifest.source.repo_id == "nvidia/Kimi-K2.5-NVFP4"
    assert made.manifest.source.revision == root.name
    assert snapshot(tmp_path / "hub") == before
    assert mirroring.verify(tmp_path / "mirror").problems == ()
    os.rename(root, root.with_name("f" * 40))  # the snapshot moves, the blobs do not
    assert (tmp_path / "mirror" / SHARDS[0]).exists()


def test_blobs_that_repositories_share_belong_to_the_cache(tmp_path: Path) -> None:
    root = cached(tmp_path)
    blob = Path(os.path.realpath(root / SHARDS[0]))
    shared = tmp_path / "hub/blobs/ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    os.rename(blob, shared)
    blob.symlink_to(f"../../blobs/ab/{shared.name}")
    mirror(root, tmp_path / "mirror", "hardlink")
    assert (tmp_path / "mirror" / SHARDS[0]).stat().st_ino == shared.stat().st_ino


def test_the_hash_that_the_hub_names_a_blob_by_is_kept_and_compared(tmp_path: Path) -> None:
    root = cached(tmp_path)
    data = (root / SHARDS[0]).read_bytes()
    blob = Path(os.path.realpath(root / SHARDS[0]))
    named = blob.with_name(sha256(data))
    os.rename(blob, named)
    (root / SHARDS[0]).unlink()
    (root / SHARDS[0]).symlink_to(f"../../blobs/{named.name}")
    made = mirror(root, tmp_path / "mirror", "hardlink")
    files = {file.path: file for file in made.manifest.files}
    assert files[SHARDS[0]].after_sha256 == named.name
    assert files[SHARDS[1]].after_sha256 is None
    verified = mirroring.verify(tmp_path / "mirror", hashed=True)
    assert (verified.problems, verified.hashed) == ((), 1)
    assert verified.notes == ("files of weights without a known hash to compare with: 1",)
    status = named.stat()
    named.write_bytes(bytes(reversed(data)))
    os.utime(named, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert mirroring.verify(tmp_path / "mirror").problems == ()
    (problem,) = mirroring.verify(tmp_path / "mirror", hashed=True).problems
    assert (problem.kind, problem.file) == ("edited", SHARDS[0])


# --- Links and what is no file


def test_links_of_the_checkpoint_itself(source: Path, tmp_path: Path) -> None:
    (source / "consolidated.safetensors").symlink_to(SHARDS[0])
    (source / "sub/readme.txt").symlink_to("../modeling.py")
    (source / "latest").symlink_to(source / "sub")
    (source / "sub/up").symlink_to("..")
    mirror(source, tmp_path / "mirror", "symlink")
    root = tmp_path / "mirror"
    assert os.readlink(root / "consolidated.safetensors") == f"../source/{SHARDS[0]}"
    assert not (root / "sub/readme.txt").is_symlink()
    assert (root / "sub/readme.txt").read_bytes() == b"print()\n"
    assert os.readlink(root / "latest") == "sub"
    assert os.readlink(root / "sub/up") == ".."
    assert mirroring.verify(root).problems == ()


@pytest.mark.parametrize("name", ["model-00003-of-00002.safetensors", "notes.txt", "folder"])
def test_a_link_that_leads_out_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    if name == "folder":
        secret.mkdir()
    else:
        secret.write_bytes(shard("secret"))
    (source / name).symlink_to(secret)
    with pytest.raises(RefusedError, match="out of this checkpoint") as caught:
        mirror(source, tmp_path / "mirror")
    assert caught.value.path == name
    assert sorted(os.listdir(tmp_path)) == ["secret", "source"]


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere", "does not exist"), ("loop.txt", "leads back to itself")]
)
def test_a_link_that_leads_nowhere(source: Path, tmp_path: Path, target: str, message: str) -> None:
    (source / "loop.txt").symlink_to(target)
    with pytest.raises(UnreadableError, match=message):
        mirror(source, tmp_path / "mirror")
    assert not (tmp_path / "mirror").exists()


def test_what_is_no_file_is_left_out_and_never_opened(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    with listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        listener.bind("door")
        made = mirror(source, tmp_path / "mirror")
    assert made.notes[:2] == (
        "door is a socket and is left out",
        "pipe is a FIFO and is left out",
    )
    assert not (tmp_path / "mirror/pipe").exists()
    assert not (tmp_path / "mirror/door").exists()


# --- Ways to link


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS])
def test_auto_falls_back_and_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fsio, "hook", failing(("clone", number)))
    first = mirror(source, tmp_path / "one")
    assert links(first) == {"hardlink"}
    assert first.notes == (f"reflink is not possible here ({os.strerror(number)})",)
    monkeypatch.setattr(fsio, "hook", failing(("clone", number), ("link", number)))
    second = mirror(source, tmp_path / "two")
    assert links(second) == {"symlink"}
    assert second.notes[1] == f"hardlink is not possible here ({os.strerror(number)})"
    assert mirroring.verify(tmp_path / "two").problems == ()


def test_auto_never_copies(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = failing(("clone", errno.ENOTTY), ("link", errno.EXDEV), ("symlink", errno.EPERM))
    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(RefusedError, match=r"reflink: .*hardlink: .*symlink: ") as caught:
        mirror(source, tmp_path / "mirror")
    assert "--link copy" in str(caught.value.hint)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize(("link", "call"), [("reflink", "clone"), ("hardlink", "link")])
def test_a_way_that_was_asked_for_is_not_replaced_by_another(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str, call: str
) -> None:
    monkeypatch.setattr(fsio, "hook", failing((call, errno.EXDEV)))
    with pytest.raises(RefusedError, match=f"{link}: Invalid cross-device link"):
        mirror(source, tmp_path / "mirror", link)
    assert os.listdir(tmp_path) == ["source"]


def test_an_unknown_way(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'magic' is no way to link"):
        mirror(source, tmp_path / "mirror", "magic")


def test_a_reflink_is_a_file_of_its_own(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ioctl stands for itself: few file systems of test machines can do it."""

    def clone(fd: int, _request: int, source_fd: int) -> None:
        os.write(fd, os.pread(source_fd, 1 << 20, 0))

    monkeypatch.setattr(fcntl, "ioctl", clone)
    made = mirror(source, tmp_path / "mirror")
    assert links(made) == {"reflink"}
    here, there = tmp_path / "mirror" / SHARDS[0], source / SHARDS[0]
    assert here.stat().st_ino != there.stat().st_ino
    assert here.stat().st_mtime_ns == there.stat().st_mtime_ns
    assert mirroring.verify(tmp_path / "mirror", hashed=True).hashed == 3
    here.write_bytes(b"other")
    (problem,) = mirroring.verify(tmp_path / "mirror").problems
    assert (problem.kind, problem.file) == ("edited", SHARDS[0])


# --- Destinations


def test_the_second_run_writes_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(source, tmp_path / "mirror")
    before = snapshot(tmp_path)
    calls: list[str] = []
    monkeypatch.setattr(fsio, "hook", lambda call, _file: calls.append(call))
    assert mirror(source, tmp_path / "mirror").outcome == "current"
    assert calls == []
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "change", ["config", "copied file", "weights", "new file", "lost file", "target", "link"]
)
def test_a_change_makes_it_anew(source: Path, tmp_path: Path, change: str) -> None:
    root = tmp_path / "mirror"
    mirror(source, root, "hardlink")
    target, link = TARGET, "hardlink"
    if change == "config":
        (source / "config.json").write_bytes(CONFIG + b" ")
    elif change == "copied file":
        (source / "modeling.py").write_bytes(b"new")
    elif change == "weights":
        (source / "new").write_bytes(shard("a", "z"))
        os.replace(source / "new", source / SHARDS[0])
    elif change == "new file":
        (source / "merges.txt").write_bytes(b"new")
    elif change == "lost file":
        (root / "modeling.py").unlink()
    elif change == "target":
        target = Target.parse("sm120", engine="vllm==0.17.1")
    else:
        link = "symlink"
    assert mirror(source, root, link, target).outcome == "replaced"
    assert mirroring.verify(root).problems == ()
    assert mirror(source, root, link, target).outcome == "current"
    assert sorted(os.listdir(tmp_path)) == ["mirror", "source"]


def test_touching_a_copied_file_changes_nothing(source: Path, tmp_path: Path) -> None:
    mirror(source, tmp_path / "mirror")
    os.utime(source / "modeling.py")
    assert mirror(source, tmp_path / "mirror").outcome == "current"


@pytest.mark.parametrize("how", ["exchange", "two renames"])
def test_both_ways_to_replace(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    mirror(source, tmp_path / "mirror")
    (source / "modeling.py").write_bytes(b"new")
    if how == "two renames":
        monkeypatch.setattr(fsio, "hook", failing(("exchange", errno.EINVAL)))
    assert mirror(source, tmp_path / "mirror").outcome == "replaced"
    assert (tmp_path / "mirror/modeling.py").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["mirror", "source"]


@pytest.mark.parametrize("work", ["edit", "add"])
def test_a_mirror_in_which_somebody_works_is_not_replaced(
    source: Path, tmp_path: Path, work: str
) -> None:
    root = tmp_path / "mirror"
    mirror(source, root)
    name = {"edit": "config.json", "add": "LoRA.json"}[work]
    (root / name).write_bytes(b"{}")
    before = snapshot(root)
    (source / "modeling.py").write_bytes(b"new")
    with pytest.raises(RefusedError, match="would lose") as caught:
        mirror(source, root)
    assert str(caught.value.detail).startswith(f"{name}: ")
    assert snapshot(root) == before


def test_a_file_that_an_engine_leaves_there_is_no_reason_to_refuse(
    source: Path, tmp_path: Path
) -> None:
    mirror(source, tmp_path / "mirror")
    make_checkpoint(tmp_path / "mirror", {"__pycache__/modeling.pyc": b""})
    assert mirror(source, tmp_path / "mirror").outcome == "current"


@pytest.mark.parametrize("kind", ["directory", "file", "link", "dangling", "damaged"])
def test_a_foreign_destination_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "mirror"
    if kind == "directory":
        make_checkpoint(root, {"config.json": CONFIG})
    elif kind == "file":
        root.write_bytes(b"")
    elif kind == "damaged":
        mirror(source, root)
        path = root / manifests.PATH
        path.chmod(0o600)
        path.write_bytes(path.read_bytes().replace(b"sm120", b"sm121"))
    else:
        (tmp_path / "there").mkdir()
        root.symlink_to({"link": "there", "dangling": "nowhere"}[kind])
    before = snapshot(tmp_path)
    with pytest.raises(RefusedError):
        mirror(source, root)
    assert snapshot(tmp_path) == before


def test_an_empty_directory_is_taken(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    assert mirror(source, tmp_path / "mirror").outcome == "made"
    assert mirroring.verify(tmp_path / "mirror").problems == ()


def test_places_that_make_no_sense(source: Path, tmp_path: Path) -> None:
    root = cached(tmp_path)
    with pytest.raises(UsageError, match="are the same"):
        mirror(source, source)
    with pytest.raises(RefusedError, match="inside the source"):
        mirror(source, source / "mirror")
    with pytest.raises(RefusedError, match="contains the source"):
        mirror(source, tmp_path)
    with pytest.raises(RefusedError, match="the Hub's cache"):
        mirror(root, root.parent / "mirror")
    with pytest.raises(RefusedError, match="does not exist"):
        mirror(source, tmp_path / "missing" / "mirror")
    for path in ("", "a\0b", "/"):
        with pytest.raises(UsageError):
            mirror(source, path)
    with pytest.raises(RefusedError, match="is something else"):
        mirror(source, os.devnull)
    assert sorted(os.listdir(tmp_path)) == ["hub", "source"]


def test_an_unfinished_transaction_of_the_source(source: Path, tmp_path: Path) -> None:
    (source / ".ckpt-patch/0001.pending").mkdir(parents=True)
    with pytest.raises(RefusedError, match="not finished"):
        mirror(source, tmp_path / "mirror")
    os.rename(source / ".ckpt-patch/0001.pending", source / ".ckpt-patch/0001.staging")
    assert mirror(source, tmp_path / "mirror").outcome == "made"


def test_a_download_that_is_not_complete(source: Path, tmp_path: Path) -> None:
    names = [*SHARDS, "model-00003.safetensors", "model-00004.safetensors"]
    index = {"metadata": {}, "weight_map": {f"w{at}": name for at, name in enumerate(names)}}
    make_checkpoint(source, {"model.safetensors.index.json": index})
    with pytest.raises(UnreadableError, match=r"model-00003.safetensors, model-00004.safetensors"):
        mirror(source, tmp_path / "mirror")
    make_checkpoint(source, {name: shard("late") for name in names[2:]})
    assert mirror(source, tmp_path / "mirror").outcome == "made"


def test_a_repository_of_which_only_the_metadata_is_here(tmp_path: Path) -> None:
    files = {name: data for name, data in flat_files().items() if name not in WEIGHTS}
    root = make_cache(tmp_path / "hub", "nvidia/Kimi-K2.5-NVFP4", files)
    checkpoint = open_checkpoint(root)
    download = "hf download nvidia/Kimi-K2.5-NVFP4 --revision main"
    origin = replace(checkpoint.origin, kind="hub", download=download, ref="main")
    shards: dict[str, Kind] = dict.fromkeys(SHARDS, "remote")
    for entries, what in ((checkpoint.entries, "its weights"), (shards, SHARDS[0])):
        found = replace(checkpoint, origin=origin, entries=entries)
        with pytest.raises(UnreadableError, match=f"not complete here.*{what}") as caught:
            mirroring.prepare(found, plan_for(checkpoint), tmp_path / "mirror")
        assert caught.value.path == "nvidia/Kimi-K2.5-NVFP4"
        assert str(caught.value.hint).startswith(download)


def test_a_mirror_that_would_not_start_is_not_made(source: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source)
    plan = plan_for(checkpoint)
    refused = replace(plan, after=plan.before)
    with pytest.raises(RefusedError, match="would not start either"):
        mirroring.prepare(checkpoint, refused, tmp_path / "mirror")


@pytest.mark.parametrize(
    ("name", "when"), [("modeling.py", "mkdir"), (SHARDS[0], "mkdir"), (SHARDS[0], "fsync_dir")]
)
def test_a_source_that_changes_meanwhile(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, when: str
) -> None:
    checkpoint = open_checkpoint(source)
    plan = plan_for(checkpoint)

    def hook(call: str, _file: str) -> None:
        if call == when:
            (source / name).write_bytes(b"being downloaded")

    monkeypatch.setattr(fsio, "hook", hook)
    prepared = mirroring.prepare(checkpoint, plan, tmp_path / "mirror")
    with pytest.raises(UnreadableError, match="has changed while"):
        mirroring.make(prepared)
    (source / "config.json").write_bytes(CONFIG + b" ")
    with pytest.raises(UnreadableError, match="has changed while"):
        mirroring.prepare(checkpoint, plan, tmp_path / "mirror")
    assert os.listdir(tmp_path) == ["source"]


# --- Verify


def test_verify_finds_everything(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "mirror"
    mirror(source, root, "symlink")
    (source / SHARDS[0]).unlink()
    (source / SHARDS[1]).write_bytes(b"longer than before, and other bytes" * 9)
    (source / "modeling.py").write_bytes(b"new")
    (source / "new.txt").write_bytes(b"new")
    (root / "config.json").write_bytes(CONFIG)
    (root / "chat_template.jinja").unlink()
    (root / "x_hf_quant_config.json").write_bytes(b"{}")
    (root / "sub/adapter.bin").unlink()
    (root / "sub/adapter.bin").write_bytes(b"weights too")
    found = {(each.kind, each.file) for each in mirroring.verify(root).problems}
    assert found == {
        ("dangling", SHARDS[0]),
        ("base", SHARDS[0]),
        ("base", SHARDS[1]),
        ("base", "modeling.py"),
        ("base", "new.txt"),
        ("edited", "config.json"),
        ("edited", "sub/adapter.bin"),
        ("missing", "chat_template.jinja"),
        ("added", "x_hf_quant_config.json"),
    }


def test_verify_sees_a_hard_link_that_is_none_any_more_or_was_written(
    source: Path, tmp_path: Path
) -> None:
    root = tmp_path / "mirror"
    mirror(source, root, "hardlink")
    (root / SHARDS[0]).unlink()
    shutil.copy2(source / SHARDS[0], root / SHARDS[0])
    (source / SHARDS[1]).write_bytes(b"written in place")
    found = {(each.kind, each.file) for each in mirroring.verify(root).problems}
    assert found == {("edited", SHARDS[0]), ("base", SHARDS[1])}


def test_verify_reads_no_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror(source, tmp_path / "mirror", "symlink")
    opened: list[str] = []
    real = os.open

    def watch(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(os.fsdecode(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watch)
    assert mirroring.verify(tmp_path / "mirror").problems == ()
    assert any(path.endswith("config.json") for path in opened)
    assert not [path for path in opened if path.endswith((".safetensors", ".bin"))]
    mirror(source, tmp_path / "second", "hardlink")  # nor does making it
    assert not [path for path in opened if path.endswith(".bin")]


def test_a_mirror_without_its_source(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "mirror"
    mirror(source, root, "copy")
    os.rename(source, tmp_path / "elsewhere")
    verified = mirroring.verify(root)
    assert verified.problems == ()
    assert verified.notes == (f"the source {source} is not here, so it was not compared",)


def test_verify_refuses_what_is_no_mirror(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="not a mirror"):
        mirroring.verify(source)
    with pytest.raises(UnreadableError, match="no such directory"):
        mirroring.verify(tmp_path / "missing")


def test_a_manifest_that_was_cut_or_flipped_is_refused(source: Path, tmp_path: Path) -> None:
    mirror(source, tmp_path / "mirror")
    data = (tmp_path / "mirror" / manifests.PATH).read_bytes()
    assert manifests.encode(manifests.decode(data)) == data
    for size in range(0, len(data) - 1, 97):
        with pytest.raises(ValueError, match=r"."):
            manifests.decode(data[:size])
    for place in range(0, len(data), 31):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            assert manifests.decode(flipped) == manifests.decode(data)  # white space
        except ValueError:
            continue


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a//b", "a/../../b", "", ".", "a\0b"])
def test_a_manifest_never_leads_out(source: Path, tmp_path: Path, path: str) -> None:
    made = mirror(source, tmp_path / "mirror")
    hostile = replace(made.manifest, files=(replace(made.manifest.files[0], path=path),))
    with pytest.raises(ValueError, match="impossible path"):
        manifests.decode(manifests.encode(hostile))
