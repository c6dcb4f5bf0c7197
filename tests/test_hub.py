"""Hub ids, with the real client of the Hub against a server on the loopback interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint, shard
from hub_server import COMMIT, TOKEN, Fault, Hub, Repository, running
from hypothesis import given
from hypothesis import strategies as st
from running import Run, snapshot

from patcher import hub as hubs
from patcher.checkpoint import Checkpoint, open_checkpoint
from patcher.errors import CkptPatchError, RefusedError, UnreadableError
from patcher.headers import INDEX_FILE
from patcher.hub import HubId, NotReachedError, client, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = "acme/Kimi-K2.5-NVFP4"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
METADATA = {name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SCALES = {
    "model.layers.0.self_attn.k_proj.k_scale": ONE,
    "model.layers.0.self_attn.v_proj.v_scale": ONE,
    "model.layers.1.self_attn.k_proj.k_scale": TWO,
    "lm_head.weight": TWO,
}
INDEX = json.dumps({"metadata": {}, "weight_map": SCALES}).encode()
SHARDS = {
    name: shard(*(key for key, file in SCALES.items() if file == name)) for name in (ONE, TWO)
}
VLLM_016 = ("check", "--target", "sm120", "--engine", "vllm==0.16.0")
#: A release that starts, so that it matters whether there are scales.
STARTS = ("check", "--target", "sm120", "--engine", "vllm==0.33.0")


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """One server for all tests, because a client that is made anew takes 0.1 s."""
    from huggingface_hub import utils

    with running() as hub:
        yield hub
    close: Any = getattr(utils, "close_session", lambda: None)
    close()


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """A Hub with one repository, an empty cache, a token, and no pauses between attempts."""
    from huggingface_hub import constants, file_download

    server.reset()
    server.repositories[REPO] = Repository(
        {**METADATA, **SHARDS, INDEX_FILE: INDEX, "README.md": b"# Kimi\n"}
    )
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    for module in (constants, file_download):  # the second has its own in old releases
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the library's pauses too
    monkeypatch.chdir(tmp_path)
    return server


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def refusal(path: str = REPO, **options: bool) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        open_checkpoint(path, **options)
    assert caught.value.exit_code == 4
    assert TOKEN not in f"{caught.value} {caught.value.hint} {caught.value.detail}"
    return caught.value


def single_shard(hub: Hub, name: str = "acme/tiny") -> Repository:
    weights = shard("layers.0.self_attn.k_scale", "layers.0.self_attn.v_scale", "lm_head.weight")
    repository = Repository({**METADATA, "model.safetensors": weights})
    hub.repositories[name] = repository
    return repository


# The grammar


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("org/name", HubId("org/name")),
        ("nvidia/Kimi-K2.5-NVFP4", HubId("nvidia/Kimi-K2.5-NVFP4")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/3", HubId("org/name", "refs/pr/3")),
        (f"hf://org/name@{COMMIT}", HubId("org/name", COMMIT)),
        ("hf:/org/name", HubId("org/name")),
        ("https://huggingface.co/org/name/", HubId("org/name")),
    ],
)
def test_hub_ids(typed: str, meant: HubId) -> None:
    assert parse(typed) == meant
    assert parse(str(meant)) == meant


@pytest.mark.parametrize(
    "typed",
    [
        "", ".", "name", "./org/name", "../name", "/org/name", "a/b/c", "~/name", "-a/b", "a/b-",
        "models--org--name/snapshots", "a..b/c", "a/b.git", "a/b@", "a/b@../x", "a/b@x//y", "a/b c",
        "a/b\n", "s3://a/b", "http://huggingface.co/a/b", "a/" + "b" * 95, "ä/b", "hf://a",
    ],
)  # fmt: skip
def test_what_is_no_hub_id(typed: str) -> None:
    assert parse(typed) is None


@given(st.text("ab./-_@:h ", max_size=12))
def test_an_accepted_id_is_accepted_by_the_library_too(text: str) -> None:
    from huggingface_hub import utils

    library: Any = utils
    if found := parse(text):
        library.validate_repo_id(found.repo_id)
        assert parse(f"hf://{found}") == found


def test_a_local_directory_of_that_name_wins_and_the_output_says_so(hub: Hub, run: Run) -> None:
    root = make_checkpoint(Path(REPO), METADATA)
    done = run(*VLLM_016, REPO)
    assert done.code == 1
    note = f"Note: {REPO} is a directory here; the repository on the Hub is hf://{REPO}.\n"
    assert note in done.err
    assert hub.log == []
    assert "Note:" not in run("check", "--target", "sm120", f"./{REPO}").err
    assert open_checkpoint(f"hf://{REPO}").origin.kind == "hub"
    assert open_checkpoint(str(root)).origin.kind == "directory"


# What is fetched


def test_a_cold_cache_gets_the_metadata_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(REPO)
    origin = checkpoint.origin
    assert (origin.kind, origin.repo_id, origin.revision) == ("hub", REPO, COMMIT)
    assert checkpoint.root == tmp_path / f"cache/models--acme--Kimi-K2.5-NVFP4/snapshots/{COMMIT}"
    assert {name: doc.data for name, doc in checkpoint.documents.items()} == METADATA
    assert checkpoint.shards == (ONE, TWO)
    assert checkpoint.entries[ONE] == "remote"
    assert sorted(os.listdir(checkpoint.root)) == sorted(METADATA)
    files = [path.rpartition("/")[2] for path in hub.paths("GET") if "/resolve/" in path]
    assert files == list(METADATA)
    assert hub.weight_bytes() == 0


def test_a_warm_cache_costs_one_request_and_an_offline_one_none(
    hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(*VLLM_016, "--json", REPO)
    assert first.code == 1
    hub.log.clear()
    assert run(*VLLM_016, "--json", REPO).out == first.out
    assert [request.path for request in hub.log] == [f"/api/models/{REPO}/revision/main"]

    hub.log.clear()
    by_flag = run(*VLLM_016, "--json", "--no-network", REPO)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    by_variable = run(*VLLM_016, "--json", REPO)
    assert hub.log == []
    assert by_flag == by_variable
    assert by_flag.code == 1
    assert "the Hub was not asked" in by_flag.err
    assert COMMIT in by_flag.err
    same = ("outcome", "resolved", "findings", "declarations")
    online, offline = json.loads(first.out), json.loads(by_flag.out)
    assert [online[key] for key in same] == [offline[key] for key in same]
    assert offline["checkpoint"]["repo_id"] == REPO
    assert offline["checkpoint"]["revision"] == COMMIT


def test_the_index_is_fetched_only_when_scales_matter(hub: Hub, run: Run) -> None:
    assert run("inspect", REPO).code == 0
    assert not any(path.endswith(INDEX_FILE) for path in hub.paths("GET"))
    done = run(*STARTS, "--json", REPO)
    assert json.loads(done.out)["evidence"] == {
        "source": "index",
        "shards": 2,
        "tensors": 4,
        "k_scales": 2,
        "v_scales": 1,
        "kv_scales": 0,
        "q_scales": 0,
        "paired": 1,
        "unpaired": ["model.layers.1.self_attn.k_proj.k_scale"],
        "missing_shards": [],
        "bytes_read": len(INDEX),
        "weight_bytes_read": 0,
    }
    assert hub.weight_bytes() == 0


@pytest.mark.parametrize("states_hashes", [True, False])
def test_without_an_index_headers_are_read_by_range(hub: Hub, *, states_hashes: bool) -> None:
    repository = single_shard(hub)
    repository.states_hashes = states_hashes
    counts = open_checkpoint("acme/tiny").scales()
    weights = repository.files["model.safetensors"]
    header = 8 + int.from_bytes(weights[:8], "little")
    assert (counts.source, counts.tensors, counts.paired) == ("headers", 3, 1)
    assert counts.bytes_read == header
    sent = [r.sent for r in hub.log if r.method == "GET" and r.path.endswith(".safetensors")]
    assert sent == [8, header - 8]
    assert hub.weight_bytes() == 0


def test_a_redirect_to_another_host_gets_the_range_and_no_token(hub: Hub) -> None:
    repository = single_shard(hub)
    with running() as store:
        store.repositories["acme/tiny"] = repository
        elsewhere = store.url.replace("127.0.0.1", "localhost")
        path = f"/acme/tiny/resolve/{COMMIT}/model.safetensors"
        hub.faults.append(Fault("safetensors$", 302, {"Location": elsewhere + path}))
        assert open_checkpoint("acme/tiny").scales().paired == 1
        assert [request.authorization for request in store.log] == [None, None]
        assert [request.status for request in store.log] == [206, 206]


def test_a_shard_that_is_in_the_cache_is_read_there(hub: Hub) -> None:
    single_shard(hub)
    hubs.download(HubId("acme/tiny"))
    hub.log.clear()
    counts = open_checkpoint("acme/tiny").scales()
    assert counts.paired == 1
    assert [request.path for request in hub.log] == ["/api/models/acme/tiny/revision/main"]


def test_a_shard_of_the_index_that_the_repository_lacks_is_missing(hub: Hub) -> None:
    del hub.repositories[REPO].files[TWO]
    assert open_checkpoint(REPO).scales().missing_shards == (TWO,)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("revision", ["refs/pr/1", COMMIT])
def test_a_revision(revision: str) -> None:
    origin = open_checkpoint(f"{REPO}@{revision}").origin
    assert (origin.revision, origin.ref) == (COMMIT, revision)
    assert open_checkpoint(f"{REPO}@{revision}", no_network=True).origin.revision == COMMIT


def test_a_file_in_a_folder_is_fetched(hub: Hub) -> None:
    hub.repositories[REPO].files["kimi/deep/modeling.py"] = b"# code\n"
    checkpoint = open_checkpoint(REPO)
    assert checkpoint.remote is not None
    checkpoint.remote.fetch("kimi/deep/modeling.py", 100)
    assert (checkpoint.root / "kimi/deep/modeling.py").read_bytes() == b"# code\n"


def test_a_patched_snapshot_is_judged_as_the_engine_will_see_it(hub: Hub, run: Run) -> None:
    root = open_checkpoint(REPO).root
    assert run("apply", *VLLM_016[1:], str(root)).code == 0
    hub.log.clear()
    assert run(*VLLM_016, REPO).code == 0
    assert len(hub.log) == 1


# What goes wrong: one sentence each, exit 4

NOWHERE = "no such repository that the Hub shows you"
GATED = Fault("/", 403, {"X-Error-Code": "GatedRepo"})
TOKEN_REFUSED = Fault("/", 401, {"X-Error-Message": "Invalid credentials in Authorization header"})


@pytest.mark.parametrize(
    ("fault", "words", "hint"),
    [
        (GATED, "is gated", "hf auth login"),
        (TOKEN_REFUSED, "does not accept your token", "hf auth login"),
        (Fault("/", 401), NOWHERE, "hf auth login"),
        (Fault("/", 404), NOWHERE, "correct the name"),
        (Fault("/", 403), "forbids", "http://127.0.0.1"),
        (Fault("/resolve/", 404, {"X-Error-Code": "EntryNotFound"}), "no file config.json", "http"),
        (Fault("/api/", 429), "asked too often (429)", "wait"),
        (Fault("/api/", 429, {"Retry-After": "300"}), "asked too often", "wait 300 seconds"),
        (Fault("/api/", 503), "out of order (503), 4 attempts failed", "--no-network"),
        (Fault("/resolve/", 503, method="GET"), "out of order (503)", "--no-network"),
        (Fault("/", 418), "HTTP status 418", "http"),
        (Fault("/resolve/", 418, method="HEAD"), "HTTP status 418", "http"),
        (Fault("/api/", 200), "does not answer as a Hub does", None),
    ],
)
def test_refusals_of_the_hub(
    hub: Hub, run: Run, fault: Fault, words: str, hint: str | None
) -> None:
    hub.faults.append(fault)
    error = refusal()
    assert words in error.message
    assert error.path == REPO
    assert hint in error.hint if hint and error.hint else error.hint is hint
    done = run(*VLLM_016, REPO)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(f"Error: {REPO}: {error.message}\n")


def test_no_such_repository_and_no_such_revision(hub: Hub) -> None:
    assert NOWHERE in refusal("acme/nothing").message
    error = refusal(f"{REPO}@v9")
    assert error.message == "the repository has no revision v9"
    assert error.hint == f"git ls-remote {hub.url}/{REPO}"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/api/", 429, {"Retry-After": "0"}, times=2),
        Fault("/api/", 429, {"RateLimit": '"api";r=0;t=0'}, times=2),
        Fault("/api/", 503, times=3),
        Fault("/resolve/", 503, method="GET", times=3),
        Fault("/resolve/", 429, {"Retry-After": "0"}, method="GET", times=1),
    ],
)
def test_a_busy_hub_is_asked_again(hub: Hub, fault: Fault) -> None:
    hub.faults.append(fault)
    assert {name: doc.data for name, doc in open_checkpoint(REPO).documents.items()} == METADATA
    assert fault.times == 0


def test_a_range_is_asked_for_again_too(hub: Hub) -> None:
    single_shard(hub)
    fault = Fault("safetensors$", 503, times=2)
    hub.faults.append(fault)
    assert open_checkpoint("acme/tiny").scales().paired == 1
    assert fault.times == 0


def test_pauses_between_attempts(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    hub.faults.append(Fault("/api/", 503, times=1))
    hub.faults.append(Fault("/api/", 429, {"Retry-After": "7"}, times=1))
    hub.faults.append(Fault("/api/", 502, times=1))
    open_checkpoint(REPO)
    assert slept == [1.0, 7.0, 4.0]


@pytest.mark.usefixtures("hub")
def test_no_network(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    from huggingface_hub import constants

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    open_checkpoint(REPO).scales()
    monkeypatch.setattr(constants, "ENDPOINT", closed)
    error = refusal("acme/other")
    assert isinstance(error, NotReachedError)
    assert error.message == f"cannot reach the Hub at {closed}"
    assert error.hint == "where there is a network: hf download acme/other --include '*.json'"
    done = run(*VLLM_016, REPO)
    assert done.code == 1
    assert f"Note: cannot reach the Hub at {closed}; this is what the cache has" in done.err


def test_a_hub_that_is_out_of_order_is_replaced_by_the_cache(hub: Hub) -> None:
    open_checkpoint(REPO)
    hub.faults.append(Fault("/", 503))
    assert open_checkpoint(REPO).origin.notes[0].startswith("the Hub is out of order (503)")
    hub.faults[:] = [GATED]
    assert "is gated" in refusal().message


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_no_network_and_nothing_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run, by: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", by == "variable")
    monkeypatch.chdir(tmp_path)
    flag = ("--no-network",) if by == "flag" else ()
    for command in (VLLM_016, ("inspect",)):
        done = run(*command, *flag, REPO)
        assert (done.code, done.out) == (4, "")
        assert done.err == (
            f"Error: {REPO}: is not in the Hub cache, and the Hub was not asked (--no-network or "
            f"HF_HUB_OFFLINE)\nHint: where there is a network: hf download {REPO} "
            "--include '*.json'\n"
        )
    with pytest.raises(UnreadableError, match="cannot be downloaded"):
        hubs.download(HubId(REPO), no_network=True)


def test_a_flipped_byte_is_noticed_and_does_not_stay(hub: Hub) -> None:
    hub.flipped.add("config.json")
    error = refusal()
    expected = hub.repositories[REPO].etag("config.json")
    assert error.message == (
        f"config.json arrived damaged: its hash is not {expected}, which the Hub states"
    )
    hub.flipped.clear()
    assert open_checkpoint(REPO).documents["config.json"].data == METADATA["config.json"]


def test_a_flipped_byte_is_noticed_by_the_name_of_the_blob(hub: Hub) -> None:
    hub.repositories[REPO].states_hashes = False
    hub.flipped.add("hf_quant_config.json")
    assert "hf_quant_config.json arrived damaged" in refusal().message


def test_a_damaged_blob_of_another_revision_is_left_alone(hub: Hub) -> None:
    blob = (open_checkpoint(REPO).root / "config.json").resolve()
    blob.write_bytes(blob.read_bytes().replace(b"61", b"62"))
    poisoned = blob.read_bytes()
    hub.repositories[REPO].commit = "d" * 40
    for _ in range(2):
        assert "config.json arrived damaged" in refusal().message
    assert blob.read_bytes() == poisoned


def test_a_server_that_ignores_ranges(hub: Hub) -> None:
    single_shard(hub)
    hub.honours_ranges = False
    checkpoint = open_checkpoint("acme/tiny")
    with pytest.raises(UnreadableError, match="ignores Range requests") as caught:
        checkpoint.scales()
    assert caught.value.hint == f"hf download acme/tiny --revision {COMMIT}"


def test_files_that_are_too_large_are_not_fetched(hub: Hub) -> None:
    hub.repositories[REPO].files["config.json"] = b" " * 70_000_000
    assert "more than the" in refusal().message
    assert hub.paths("HEAD") == []


def test_a_branch_that_moves_while_it_is_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = client.model_info

    def moved(hub_id: HubId) -> Any:
        info = listed(hub_id)
        hub.repositories[REPO].commit = "d" * 40
        return info

    monkeypatch.setattr(client, "model_info", moved)
    assert "new commit while it was being read" in refusal().message


@pytest.mark.parametrize("commit", ["../../../etc", "", "c0ffee"])
def test_a_commit_that_is_none(hub: Hub, commit: str) -> None:
    hub.repositories[REPO].commit = commit
    assert refusal().message == "the server names no commit"


def test_a_file_name_that_leaves_the_repository(hub: Hub) -> None:
    hub.repositories[REPO].files["../config.json"] = b"{}"
    assert refusal().message == "the server names a file '../config.json'"


def test_a_repository_of_another_kind(hub: Hub) -> None:
    hub.repositories["acme/gguf"] = Repository({"model.gguf": b"GGUF"})
    error = refusal("acme/gguf")
    assert "has GGUF files and no config.json" in error.message
    assert (error.path, error.hint) == ("acme/gguf", None)


def test_a_cache_that_cannot_be_written(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    error = refusal()
    assert error.message.startswith("cannot be kept in the Hub cache: ")
    assert not isinstance(error, NotReachedError)
    assert hub.weight_bytes() == 0


# Other commands


@pytest.mark.usefixtures("hub")
def test_apply_on_a_hub_id_is_refused(run: Run, tmp_path: Path) -> None:
    from patcher import Target, apply

    target = VLLM_016[1:]
    assert run("apply", *target, "--dry-run", REPO).code == 0
    before = snapshot(tmp_path / "cache")
    done = run("apply", *target, REPO)
    assert done.code == 3
    assert f": ckpt-patch mirror {' '.join(target)} {REPO} Kimi-K2.5-NVFP4-sm120\n" in done.err
    pinned = run("apply", *target, f"{REPO}@{COMMIT}")
    assert f": ckpt-patch apply --in-cache {' '.join(target)} {REPO}@{COMMIT}\n" in pinned.err
    with pytest.raises(RefusedError):
        apply(REPO, Target.parse("sm120", engine="vllm==0.16.0"))
    assert snapshot(tmp_path / "cache") == before


def test_a_mirror_of_a_hub_id_downloads_the_weights_once(
    hub: Hub, run: Run, tmp_path: Path
) -> None:
    destination = tmp_path / "mirror"
    target = ("--target", "sm120", "--engine", "vllm==0.16.0")
    made = run("mirror", "-q", *target, REPO, str(destination))
    assert (made.code, made.out) == (0, f"{destination}\n"), made.err
    for name, data in SHARDS.items():
        assert (destination / name).read_bytes() == data
    assert run("check", *target, str(destination)).code == 0
    assert run("verify", str(destination)).code == 0
    fetched = hub.weight_bytes()
    assert run("mirror", "-q", *target, REPO, str(destination)).code == 0
    assert hub.weight_bytes() == fetched


def test_what_is_said_of_weights_that_were_downloaded(hub: Hub, run: Run) -> None:
    first = run("mirror", *VLLM_016[1:], REPO, "one")
    assert "Made one. Weights were downloaded and compared with their hashes, none" in first.out
    assert hub.weight_bytes() > 0
    second = run("mirror", *VLLM_016[1:], REPO, "two")
    assert "Made two. Weights were neither read nor changed." in second.out


def test_the_library_call_downloads_too(hub: Hub, tmp_path: Path) -> None:
    import patcher

    target = patcher.Target.parse("sm120", engine="vllm==0.16.0")
    made = patcher.mirror(REPO, tmp_path / "mirror", target)
    assert {n: (tmp_path / "mirror" / n).read_bytes() for n in SHARDS} == SHARDS
    assert patcher.check(made.path, target).outcome == "compatible"
    fetched = hub.weight_bytes()
    assert patcher.mirror(REPO, tmp_path / "mirror", target).outcome == "current"
    assert hub.weight_bytes() == fetched


def test_passthrough_prints_what_an_engine_takes(hub: Hub, run: Run) -> None:
    """No engine takes ``org/name@revision``; that is its snapshot, whole."""
    fine = ("mirror", "-q", "--passthrough", *STARTS[1:])
    assert run(*fine, REPO, "none").out == f"{REPO}\n"
    assert run(*fine, f"hf://{REPO}", "none").out == f"{REPO}\n"
    assert hub.weight_bytes() == 0
    folder = open_checkpoint(REPO).root
    offline = run(*fine, "--no-network", f"{REPO}@{COMMIT}", "none")
    assert (offline.code, offline.out) == (4, "")  # its weights are not here
    assert run(*fine, f"{REPO}@{COMMIT}", "none").out == f"{folder}\n"
    assert (folder / ONE).read_bytes() == SHARDS[ONE]
    assert run(*fine, "--no-network", f"{REPO}@{COMMIT}", "none").out == f"{folder}\n"
    assert not Path("none").exists()


def test_plan_and_inspect_take_hub_ids(hub: Hub, run: Run) -> None:
    assert "kv_cache_scheme" in run("plan", *VLLM_016[1:], REPO).out
    shown = run("inspect", "--json", REPO)
    assert json.loads(shown.out)["checkpoint"]["origin"] == "hub"
    assert f"of {REPO} at {COMMIT}" in run("inspect", REPO).out
    assert hub.weight_bytes() == 0


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub, run: Run, tmp_path: Path) -> None:
    single_shard(hub)
    shown = [run(*VLLM_016, "--json", "acme/tiny"), run("inspect", "acme/tiny")]
    assert {request.authorization for request in hub.log} == {f"Bearer {TOKEN}"}
    assert all(TOKEN not in done.out + done.err for done in shown)
    assert TOKEN not in repr(open_checkpoint("acme/tiny"))
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in data for data in kept)


# Whole snapshots


def test_download_fetches_everything_once(hub: Hub) -> None:
    found = hubs.download(HubId(REPO))
    files = hub.repositories[REPO].files
    assert {p.name: p.read_bytes() for p in found.folder.iterdir()} == files
    hub.log.clear()
    assert hubs.download(HubId(REPO)).folder == found.folder
    assert hub.paths("HEAD") == []
    (found.folder / TWO).unlink()
    hubs.download(HubId(REPO))
    assert hub.paths("GET").count(f"/{REPO}/resolve/{COMMIT}/{ONE}") == 0


def test_download_goes_on_after_a_failure(hub: Hub) -> None:
    fault = Fault(ONE, 503, method="GET", times=2)
    hub.faults.append(fault)
    found = hubs.download(HubId(REPO))
    assert (found.folder / ONE).read_bytes() == SHARDS[ONE]
    assert fault.times == 0


def test_download_notices_a_flipped_byte_in_the_weights(hub: Hub) -> None:
    hub.flipped.add(TWO)
    with pytest.raises(UnreadableError, match=f"{TWO} arrived damaged"):
        hubs.download(HubId(REPO))
    hub.flipped.clear()
    found = hubs.download(HubId(REPO))
    assert (found.folder / TWO).read_bytes() == SHARDS[TWO]


# In a process of its own, as a user has it


def child(hub_url: str, home: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = {**clean, "HF_ENDPOINT": hub_url, "HF_HOME": str(home), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "patcher", *words],
        capture_output=True, text=True, check=False, env=environment,
        cwd=FIXTURE.parent.parent,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_variables_of_the_library_are_honoured(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    code, out, err = child(hub.url, home, *STARTS, "-q", REPO)
    assert (code, out, err) == (0, "compatible KV007\n", "")
    assert (home / f"hub/models--acme--Kimi-K2.5-NVFP4/snapshots/{COMMIT}/config.json").is_file()
    hub.log.clear()
    code, out, _ = child(hub.url, home, *STARTS, "-q", REPO, HF_HUB_OFFLINE="1")
    assert (code, out) == (0, "compatible KV007\n")
    code, out, err = child(hub.url, home, *STARTS, "-q", "acme/other", HF_HUB_OFFLINE="1")
    assert (code, out) == (4, "")
    assert "is not in the Hub cache" in err
    assert hub.log == []


def test_a_local_checkpoint_imports_no_client_of_the_hub() -> None:
    code = (
        "import sys\nfrom patcher.cli.run import run\n"
        f"code = run({[*VLLM_016, str(FIXTURE)]!r})\n"
        "sys.exit('imported' if 'huggingface_hub' in sys.modules else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_errors_can_be_sent_to_another_process(hub: Hub) -> None:
    import pickle

    hub.faults.append(GATED)
    error = refusal()
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, CkptPatchError)
    assert (copy.message, copy.hint) == (error.message, error.hint)
    hub.faults.clear()
    checkpoint = open_checkpoint(REPO)
    moved = pickle.loads(pickle.dumps(checkpoint.remote))
    assert moved == checkpoint.remote
    assert isinstance(checkpoint, Checkpoint)
