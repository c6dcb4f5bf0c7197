"""``apply --in-cache``, with the real library, its command, and a Hub on the loopback interface."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cached import (
    FILES,
    NEWER,
    OTHER,
    PATCHED,
    REPO,
    SHARD,
    TARGET,
    Cache,
    cache,
    filled,
    needs_new_library,
    serving,
)
from faults import harness
from hub_server import COMMIT
from hubs import olah
from running import Run, as_nobody, make_reachable, snapshot

import patcher
from patcher import transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hub_server import Hub

pytestmark = needs_new_library

APPLY = ("apply", *TARGET, "--in-cache")


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
        made.replaced = PATCHED
        yield made


def scheme(snapshot: Path | str) -> Any:
    """What config.json says about the KV cache."""
    config = json.loads(Path(snapshot, "config.json").read_bytes())
    return config["quantization_config"]["kv_cache_scheme"]


def links(snapshot_: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a snapshot, with kinds, modes and times, but not the record."""
    return {name: entry for name, entry in snapshot(snapshot_).items() if ".ckpt-patch" not in name}


# --- Without the option


def test_without_the_option_three_ways_are_named(hub_cache: Cache, run: Run) -> None:
    before = snapshot(hub_cache.folder)
    done = run("apply", *TARGET, REPO)
    options = "--target sm120 --engine vllm==0.16.0"
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines() == [
        f"Error: {REPO}: is a repository on the Hub, and its files in the cache are shared. "
        "Nothing was written",
        f"Hint: a copy whose weights are links: ckpt-patch mirror {options} {REPO} "
        "Kimi-K2.5-NVFP4-sm120",
        f"Hint: a revision of its own in the cache: ckpt-patch mirror {options} {REPO} "
        "--cache-revision patched-sm120",
        f"Hint: the snapshot in the cache: ckpt-patch apply --in-cache {options} {REPO}",
    ]
    assert snapshot(hub_cache.folder) == before
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    with pytest.raises(patcher.CkptPatchError, match="is a repository on the Hub"):
        patcher.apply(REPO, target)


@pytest.mark.parametrize("way", [0, 1, 2])
def test_each_way_can_be_pasted(hub_cache: Cache, run: Run, way: int) -> None:
    hint = run("apply", *TARGET, REPO).err.splitlines()[1 + way]
    words = shlex.split(hint.partition(": ckpt-patch ")[2])
    assert run(*words).code == 0
    places = [
        Path("Kimi-K2.5-NVFP4-sm120"),
        hub_cache.folder / "snapshots" / (hub_cache.ref("patched-sm120") or "none"),
        hub_cache.snapshot,
    ]
    patched = [place.is_dir() and scheme(place) is None for place in places]
    assert patched == [number == way for number in range(3)]


def test_a_saved_plan_is_for_the_cache_too(hub_cache: Cache, run: Run) -> None:
    assert run("plan", *TARGET, "-o", "plan.json", REPO).code == 0
    refused = run("apply", "--plan", "plan.json", REPO)
    assert refused.code == 3
    assert "apply --in-cache --target sm120 --engine vllm==0.16.0" in refused.err
    done = run("apply", "--in-cache", "--plan", "plan.json", REPO)
    assert done.code == 0, done.err
    assert scheme(hub_cache.snapshot) is None


# --- What it does


@pytest.mark.parametrize(
    ("typed", "commit"),
    [
        (REPO, COMMIT),
        (f"hf://{REPO}", COMMIT),
        (f"{REPO}@{COMMIT}", COMMIT),
        (f"{REPO}@refs/pr/1", OTHER),
        (f"{REPO}@{OTHER}", OTHER),
        ("home/hub/models--acme--Kimi-K2.5-NVFP4", COMMIT),
        (f"home/hub/models--acme--Kimi-K2.5-NVFP4/snapshots/{OTHER}", OTHER),
    ],
)
def test_the_snapshot_alone_is_patched(hub_cache: Cache, run: Run, typed: str, commit: str) -> None:
    """And undone: every link is back as it was, with its own time."""
    hub_cache.no_sockets()  # although the network is allowed: all that is needed is here
    patched = hub_cache.folder / "snapshots" / commit
    other = hub_cache.folder / "snapshots" / ({COMMIT, OTHER} - {commit}).pop()
    before, there = links(patched), snapshot(other)
    done = run(*APPLY, typed)
    assert done.code == 0, done.err
    assert "the shared blob stays as it is" in done.err.lower()
    for name in PATCHED:
        assert not (patched / name).is_symlink()
    assert scheme(patched) is None
    unchanged = {name: entry for name, entry in before.items() if name not in PATCHED}
    assert {name: entry for name, entry in links(patched).items() if name not in PATCHED} == (
        unchanged
    )
    assert snapshot(other) == there
    assert f"Undo: ckpt-patch undo {os.path.relpath(patched)}" in done.out
    assert run(*APPLY, typed).out.startswith("Nothing to do: already applied as 0001")
    assert run("undo").code == 0  # the checkpoint that was patched last
    assert links(patched) == before


def test_other_commands_take_the_id_too(hub_cache: Cache, run: Run) -> None:
    hub_cache.no_sockets()
    before = links(hub_cache.snapshot)
    assert run(*APPLY, REPO).code == 0
    assert run("status", "-q", REPO).out == "patched\n"
    assert run("log", "-q", REPO).out == "0001.applied\n"
    assert run("diff", "-q", REPO).out.split() == list(PATCHED)
    assert run("recover", REPO).out.startswith("Nothing to recover")
    assert f"{hub_cache.snapshot}/config.json:/m/config.json:ro" in (
        run("mounts", "--at", "/m", f"hf://{REPO}").out
    )
    assert run("undo", REPO).code == 0
    assert links(hub_cache.snapshot) == before
    for command in ("undo", "log", "diff", "recover", "verify"):
        done = run(command, "acme/other")
        assert done.code == 4
        assert done.err.startswith("Error: acme/other: is not in the Hub cache")


def test_an_id_that_is_all_here_says_which_commit_it_is(hub_cache: Cache, run: Run) -> None:
    hub_cache.moves()
    done = run(*APPLY, REPO)
    note = f"Note: {REPO} is {COMMIT} in the cache; the Hub was not asked for a newer commit."
    assert note in done.err.splitlines()
    assert hub_cache.hub.log == []


def test_the_library_call(hub_cache: Cache) -> None:
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    record = patcher.apply(REPO, target, in_cache=True)
    assert record is not None
    assert {file.kind for file in record.files} == {"link"}
    assert scheme(hub_cache.snapshot) is None
    patcher.undo(hub_cache.snapshot)
    assert (hub_cache.snapshot / "config.json").is_symlink()


def test_dry_run_and_a_target_that_needs_no_patch_write_nothing(hub_cache: Cache, run: Run) -> None:
    before = snapshot(hub_cache.folder)
    done = run(*APPLY, "--dry-run", REPO)
    assert done.code == 0
    assert '+        "kv_cache_scheme": null,' in done.out
    fine = run("apply", "--in-cache", "--target", "sm120", "--engine", "vllm==0.33.0", REPO)
    assert "Nothing to do: no patch is needed on this target" in fine.out
    assert snapshot(hub_cache.folder) == before


def test_metadata_that_is_not_here_is_fetched_and_weights_are_not(
    hub_cache: Cache, run: Run
) -> None:
    shutil.rmtree(hub_cache.folder)
    hub_cache.gone = {COMMIT, OTHER, "refs"}
    done = run(*APPLY, REPO)
    assert done.code == 0, done.err
    assert "the shared blob stays as it is" in done.err.lower()
    assert sorted(path.name for path in hub_cache.snapshot.iterdir()) == [".ckpt-patch", *PATCHED]
    assert hub_cache.hub.weight_bytes() == 0
    from huggingface_hub import snapshot_download

    assert scheme(snapshot_download(REPO)) is None
    assert (hub_cache.snapshot / SHARD).is_symlink()


# --- What the library does to it afterwards, as the user is told


def told(err: str, *sentences: str) -> None:
    for sentence in sentences:
        assert sentence in err


@pytest.fixture
def applied(hub_cache: Cache, run: Run) -> str:
    done = run(*APPLY, REPO)
    assert (done.code, scheme(hub_cache.snapshot)) == (0, None)
    return done.err


@pytest.mark.usefixtures("applied")
def test_downloads_keep_it(hub_cache: Cache) -> None:
    from huggingface_hub import hf_hub_download, snapshot_download

    assert scheme(snapshot_download(REPO)) is None
    assert scheme(Path(hf_hub_download(REPO, "config.json")).parent) is None
    hub_cache.offline()
    assert scheme(snapshot_download(REPO)) is None
    assert scheme(snapshot_download(REPO, local_files_only=True)) is None


def test_a_forced_download_leaves_it_patched(hub_cache: Cache, applied: str) -> None:
    from huggingface_hub import hf_hub_download, snapshot_download

    told(applied, "a forced download will leave it patched")
    snapshot_download(REPO, force_download=True)
    hf_hub_download(REPO, "config.json", force_download=True)
    assert scheme(hub_cache.snapshot) is None
    assert not (hub_cache.snapshot / "config.json").is_symlink()


def test_verify_of_the_library_calls_it_wrong_until_undone(
    hub_cache: Cache, applied: str, run: Run
) -> None:
    told(applied, "`hf cache verify` will call the file wrong")
    done = hub_cache.hf("cache", "verify", REPO)
    assert done.returncode == 1
    wrong = [line.split(":")[0].strip(" -") for line in done.stdout.splitlines() if " - " in line]
    assert wrong == list(PATCHED)
    assert "local file(s) do not exist on the remote" in done.stderr  # the record
    assert run("undo", str(hub_cache.snapshot)).code == 0
    assert hub_cache.hf("cache", "verify", REPO).returncode == 0


def test_a_new_upstream_revision_comes_unpatched_and_prune_deletes_this_one(
    hub_cache: Cache, applied: str
) -> None:
    from huggingface_hub import snapshot_download

    told(
        applied,
        "A new upstream revision will come unpatched, and `hf cache prune` then deletes this one",
    )
    hub_cache.moves()
    new = snapshot_download(REPO)
    assert (Path(new).name, scheme(new) is None) == (NEWER, False)
    assert scheme(hub_cache.snapshot) is None
    hub_cache.gone = {COMMIT}
    done = hub_cache.hf("cache", "prune", "-y")
    assert "Deleted 1 unreferenced revision(s)" in done.stdout
    assert not hub_cache.snapshot.exists()
    assert scheme(new) is not None
    told(applied, "ckpt-patch mirror --cache-revision NAME lasts")  # test_cache_revision.py


@pytest.mark.usefixtures("applied")
def test_the_command_lists_it_without_a_warning(hub_cache: Cache) -> None:
    done = hub_cache.hf("cache", "ls", "--revisions", "--format", "json")
    assert done.returncode == 0
    listed = {each["revision"]: each["refs"] for each in json.loads(done.stdout)}
    assert listed == {COMMIT: ["main"], OTHER: ["refs/pr/1"]}
    assert "warning" not in done.stderr.lower()


@pytest.mark.usefixtures("applied")
def test_transformers_reads_the_patched_file(hub_cache: Cache) -> None:
    if not olah.installed():
        pytest.skip("transformers is not here: make peers")
    code = (
        "from transformers import AutoConfig\n"
        f"print(AutoConfig.from_pretrained({REPO!r}).quantization_config['kv_cache_scheme'])"
    )
    done = hub_cache.process(str(olah.PEERS / "python"), "-c", code, HF_HUB_OFFLINE="1")
    assert done.stdout == "None\n", done.stderr


def test_a_cache_without_links(hub_cache: Cache, run: Run) -> None:
    """As on Windows: the files stand in the snapshot, and there are no blobs to be harmed."""
    from huggingface_hub import constants, snapshot_download

    shutil.rmtree(hub_cache.folder)
    hub_cache.gone, hub_cache.replaced = {OTHER, "refs"}, tuple(FILES)
    hub_cache.patch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    snapshot_download(REPO)
    before = links(hub_cache.snapshot)
    assert run(*APPLY, REPO).code == 0
    snapshot_download(REPO)
    snapshot_download(REPO, force_download=True)
    assert scheme(hub_cache.snapshot) is None
    assert run("undo", str(hub_cache.snapshot)).code == 0
    names = dict.fromkeys(PATCHED)
    assert {k: v for k, v in links(hub_cache.snapshot).items() if k in names} == {
        k: v for k, v in before.items() if k in names
    }


def test_a_blob_that_other_repositories_share(hub_cache: Cache, run: Run) -> None:
    """The repository's own entry leads to a store of the whole cache: none of it is written."""
    entry = (hub_cache.snapshot / "config.json").resolve()
    shared = hub_cache.home / "hub" / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    os.rename(entry, shared)
    entry.symlink_to(os.path.relpath(shared, entry.parent))
    before, store = links(hub_cache.snapshot), snapshot(shared.parent)
    assert run(*APPLY, REPO).code == 0
    assert scheme(hub_cache.snapshot) is None
    assert snapshot(shared.parent) == store
    assert run("undo").code == 0
    assert links(hub_cache.snapshot) == before
    entry.unlink()
    os.rename(shared, entry)


def test_another_tool_that_wrote_through_the_link(hub_cache: Cache, run: Run) -> None:
    """Both revisions have its edit, and the library says nothing; we do, and how to repair it."""
    from huggingface_hub import snapshot_download

    entry, other = hub_cache.snapshot / "config.json", hub_cache.folder / "snapshots" / OTHER
    entry.resolve().write_bytes(entry.read_bytes().replace(b'"num_bits": 8', b'"num_bits": 9'))
    assert scheme(snapshot_download(REPO)) == scheme(other)
    assert scheme(other)["num_bits"] == 9
    assert hub_cache.hf("cache", "verify", REPO).returncode == 1
    for root in (hub_cache.snapshot, other):
        assert run("status", "-q", str(root)).out == "foreign\n"
    done = run("status", REPO)
    assert "config.json is not the file that was downloaded" in done.out
    command = shlex.split(done.out.rpartition("Next: ")[2])
    assert hub_cache.hf(*command[1:]).returncode == 0
    for root in (hub_cache.snapshot, other):
        assert run("status", "-q", str(root)).out == "pristine\n"
    assert scheme(other)["num_bits"] == 8


# --- Killed


def test_killed_at_every_third_call(hub_cache: Cache, tmp_path: Path) -> None:
    """Old or new after a recover, the links back after an undo, no blob touched.

    At every call, and with other faults: test_faults.py, for linked files.
    """
    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    plan = patcher.plan(hub_cache.snapshot, target)
    original = links(hub_cache.snapshot)
    outcomes = []
    for at in range(1, 1000, 3):
        home = tmp_path / f"case{at}"
        shutil.copytree(hub_cache.folder, home, symlinks=True)
        root = home / "snapshots" / COMMIT
        blobs = snapshot(home / "blobs")
        ran = harness.run(
            lambda folder: transaction.apply(folder, plan.change()),
            root,
            harness.FAULTS["kill"],
            at,
        )
        transaction.recover(root)
        outcomes.append(scheme(root) is None)
        transaction.undo(root)
        assert links(root) == original
        assert snapshot(home / "blobs") == blobs
        shutil.rmtree(home)
        if not ran.fired:
            break
    assert outcomes == sorted(outcomes), "once the patch is there it stays"
    assert outcomes.count(False) > 5
    assert outcomes.count(True) > 1


# --- What cannot be patched


def test_not_here_and_offline(hub_cache: Cache, run: Run) -> None:
    hub_cache.offline()
    done = run(*APPLY, "acme/other")
    assert (done.code, done.out) == (4, "")
    assert "acme/other: is not in the Hub cache" in done.err
    assert "Hint: where there is a network: hf download acme/other" in done.err


def test_a_snapshot_without_one_of_its_metadata_files(hub_cache: Cache, run: Run) -> None:
    """The commit has a second file that states something: patching the first alone would not do."""
    (hub_cache.snapshot / "hf_quant_config.json").unlink()
    for typed in (REPO, str(hub_cache.snapshot)):
        done = run(*APPLY, "--no-network", typed)
        assert done.code == 4
        assert "is not complete in the cache: hf_quant_config.json missing" in done.err
        assert f"Hint: hf download {REPO} --revision {COMMIT}" in done.err
        assert scheme(hub_cache.snapshot) is not None
    assert run(*APPLY, REPO).code == 0  # with a network the file is fetched
    assert scheme(hub_cache.snapshot) is None


def test_a_link_that_leads_nowhere(hub_cache: Cache, run: Run) -> None:
    os.unlink((hub_cache.snapshot / "config.json").resolve())
    hub_cache.gone = {COMMIT}
    done = run(*APPLY, "--no-network", str(hub_cache.snapshot))
    assert done.code == 4
    assert "config.json" in done.err
    assert "Traceback" not in done.err
    assert not (hub_cache.snapshot / ".ckpt-patch").exists()


@pytest.mark.parametrize("folder", ["plain", "home"])
def test_a_directory_that_is_in_no_cache(
    hub_cache: Cache, run: Run, tmp_path: Path, folder: str
) -> None:
    shutil.copytree(hub_cache.snapshot, tmp_path / "plain")
    done = run(*APPLY, folder)
    assert done.code == {"plain": 2, "home": 4}[folder]
    if folder == "plain":
        assert "is no snapshot of a Hub cache, which --in-cache is for" in done.err
        assert "Hint: ckpt-patch apply plain" in done.err


def test_a_cache_that_cannot_be_written(hub_cache: Cache, run: Run, tmp_path: Path) -> None:
    hub_cache.snapshot.chmod(0o555)
    make_reachable(tmp_path)
    done = as_nobody(run, *APPLY, str(hub_cache.snapshot))
    assert done.code == 3
    assert "Nothing was changed" in done.err
    assert "ckpt-patch mirror" in done.err
    hub_cache.snapshot.chmod(0o755)


def test_a_revision_of_our_own(hub_cache: Cache, run: Run) -> None:
    assert run("mirror", "-q", *TARGET, REPO, "--cache-revision", "patched-sm120").code == 0
    before = snapshot(hub_cache.folder)
    own = hub_cache.ref("patched-sm120")
    for typed in (
        f"{REPO}@patched-sm120",
        f"{REPO}@{own}",
        str(hub_cache.folder / "snapshots" / own),
    ):
        done = run("apply", "--in-cache", "--target", "sm120", "--recipe", "kv-cache-fp8", typed)
        assert done.code == 3, done
        assert "is a revision that ckpt-patch made" in done.err
        assert f"{REPO}@{COMMIT} --cache-revision patched-sm120" in done.err
    assert snapshot(hub_cache.folder) == before
    assert FILES["config.json"] == (hub_cache.snapshot / "config.json").read_bytes()
