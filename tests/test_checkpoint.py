"""From what people type to a checkpoint, or to a message that says what to do."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import COMMIT, link_twice, make_cache, make_checkpoint, make_local_dir, shard

from patcher.checkpoint import METADATA_FILES, open_checkpoint
from patcher.errors import UnreadableError
from patcher.headers import INDEX_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
WEIGHTS = shard("l.self_attn.k_proj.k_scale", "l.self_attn.v_proj.v_scale")
FILES = {
    "config.json": CONFIG,
    "hf_quant_config.json": MODELOPT,
    "model.safetensors": WEIGHTS,
    "README.md": b"# Model",
}


def refusal(path: str | os.PathLike[str]) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        open_checkpoint(path)
    assert caught.value.exit_code == 4
    return caught.value


def words_of(hint: str | None) -> list[str]:
    """The words of a hint that is a command, as a shell takes them."""
    assert hint is not None
    return shlex.split(hint)


# --- What is opened


def test_a_plain_directory(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path / "m", FILES)
    checkpoint = open_checkpoint(str(root))
    assert checkpoint.root == root
    assert checkpoint.layout == "huggingface"
    origin = checkpoint.origin
    assert (origin.kind, origin.repo_id, origin.revision) == ("directory", None, None)
    assert list(checkpoint.documents) == ["config.json", "hf_quant_config.json"]
    assert checkpoint.documents["config.json"].value == CONFIG
    assert checkpoint.documents["config.json"].data == (root / "config.json").read_bytes()
    assert checkpoint.shards == ("model.safetensors",)
    assert list(checkpoint.entries.items()) == [
        (name, "file") for name in ("config.json", "hf_quant_config.json", "model.safetensors")
    ]


def test_all_metadata_files_are_documents_in_their_order(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, dict.fromkeys(reversed(METADATA_FILES), CONFIG))
    assert tuple(open_checkpoint(root).documents) == METADATA_FILES


def test_scales_are_counted_when_asked_for(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, FILES)
    counts = open_checkpoint(root).scales()
    assert (counts.source, counts.paired, counts.weight_bytes_read) == ("headers", 1, 0)
    make_checkpoint(root, {"model.safetensors": b"", INDEX_FILE: b""})
    checkpoint = open_checkpoint(root)  # opening does not look at either
    assert checkpoint.entries[INDEX_FILE] == "file"
    with pytest.raises(UnreadableError, match=INDEX_FILE):
        checkpoint.scales()


@pytest.mark.parametrize(
    "name",
    ["with space", "naïve-模型", "new\nline", "'quoted\"", "-dash", os.fsdecode(b"bad-\xff-utf8")],
)
def test_any_name_that_the_file_system_takes(tmp_path: Path, name: str) -> None:
    root = make_checkpoint(tmp_path / name, FILES)
    checkpoint = open_checkpoint(root)
    assert checkpoint.root == root
    assert checkpoint.scales().paired == 1
    (root / "config.json").write_bytes(b"")
    hint = words_of(refusal(root).hint)
    assert hint[hint.index("--local-dir") + 1] == str(root)


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "m", FILES)
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("m").root == tmp_path / "m"
    monkeypatch.chdir(tmp_path / "m")
    assert open_checkpoint(".").root == tmp_path / "m"


def test_a_special_file_among_the_shards_is_listed_and_not_opened(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, {"config.json": CONFIG})
    os.mkfifo(root / "model.safetensors")
    (root / "gone.safetensors").symlink_to("../blobs/gone")
    checkpoint = open_checkpoint(root)
    assert checkpoint.entries["model.safetensors"] == "other"
    assert checkpoint.entries["gone.safetensors"] == "link"
    assert checkpoint.shards == ("gone.safetensors", "model.safetensors")
    with pytest.raises(UnreadableError, match=r"^gone\.safetensors: is a link to"):
        checkpoint.scales()


# --- Where it came from


def test_a_snapshot_of_the_hub_cache(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path / "hub", "org/na.me-1", FILES)
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.root == snapshot
    origin = checkpoint.origin
    assert (origin.kind, origin.repo_id, origin.revision) == ("cache", "org/na.me-1", COMMIT)
    assert origin.ref is None
    assert checkpoint.entries["config.json"] == "link"
    assert checkpoint.scales().paired == 1


def test_a_snapshot_whose_links_lead_to_links(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, "org/name", FILES)
    link_twice(snapshot / "config.json")
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.entries["config.json"] == "link"
    assert checkpoint.documents["config.json"].value == CONFIG


def test_a_snapshot_without_links(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_cache(tmp_path, "org/name", FILES, links=False))
    assert checkpoint.origin.kind == "cache"
    assert checkpoint.entries["config.json"] == "file"


def test_a_repository_without_an_organisation(tmp_path: Path) -> None:
    assert open_checkpoint(make_cache(tmp_path, "gpt2", FILES)).origin.repo_id == "gpt2"


def test_a_link_to_a_snapshot_keeps_its_name_and_knows_its_origin(tmp_path: Path) -> None:
    link = tmp_path / "model"
    link.symlink_to(make_cache(tmp_path / "hub", "org/name", FILES))
    checkpoint = open_checkpoint(link)
    assert checkpoint.root == link
    assert (checkpoint.origin.kind, checkpoint.origin.repo_id) == ("cache", "org/name")


@pytest.mark.parametrize("inside", ["", "snapshots"])
def test_a_cached_repository_means_its_main(tmp_path: Path, inside: str) -> None:
    snapshot = make_cache(tmp_path, "org/name", FILES)
    make_cache(tmp_path, "org/name", FILES, commit="f" * 40, links=False)
    (snapshot.parent.parent / "refs" / "main").write_text(f"{COMMIT}\n")
    checkpoint = open_checkpoint(snapshot.parent.parent / inside)
    assert checkpoint.root == snapshot
    assert (checkpoint.origin.ref, checkpoint.origin.revision) == ("main", COMMIT)


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        (None, "its refs/main does not exist"),
        (b"", "its refs/main is empty"),
        (b"f" * 40, "of which there is no snapshot"),
        (b"../../../etc", "of which there is no snapshot"),
        (b"\xff\0", "of which there is no snapshot"),
    ],
)
def test_a_cached_repository_without_main(tmp_path: Path, ref: bytes | None, words: str) -> None:
    snapshot = make_cache(tmp_path, "org/name", FILES)
    main = snapshot.parent.parent / "refs" / "main"
    main.unlink()
    if ref is not None:
        main.write_bytes(ref)
    error = refusal(snapshot.parent.parent)
    assert words in error.message
    assert words_of(error.hint) == ["ckpt-patch", "check", str(snapshot)]


def test_a_local_dir_download(tmp_path: Path) -> None:
    origin = open_checkpoint(make_local_dir(tmp_path, {"config.json": CONFIG})).origin
    assert (origin.kind, origin.repo_id, origin.revision) == ("local_dir", None, COMMIT)
    note = tmp_path / ".cache/huggingface/download/config.json.metadata"
    note.write_bytes(b"main\n0\n0\n")
    (note.parent / "a.metadata").write_bytes(b"")
    (note.parent / "model.safetensors.metadata").write_bytes(b"f" * 40)
    hf_quant = note.parent / "hf_quant_config.json.metadata"
    hf_quant.write_bytes(b"e" * 40 + b"\n")
    assert open_checkpoint(tmp_path).origin.revision == "e" * 40


def test_a_local_dir_whose_notes_are_unreadable(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, {**FILES, ".cache/huggingface/download/a.metadata": b"\xff"})
    origin = open_checkpoint(root).origin
    assert (origin.kind, origin.revision) == ("local_dir", None)


# --- Layouts


@pytest.mark.parametrize(
    ("files", "layout"),
    [
        ({"config.json": CONFIG}, "huggingface"),
        ({"config.json": CONFIG, "params.json": {}}, "huggingface"),
        ({"config.json": {}, "params.json": {}}, "huggingface"),
        ({"params.json": {"dim": 4096}}, "mistral"),
        (
            {"config.json": {"pretrained_config": {}, "build_config": {}}},
            "tensorrt-llm-engine",
        ),
        ({"rank0.engine": b"\0"}, "tensorrt-llm-engine"),
        ({"config.json": CONFIG, "rank12.engine": b"\0"}, "tensorrt-llm-engine"),
        (
            {"config.json": {"architecture": "LlamaForCausalLM", "mapping": {"world_size": 2}}},
            "tensorrt-llm-checkpoint",
        ),
        ({"config.json": {**CONFIG, "architecture": "resnet50"}}, "huggingface"),
    ],
)
def test_layouts(tmp_path: Path, files: dict[str, Any], layout: str) -> None:
    assert open_checkpoint(make_checkpoint(tmp_path, files)).layout == layout


def test_the_published_form_of_a_tensorrt_llm_checkpoint(tmp_path: Path, shared: Path) -> None:
    config = (shared / "corpus/_shapes/trtllm_checkpoint_config.json").read_bytes()
    root = make_checkpoint(tmp_path, {"config.json": config, "rank0.safetensors": WEIGHTS})
    assert open_checkpoint(root).layout == "tensorrt-llm-checkpoint"


def test_every_real_checkpoint_opens(shared: Path) -> None:
    folders = [path.parent for path in sorted((shared / "corpus").glob("*/config.json"))]
    assert len(folders) > 70
    for folder in folders:
        checkpoint = open_checkpoint(folder)
        assert checkpoint.layout == "huggingface", folder
        assert set(checkpoint.documents) == {path.name for path in folder.glob("*.json")}
        assert checkpoint.scales().source == "none"


# --- Paths that are no checkpoint directory


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    error = refusal(tmp_path / "some" / "where" / "else")
    assert error.message == "does not exist"
    assert error.path == str(tmp_path / "some" / "where" / "else")
    assert words_of(error.hint) == ["ls", "-ld", str(tmp_path / "some" / "where")]


def test_a_directory_named_like_a_hub_id_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_checkpoint(tmp_path / "org" / "name", FILES)
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/name").root == root


@pytest.mark.parametrize("typed", ["name", "./org/name", "../org/name", "a/b/c", "~/name", "-a/b"])
def test_other_paths_are_not_taken_for_hub_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(typed).message == "does not exist"


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("config.json", "is a file; a checkpoint is the directory that holds it", "check"),
        ("model-00001-of-00002.safetensors", "is a file of weights", "check"),
        ("model-Q4_K_M.gguf", "is a GGUF file", "--cache-type-k"),
        ("notes.txt", "is a file, not a directory", None),
    ],
)
def test_a_file_where_a_directory_belongs(
    tmp_path: Path, name: str, words: str, hint: str | None
) -> None:
    root = make_checkpoint(tmp_path / "my model", {name: b"{}"})
    error = refusal(root / name)
    assert words in error.message
    if hint == "check":
        assert words_of(error.hint) == ["ckpt-patch", "check", str(root)]
    else:
        assert error.hint is hint or (hint is not None and hint in str(error.hint))


@pytest.mark.timeout(5)
def test_other_things_that_are_no_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert refusal(tmp_path / "config.json").message == "is a FIFO, not a directory"
    assert refusal("/dev/null").message == "is a character device, not a directory"
    (tmp_path / "dangling").symlink_to("gone")
    assert refusal(tmp_path / "dangling").message == "is a link to gone, which does not exist"
    (tmp_path / "loop").symlink_to("loop")
    assert refusal(tmp_path / "loop").message == "is a link that leads back to itself"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "the path is empty"),
        ("a\0b", "null"),
        ("x" * 5000, "File name too long"),
        (f"{__file__}/x", "Not a directory"),
    ],
)
def test_impossible_paths(typed: str, words: str) -> None:
    assert words in refusal(typed).message


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "does not exist" in refusal(".").message


# --- Directories without config.json


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "is an empty directory"),
        ({".gitattributes": b""}, "is an empty directory"),
        ({"README.md": b"", "tokenizer.json": b"{}"}, "has no config.json"),
        ({"hf_quant_config.json": MODELOPT, "model.safetensors": WEIGHTS}, "config.json is miss"),
        ({"model.safetensors": WEIGHTS}, "has weights, but config.json is missing"),
        ({"model-Q4_K_M.gguf": b"GGUF"}, "has GGUF files"),
        ({"Config.json": CONFIG}, "has Config.json, but engines open config.json"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    error = refusal(make_checkpoint(tmp_path, files))
    assert words in error.message
    assert error.path == str(tmp_path)
    assert error.hint == f"hf download ORG/NAME --local-dir {tmp_path} config.json"


def test_the_download_hint_of_a_snapshot_names_repository_and_commit(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, "org/name", {"model.safetensors": WEIGHTS})
    assert refusal(snapshot).hint == (
        f"hf download org/name --revision {COMMIT} --cache-dir {tmp_path} config.json"
    )


# --- Metadata files that cannot be used


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        (LFS, "is a Git LFS pointer", "git lfs pull"),
        (b"", "an interrupted download leaves such files", "config.json --force-download"),
        (b" " * (16 * 2**20 + 1), "16,777,217 bytes", "ls -lL"),
        (b'{"model_type": "lla', "(line 1", "cut short"),
        (b"<!DOCTYPE html>", "(line 1", "web page"),
        (b"\0" * 700, "(line 1", None),
        (b"[]", "must hold a JSON object", "config.json --force-download"),
        (b"null", "must hold a JSON object", "config.json --force-download"),
    ],
)
def test_a_config_that_is_none(
    tmp_path: Path, content: bytes, words: str, hint: str | None
) -> None:
    error = refusal(make_checkpoint(tmp_path, {"config.json": content}))
    assert error.path == "config.json"
    assert words in error.message
    assert hint is None or hint in str(error.hint)


def test_every_other_metadata_file_must_be_good_too(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, {"config.json": CONFIG, "generation_config.json": LFS})
    assert refusal(root).path == "generation_config.json"


@contextlib.contextmanager
def planted(path: Path, kind: str) -> Iterator[None]:
    if kind == "a directory":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a character device":
        path.symlink_to("/dev/zero")
    elif kind == "back to itself":
        path.symlink_to("config.json")
    elif kind == "../../blobs/0, which does not exist":
        path.symlink_to("../../blobs/0")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
            yield
            return
    yield


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "kind",
    [
        "a directory",
        "a FIFO",
        "a socket",
        "a character device",
        "back to itself",
        "../../blobs/0, which does not exist",
    ],
)
def test_a_config_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    with planted(tmp_path / "config.json", kind):
        error = refusal(tmp_path)
    assert error.path == "config.json"
    assert kind in error.message


def test_a_snapshot_whose_blob_is_gone(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, "org/name", FILES)
    (snapshot / "config.json").resolve().unlink()
    error = refusal(snapshot)
    assert error.message == f"is a link to ../../blobs/{0:040x}, which does not exist"
    assert error.hint == (
        f"hf download org/name --revision {COMMIT} --cache-dir {tmp_path} "
        "config.json --force-download"
    )


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may read everything: act as a user who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("locked", "mode", "named"),
    [("config.json", 0, "config.json"), (".", 0, "."), (".", 0o444, "config.json")],
)
def test_what_may_not_be_read_is_named(locked: str, mode: int, named: str) -> None:
    # tmp_path would be closed to the other user as a whole.
    with tempfile.TemporaryDirectory() as folder:
        root = make_checkpoint(Path(folder), {"config.json": CONFIG})
        os.chmod(root, 0o755)
        os.chmod(root / locked, mode)
        with as_somebody_else():
            error = refusal(root)
        os.chmod(root, stat.S_IRWXU)
    assert error.message == "cannot be read: permission denied"
    assert error.path == (str(root) if named == "." else named)
    assert words_of(error.hint)[:2] == ["ls", "-lL"]
