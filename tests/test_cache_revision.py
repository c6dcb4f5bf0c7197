"""``mirror --cache-revision``, with the real library, its command, and a Hub on the loopback."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cached import (
    FILES,
    NAME,
    NEWER,
    OTHER,
    PATCHED,
    REPO,
    SHARD,
    TARGET,
    VLLM_016,
    Cache,
    cache,
    filled,
    git_sha1,
    make,
    needs_new_library,
    serving,
)  # fmt: skip
from hub_server import COMMIT
from hubs import olah
from running import Done, Run, as_nobody, make_reachable, snapshot

import patcher
from patcher import fsio, mirroring
from patcher.errors import CkptPatchError, RefusedError
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hub_server import Hub

    from patcher.mirroring.cache_revision import CacheRevision

pytestmark = needs_new_library

MIRROR = ("mirror", *TARGET, REPO, "--cache-revision", NAME)


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture(scope="module")
def template(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(server, tmp_path_factory.mktemp("template") / "home")


@pytest.fixture
def hub_cache(
    server: Hub, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cache]:
    monkeypatch.chdir(tmp_path)
    with cache(template, server, tmp_path / "home", monkeypatch) as made:
        yield made


@pytest.fixture
def made(hub_cache: Cache) -> CacheRevision:
    return make(hub_cache.snapshot)


def scheme(root: Path | str) -> Any:
    config = json.loads(Path(root, "config.json").read_bytes())
    return config["quantization_config"]["kv_cache_scheme"]


# --- What it is


def test_links_to_blobs_of_which_two_are_new(hub_cache: Cache, made: CacheRevision) -> None:
    folder, new = hub_cache.folder, Path(made.path)
    assert (made.outcome, made.path) == ("made", str(folder / "snapshots" / made.commit))
    assert (folder / "refs" / NAME).read_bytes() == made.commit.encode()
    assert scheme(new) is None
    assert scheme(hub_cache.snapshot) is not None
    for name in FILES:
        text = os.readlink(new / name)
        if name in PATCHED:
            assert text == f"../../blobs/{git_sha1((new / name).read_bytes())}"
        else:
            assert text == os.readlink(hub_cache.snapshot / name)
    assert os.path.samefile(new / SHARD, hub_cache.snapshot / SHARD)
    names = {path.name for path in new.iterdir()}
    assert names == {path.name for path in hub_cache.snapshot.iterdir()} | {".ckpt-patch"}
    assert sorted(path.name for path in folder.iterdir()) == ["blobs", "refs", "snapshots", "trees"]


def test_it_adds_the_bytes_of_two_files_and_no_weights(hub_cache: Cache) -> None:
    blobs = hub_cache.folder / "blobs"
    before = {path.name: path.lstat().st_ino for path in blobs.iterdir()}
    made = make(hub_cache.snapshot)
    after = {path.name: path.lstat().st_ino for path in blobs.iterdir()}
    assert before.items() <= after.items()
    added = {name: (blobs / name).read_bytes() for name in after.keys() - before.keys()}
    patched = [Path(made.path, name).read_bytes() for name in PATCHED]
    assert sorted(added.values()) == sorted(patched)


def test_the_library_reads_our_listing_as_its_own(hub_cache: Cache, made: CacheRevision) -> None:
    from huggingface_hub import get_cached_repo_tree

    ours = {file.path: file for file in get_cached_repo_tree(REPO, revision=NAME)}
    theirs = {file.path: file for file in get_cached_repo_tree(REPO, revision=COMMIT)}
    assert ours.keys() == theirs.keys() == FILES.keys()
    for name, file in ours.items():
        data = Path(made.path, name).read_bytes()
        assert file.size == len(data)
        if name in PATCHED:
            assert file.blob_id == git_sha1(data)
        else:
            assert file == theirs[name]
    assert hub_cache.hub.log == []


def test_the_hash_follows_from_repository_source_and_content(
    hub_cache: Cache, template: Path, tmp_path: Path
) -> None:
    first = make(hub_cache.snapshot)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(template, elsewhere, symlinks=True)
    second = make(elsewhere / "hub" / hub_cache.folder.name / "snapshots" / COMMIT, "other-name")
    assert first.commit == second.commit
    assert first.path != second.path
    assert len(first.commit) == 40
    assert make(hub_cache.folder / "snapshots" / OTHER, "other").commit != first.commit
    same_edits = Target.parse("sm120", engine="vllm==0.17.1")
    assert make(hub_cache.snapshot, "again", same_edits).commit == first.commit
    fine = Target.parse("sm120", engine="vllm==0.33.0")
    assert make(hub_cache.snapshot, "unpatched", fine).commit not in {first.commit, COMMIT}


def test_a_listing_where_the_library_kept_none(hub_cache: Cache) -> None:
    """As after an older release: what the large files are is told by the names of their blobs."""
    from huggingface_hub import _tree_cache

    (hub_cache.folder / "trees" / f"{COMMIT}.json").unlink()
    made = make(hub_cache.snapshot)
    files = _tree_cache.read_tree_cache(str(hub_cache.folder), made.commit)
    assert files is not None
    assert files.keys() == FILES.keys()
    weights = FILES[SHARD]
    digest = hashlib.sha256(weights).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize "
    assert (files[SHARD].lfs_sha256, files[SHARD].lfs_size) == (digest, len(weights))
    assert files[SHARD].blob_id == git_sha1(f"{pointer}{len(weights)}\n".encode())
    assert files["README.md"].blob_id == git_sha1(FILES["README.md"])


# --- How it is found: the library's calls, by name and by hash, offline and online


def vllm_offline(revision: str) -> str:
    """``get_model_path`` (vllm/transformers_utils/repo_utils.py): what HF_HUB_OFFLINE=1 does."""
    from huggingface_hub import HfApi, snapshot_download

    found = HfApi().resolve_revision(REPO, revision=revision, local_files_only=True)
    return snapshot_download(REPO, revision=found, local_files_only=True, ignore_patterns="*")


def whole(revision: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(REPO, revision=revision)


def weights_alone(revision: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(REPO, revision=revision, allow_patterns=["*.safetensors"])


def here_only(revision: str) -> str:
    from huggingface_hub import snapshot_download

    return snapshot_download(REPO, revision=revision, local_files_only=True)


def one_file(revision: str) -> str:
    from huggingface_hub import hf_hub_download

    return str(Path(hf_hub_download(REPO, "config.json", revision=revision)).parent)


def resolved(revision: str) -> str:
    from huggingface_hub import HfApi

    found = HfApi().resolve_revision(REPO, revision=revision)
    return here_only(found.resolved)


def optional_file(revision: str) -> str:
    from huggingface_hub import hf_hub_download

    return hf_hub_download(REPO, "adapter_config.json", revision=revision)


CALLS = (whole, weights_alone, here_only, one_file, resolved, vllm_offline)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["name", "hash"])
def test_found_offline(
    hub_cache: Cache, made: CacheRevision, call: Callable[[str], str], how: str
) -> None:
    hub_cache.offline()
    assert call(NAME if how == "name" else made.commit) == made.path


@pytest.mark.parametrize("call", CALLS)
def test_found_online_by_the_hash_without_a_request(
    hub_cache: Cache, made: CacheRevision, call: Callable[[str], str]
) -> None:
    assert call(made.commit) == made.path
    assert hub_cache.hub.log == []


@pytest.mark.parametrize("call", [whole, weights_alone, one_file, resolved])
def test_not_found_online_by_the_name(
    hub_cache: Cache, made: CacheRevision, call: Callable[[str], str]
) -> None:
    """The Hub has no such revision; what the user is told in the last lines of the output."""
    from huggingface_hub.errors import RevisionNotFoundError

    with pytest.raises(RevisionNotFoundError):
        call(NAME)
    assert {request.status for request in hub_cache.hub.log} == {404}
    assert here_only(NAME) == vllm_offline(NAME) == made.path


def test_optional_files_are_not_found_online_and_missing_offline(
    hub_cache: Cache, made: CacheRevision
) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError

    with pytest.raises(RevisionNotFoundError):
        optional_file(made.commit)
    hub_cache.offline()
    with pytest.raises(LocalEntryNotFoundError):
        optional_file(made.commit)


@pytest.mark.parametrize(
    ("how", "offline", "found"),
    [("name", True, True), ("hash", True, True), ("path", True, True), ("hash", False, True),
     ("name", False, False)],
)  # fmt: skip
def test_transformers(
    hub_cache: Cache, made: CacheRevision, how: str, *, offline: bool, found: bool
) -> None:
    if not olah.installed():
        pytest.skip("transformers is not here: make peers")
    words = {"name": [REPO, NAME], "hash": [REPO, made.commit], "path": [made.path, "main"]}[how]
    code = (
        "import sys\nfrom transformers import AutoConfig\n"
        "found = AutoConfig.from_pretrained(sys.argv[1], revision=sys.argv[2])\n"
        "print(found.quantization_config['kv_cache_scheme'])"
    )
    done = hub_cache.process(
        str(olah.PEERS / "python"), "-c", code, *words, HF_HUB_OFFLINE="1" if offline else "0"
    )
    assert (done.returncode == 0, done.stdout) == (found, "None\n" if found else ""), done.stderr


# --- What the library's command makes of it


def listed(cache: Cache) -> dict[str, list[str]]:
    done = cache.hf("cache", "ls", "--revisions", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return {each["revision"]: each["refs"] for each in json.loads(done.stdout)}


def test_listed_and_verified(hub_cache: Cache, made: CacheRevision) -> None:
    assert listed(hub_cache) == {COMMIT: ["main"], OTHER: ["refs/pr/1"], made.commit: [NAME]}
    assert hub_cache.hf("cache", "verify", REPO).returncode == 0
    done = hub_cache.hf("cache", "verify", REPO, "--revision", NAME)
    assert done.returncode == 1  # which is why verify of our own is named
    assert "Revision not found" in done.stderr


def test_prune_keeps_it_even_without_the_original(hub_cache: Cache, made: CacheRevision) -> None:
    whole("main")
    hub_cache.moves()
    whole("main")
    hub_cache.gone = {COMMIT}
    done = hub_cache.hf("cache", "prune", "-y")
    assert "Deleted 1 unreferenced revision(s)" in done.stdout
    assert not hub_cache.snapshot.exists()
    for name in FILES:
        data = Path(made.path, name).read_bytes()
        assert name in PATCHED or data == FILES[name]
    hub_cache.offline()
    assert here_only(NAME) == made.path
    assert mirroring.verify(made.path).problems == ()


def test_without_its_name_prune_deletes_it(hub_cache: Cache, made: CacheRevision) -> None:
    (hub_cache.folder / "refs" / NAME).unlink()
    assert hub_cache.hf("cache", "prune", "-y").returncode == 0
    assert not Path(made.path).exists()
    assert hub_cache.snapshot.exists()


def test_removing_the_source_keeps_it_and_removing_the_repository_does_not(
    hub_cache: Cache, made: CacheRevision, run: Run
) -> None:
    """Mirrors elsewhere: symbolic links are then links to nothing, hard links stay."""
    hub_cache.gone = {COMMIT}
    for link in ("symlink", "hardlink"):
        assert run("mirror", *TARGET, "--link", link, str(hub_cache.snapshot), link).code == 0
    assert hub_cache.hf("cache", "rm", COMMIT, "-y").returncode == 0
    assert not hub_cache.snapshot.exists()
    assert Path(made.path, SHARD).read_bytes() == FILES[SHARD]
    assert scheme(made.path) is None
    hub_cache.gone = {COMMIT, OTHER, "refs"}
    assert hub_cache.hf("cache", "rm", f"model/{REPO}", "-y").returncode == 0
    assert not hub_cache.folder.exists()
    assert not Path("symlink", SHARD).exists()
    assert Path("hardlink", SHARD).read_bytes() == FILES[SHARD]
    assert f"dangling  {SHARD}" in run("verify", "symlink").out
    assert run("verify", "hardlink").code == 0


def test_it_is_removed_by_the_command_that_the_output_names(hub_cache: Cache, run: Run) -> None:
    before = hub_cache.kept()
    lines = run(*MIRROR).out.splitlines()
    command = next(line for line in lines if line.startswith("Remove it: "))
    words = command.removeprefix("Remove it: hf ").split()
    done = hub_cache.hf(*words, "-y")
    assert done.returncode == 0, done.stderr
    assert hub_cache.kept() == before
    assert run(*MIRROR).code == 0


# --- Again, and again with something else


def test_a_second_run_writes_nothing(
    hub_cache: Cache, made: CacheRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(hub_cache.folder)
    calls: list[str] = []
    monkeypatch.setattr(fsio, "hook", lambda call, _file: calls.append(call))
    again = make(hub_cache.snapshot)
    assert (again.outcome, again.commit, calls) == ("current", made.commit, [])
    assert snapshot(hub_cache.folder) == before


def test_a_new_source_gets_the_name(hub_cache: Cache, made: CacheRevision, run: Run) -> None:
    hub_cache.moves()
    done = run(*MIRROR)
    assert done.code == 0, done.err
    new = hub_cache.ref(NAME)
    assert f"The revision {NAME} of {REPO} is now {new}; `hf cache prune` deletes" in done.out
    assert new != made.commit
    root = hub_cache.folder / "snapshots" / new
    assert (root / "README.md").read_bytes() == b"# newer\n"
    assert scheme(root) is None
    assert scheme(made.path) is None  # whoever was started with the hash still finds it
    assert listed(hub_cache)[made.commit] == []


def test_another_target_gets_the_name(hub_cache: Cache, made: CacheRevision) -> None:
    fine = make(hub_cache.snapshot, target=Target.parse("sm120", engine="vllm==0.33.0"))
    assert (fine.outcome, hub_cache.ref(NAME)) == ("replaced", fine.commit)
    assert scheme(fine.path) is not None
    back = make(hub_cache.snapshot)
    assert (back.outcome, hub_cache.ref(NAME)) == ("replaced", made.commit)


def test_a_listing_that_is_gone_is_written_again(hub_cache: Cache, made: CacheRevision) -> None:
    path = hub_cache.folder / "trees" / f"{made.commit}.json"
    text = path.read_bytes()
    path.unlink()
    assert make(hub_cache.snapshot).outcome == "made"
    assert path.read_bytes() == text


def test_after_apply_in_cache_the_patched_file_gets_a_blob(hub_cache: Cache, run: Run) -> None:
    hub_cache.replaced = PATCHED
    direct = make(hub_cache.snapshot)
    assert run("apply", *TARGET, "--in-cache", REPO).code == 0
    made = make(hub_cache.snapshot, "other")
    assert made.commit == direct.commit  # the same content of the same commit
    assert Path(made.path, "config.json").is_symlink()
    assert run("undo", str(hub_cache.snapshot)).code == 0
    assert scheme(made.path) is None


def test_a_blob_in_the_store_that_repositories_share(hub_cache: Cache) -> None:
    """Its list of users names the repository's own entry, so our link leads there too."""
    digest = os.path.basename(os.readlink(hub_cache.snapshot / SHARD))
    entry, store = hub_cache.folder / "blobs" / digest, hub_cache.home / "hub" / "blobs" / "ab"
    store.mkdir(parents=True)
    os.rename(entry, store / ("ab" * 32))
    entry.symlink_to(f"../../blobs/ab/{'ab' * 32}")
    made = make(hub_cache.snapshot)
    assert os.readlink(Path(made.path, SHARD)) == f"../../blobs/{digest}"
    assert Path(made.path, SHARD).read_bytes() == FILES[SHARD]
    entry.unlink()
    os.rename(store / ("ab" * 32), entry)


# --- Our own verify


def test_verify(hub_cache: Cache, made: CacheRevision, run: Run) -> None:
    done = run("verify", "--hash", made.path)
    assert done.code == 0
    assert "as it was made, 6 files. Weights whose hash is right: 1 file." in done.out
    assert run("check", *TARGET, made.path).code == 0
    hub_cache.offline()
    assert run("check", *TARGET, f"{REPO}@{NAME}").code == 0
    readme = hub_cache.snapshot / "README.md"
    text = os.readlink(readme)
    readme.unlink()
    source = os.path.relpath(hub_cache.snapshot)
    options = f"{' '.join(TARGET)} --recipe kv-cache-model-dtype"
    again = f"ckpt-patch mirror {options} {source} --cache-revision {NAME}\n"
    assert run("verify", made.path).out.endswith(f"Make it anew: {again}")
    readme.symlink_to(text)
    link = Path(made.path, "config.json")
    link.unlink()
    link.symlink_to(os.readlink(hub_cache.snapshot / "config.json"))
    assert run("verify", "-q", made.path).out == "edited config.json\n"


def test_a_name_that_only_the_cache_knows_is_told(
    hub_cache: Cache, made: CacheRevision, run: Run
) -> None:
    typed = f"{REPO}@{NAME}"
    done = run("check", *TARGET, typed)
    refused(done, 4, f"the repository has no revision {NAME}, and the cache has one of that name")
    command = done.err.rpartition(": ckpt-patch ")[2].split()
    assert run(*command).code == 0
    assert run("check", *TARGET, "--no-network", typed).code == 0
    assert run("verify", typed).out.startswith(os.path.relpath(made.path))
    refused(run("check", *TARGET, f"{REPO}@none"), 4, "git ls-remote ")
    assert "cache" not in run("check", *TARGET, f"{REPO}@none").err
    assert hub_cache.ref(NAME) == made.commit


# --- Names


@pytest.mark.parametrize(
    "name",
    ["main", "Main", "master", "HEAD", "refs", "Thumbs.db", "desktop.ini", "", ".hidden", "-x",
     "a/b", "../x", "a b", "a\n", "ü", "x" * 101, COMMIT, "c0ffee0", "f" * 64],
)  # fmt: skip
def test_names_that_are_none(hub_cache: Cache, run: Run, name: str) -> None:
    before = snapshot(hub_cache.folder)
    hub_cache.no_sockets()
    done = run("mirror", *TARGET, str(hub_cache.snapshot), f"--cache-revision={name}")
    assert done.code == 2
    assert "Hint: --cache-revision patched-sm120" in done.err
    assert snapshot(hub_cache.folder) == before


@pytest.mark.parametrize("content", [OTHER, "e" * 40, "", "../../..", None])
def test_a_branch_or_tag_in_the_cache_is_not_overwritten(
    hub_cache: Cache, run: Run, content: str | None
) -> None:
    ref = hub_cache.folder / "refs" / "stable"
    if content is None:
        ref.mkdir()  # of a branch stable/x
    else:
        ref.write_text(content)
    before = snapshot(hub_cache.folder)
    done = run("mirror", *TARGET, str(hub_cache.snapshot), "--cache-revision", "stable")
    assert (done.code, done.out) == (3, "")
    assert "the cache has a branch or tag of that name" in done.err
    assert "Hint: choose another name: --cache-revision stable-ckpt-patch" in done.err
    assert snapshot(hub_cache.folder) == before


def test_a_branch_that_only_the_hub_has_is_not_hidden(hub_cache: Cache, run: Run) -> None:
    """The library would take the Hub's instead, unpatched, as soon as it has a network."""
    hub_cache.hub.repositories[REPO].refs += ("v1.0",)
    before = snapshot(hub_cache.folder)
    done = run("mirror", *TARGET, REPO, "--cache-revision", "v1.0")
    assert done.code == 3
    assert f"{REPO} has a branch or tag of that name on the Hub" in done.err
    assert snapshot(hub_cache.folder) == before
    with pytest.raises(RefusedError):
        patcher.mirror_cache_revision(REPO, "v1.0", VLLM_016)


def test_a_ref_that_comes_at_the_last_moment_is_not_overwritten(
    hub_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = hub_cache.folder / "refs" / NAME

    def hook(call: str, file: str) -> None:
        if (call, file) == ("link", NAME):
            ref.write_text(OTHER)

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(RefusedError, match="has a branch or tag of that name"):
        make(hub_cache.snapshot)
    assert ref.read_text() == OTHER


# --- What cannot be done


def refused(done: Done, code: int, *words: str) -> None:
    assert (done.code, done.out) == (code, "")
    for word in words:
        assert word in done.err


def test_a_cache_without_links(hub_cache: Cache, run: Run) -> None:
    from huggingface_hub import constants, snapshot_download

    shutil.rmtree(hub_cache.folder)
    hub_cache.gone, hub_cache.replaced = {OTHER, "refs"}, tuple(FILES)
    hub_cache.patch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    snapshot_download(REPO)
    before = snapshot(hub_cache.folder)
    done = run(*MIRROR)
    refused(done, 3, f"{SHARD}: is a file of its own here, not a link to a blob")
    assert "need a copy of the weights. Nothing was written" in done.err
    assert f"weights are hard links: ckpt-patch mirror {' '.join(TARGET)}" in done.err
    assert snapshot(hub_cache.folder) == before


def test_a_file_system_without_links(hub_cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(call: str, _file: str) -> None:
        if call == "symlink":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    before = snapshot(hub_cache.folder)
    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(RefusedError, match="symbolic links are not possible here"):
        make(hub_cache.snapshot)
    assert snapshot(hub_cache.folder) == before


def test_without_hard_links_the_names_are_given_by_renames(
    hub_cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(call: str, _file: str) -> None:
        if call == "link":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fsio, "hook", hook)
    made = make(hub_cache.snapshot)
    assert hub_cache.ref(NAME) == made.commit
    assert mirroring.verify(made.path).problems == ()


@pytest.mark.parametrize("damage", ["link", "manifest", "blob", "gone"])
def test_a_revision_that_somebody_has_changed(made: CacheRevision, run: Run, damage: str) -> None:
    config = Path(made.path, "config.json")
    blob = config.resolve()
    acts: dict[str, Callable[[], object]] = {
        "link": config.unlink,
        "manifest": Path(made.path, ".ckpt-patch", "mirror.json").unlink,
        "blob": lambda: blob.write_bytes(b"{}"),
        "gone": blob.unlink,
    }
    acts[damage]()
    done = run(*MIRROR)
    refused(done, 3, "Nothing was written", "then run the command again: ")
    command = done.err.rpartition("again: ")[2].strip()
    assert os.system(command) == 0  # what is to be pasted helps
    assert run(*MIRROR).code == 0
    assert scheme(made.path) is None
    assert mirroring.verify(made.path).problems == ()


@pytest.mark.parametrize("name", [f"@{NAME}", "@hash", "path"])
def test_a_revision_of_our_own_is_no_source(
    hub_cache: Cache, made: CacheRevision, run: Run, name: str
) -> None:
    source = {"path": made.path, "@hash": f"{REPO}@{made.commit}"}.get(name, f"{REPO}{name}")
    before = snapshot(hub_cache.folder)
    done = run("mirror", *TARGET, source, "--cache-revision", "twice")
    refused(done, 3, "is a revision that ckpt-patch made, not one of the repository")
    assert f"ckpt-patch mirror {' '.join(TARGET)} {REPO}@{COMMIT} --cache-revision" in done.err
    assert snapshot(hub_cache.folder) == before


def test_not_here_and_offline(hub_cache: Cache, run: Run) -> None:
    hub_cache.offline()
    done = run("mirror", *TARGET, "acme/other", "--cache-revision", NAME)
    refused(done, 4, "is not in the Hub cache", "Hint: where there is a network: hf download")


def test_a_snapshot_without_its_weights(hub_cache: Cache, run: Run) -> None:
    (hub_cache.snapshot / SHARD).unlink()
    done = run("mirror", "--no-network", *TARGET, REPO, "--cache-revision", NAME)
    refused(done, 4, "is not complete here", f"hf download {REPO} --revision {COMMIT}")
    assert hub_cache.ref(NAME) == ""
    done = run(*MIRROR)  # with a network the rest is downloaded first
    assert done.code == 0, done.err
    assert scheme(hub_cache.folder / "snapshots" / hub_cache.ref(NAME)) is None


def test_a_link_that_leads_nowhere(hub_cache: Cache, run: Run) -> None:
    hub_cache.gone = {COMMIT}
    (hub_cache.snapshot / SHARD).resolve().unlink()
    done = run("mirror", "--no-network", *TARGET, REPO, "--cache-revision", NAME)
    assert (done.code, done.out) == (4, "")
    assert SHARD in done.err
    assert hub_cache.ref(NAME) == ""


def test_a_directory_that_is_in_no_cache(hub_cache: Cache, run: Run, tmp_path: Path) -> None:
    shutil.copytree(hub_cache.snapshot, tmp_path / "plain")
    done = run("mirror", *TARGET, "plain", "--cache-revision", NAME)
    refused(done, 2, "is in no Hub cache", "ckpt-patch mirror")


@pytest.mark.parametrize("closed", ["", "refs", "blobs"])
def test_a_cache_that_cannot_be_written(
    hub_cache: Cache, run: Run, tmp_path: Path, closed: str
) -> None:
    folder = hub_cache.folder / closed
    folder.chmod(0o555)
    make_reachable(tmp_path)
    source = str(hub_cache.snapshot)
    done = as_nobody(run, "mirror", *TARGET, source, "--cache-revision", NAME)
    refused(done, 3, "cannot be written. Nothing was written", f"{source} Kimi-K2.5-NVFP4-sm120")
    folder.chmod(0o755)


def test_blobs_on_another_disk(hub_cache: Cache, run: Run, tmp_path: Path) -> None:
    blobs = hub_cache.folder / "blobs"
    shutil.move(blobs, tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")
    hub_cache.gone = {COMMIT, OTHER}
    done = run(*MIRROR)
    refused(done, 3, "Nothing was written")


def test_a_disk_that_is_full(hub_cache: Cache, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(call: str, _file: str) -> None:
        if call == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = snapshot(hub_cache.folder)
    monkeypatch.setattr(fsio, "hook", hook)
    done = run(*MIRROR)
    refused(done, 5, "No space left on device", f"The revision {NAME} is as it was before")
    assert snapshot(hub_cache.folder) == before


# --- The command


def test_in_words(hub_cache: Cache, run: Run) -> None:
    done = run(*MIRROR)
    commit = hub_cache.ref(NAME)
    path = f"home/hub/{hub_cache.folder.name}/snapshots/{commit}"
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[2:] == [
        "KV cache: 35,136 -> 70,272 bytes per token (2 times).",
        "New in the cache: 2 files. The other 4, weights among them, are links to blobs that are "
        "there; none was copied.",
        f"Made the revision {NAME} of {REPO} in the cache: {commit}. Weights were neither read "
        "nor changed.",
        "Serve it:",
        f"  HF_HUB_OFFLINE=1 vllm serve {REPO} --revision {NAME}",
        "Without HF_HUB_OFFLINE=1 the Hub is asked, and does not know the name; "
        f"--revision {commit} then finds the files that are here, and no others.",
        f"Look at it later: ckpt-patch verify {path}",
        f"Remove it: hf cache rm {commit}",
    ]
    again = run(*MIRROR)
    assert again.out.startswith(f"Nothing to do: {NAME} of {REPO} is this revision already")
    assert again.out.splitlines()[1:] == done.out.splitlines()[5:]


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("sglang==0.5.5", f"  HF_HUB_OFFLINE=1 sglang serve --model-path {REPO} --revision {NAME}"),
        ("trtllm==1.2.1", "  trtllm-serve home/hub/"),
    ],
)
@pytest.mark.usefixtures("hub_cache")
def test_how_other_engines_are_started(run: Run, engine: str, command: str) -> None:
    words = ("-t", "h100", "-e", engine, "--recipe", "kv-cache-model-dtype")
    done = run("mirror", *words, REPO, "--cache-revision", NAME)
    assert done.code == 0, done.err
    serve = done.out.splitlines().index("Serve it:")
    assert done.out.splitlines()[serve + 1].startswith(command)


def test_quiet_prints_the_hash_alone(hub_cache: Cache, run: Run) -> None:
    done = run(*MIRROR, "-q")
    assert (done.code, done.out, done.err) == (0, f"{hub_cache.ref(NAME)}\n", "")
    assert run(*MIRROR, "-q").out == done.out
    assert whole(done.out.strip()) == str(hub_cache.folder / "snapshots" / done.out.strip())


def test_json(hub_cache: Cache, run: Run) -> None:
    document = json.loads(run(*MIRROR, "--json").out)
    commit = hub_cache.ref(NAME)
    assert document["schema"] == "ckpt-patch/mirror@1"
    assert document["outcome"] == "made"
    assert document["destination"] == str(hub_cache.folder / "snapshots" / commit)
    blobs = sorted(
        os.path.basename(os.readlink(hub_cache.folder / "snapshots" / commit / name))
        for name in PATCHED
    )
    assert document["revision"] == {
        "repo_id": REPO,
        "name": NAME,
        "commit": commit,
        "source_commit": COMMIT,
        "new_blobs": blobs,
    }
    kinds = {file["path"]: file["kind"] for file in document["files"]}
    assert [name for name, kind in kinds.items() if kind == "patched"] == list(PATCHED)
    assert {file["link"] for file in document["files"]} == {"symlink"}
    assert document["plan"]["recipe"]["id"] == "kv-cache-model-dtype"
    assert json.loads(run(*MIRROR, "--json").out)["outcome"] == "current"


def test_dry_run_and_passthrough_write_nothing(hub_cache: Cache, run: Run) -> None:
    before = snapshot(hub_cache.folder)
    done = run(*MIRROR, "--dry-run")
    assert '+        "kv_cache_scheme": null,' in done.out
    assert done.out.endswith("Nothing was made (--dry-run).\n")
    planned = run(*MIRROR, "--dry-run", "-q").out
    document = json.loads(run(*MIRROR, "--dry-run", "--json").out)
    assert (document["outcome"], document["revision"]["commit"]) == ("dry-run", planned.strip())
    fine = ("mirror", "-q", "--passthrough", "-t", "sm120", "-e", "vllm==0.33.0", REPO)
    assert run(*fine, "--cache-revision", NAME).out == f"{COMMIT}\n"
    assert snapshot(hub_cache.folder) == before
    assert run(*MIRROR, "-q").out == planned


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((REPO,), "DEST is missing"),
        ((REPO, "dest", "--cache-revision", NAME), "goes without DEST"),
        (
            (REPO, "--link", "copy", "--cache-revision", NAME),
            "goes without --link",
        ),
        (
            (REPO, "--private", "--cache-revision", NAME),
            "goes without --private",
        ),
    ],
)
def test_usage(run: Run, words: tuple[str, ...], message: str) -> None:
    done = run("mirror", *TARGET, *words)
    refused(done, 2, message, "ckpt-patch mirror ")


def test_the_library_call(hub_cache: Cache) -> None:
    made = patcher.mirror_cache_revision(REPO, NAME, VLLM_016)
    assert (made.outcome, made.commit) == ("made", hub_cache.ref(NAME))
    assert patcher.mirror_cache_revision(hub_cache.snapshot, NAME, VLLM_016).outcome == "current"
    with pytest.raises(CkptPatchError):
        patcher.mirror_cache_revision(REPO, "main", VLLM_016)
    assert NEWER not in os.listdir(hub_cache.folder / "snapshots")
