"""Mirrors on the Hub, with the real client against a server that notes what it was sent."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_cache, make_checkpoint, packed
from hub_server import COMMIT, TOKEN, Fault
from upload_recorder import Recorder, Writable, running

import patcher.api
from patcher import Target
from patcher.errors import InterruptedError_, RefusedError, UsageError
from patcher.hub import uploading
from patcher.hub.write_failures import NoAnswerError
from patcher.mirroring.hub_mirror import HubMirrored
from patcher.mirroring.hub_standing import MANIFEST
from patcher.mirroring.manifest import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from running import Done, Run

REPO, MIRROR = "acme/Kimi", "me/Kimi-sm120"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
METADATA = {name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARD = 200_000
FILES = {
    **METADATA,
    ONE: packed({"a": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}, b"1" * SHARD),
    TWO: packed({"b": {"dtype": "U8", "shape": [SHARD], "data_offsets": [0, SHARD]}}, b"2" * SHARD),
    "model.safetensors.index.json": json.dumps(
        {"metadata": {}, "weight_map": {"a": ONE, "b": TWO}}
    ).encode(),
    "README.md": b"# Kimi\n",
    "templates/chat.jinja": b"{{ messages }}\n",
}
SMALL = ("README.md", "model.safetensors.index.json", "templates/chat.jinja")
PATCHED = {
    "config.json": (b'"kv_cache_scheme": null', b'"kv_cache_scheme": {'),
    "hf_quant_config.json": (b'"kv_cache_quant_algo": null', b'"kv_cache_quant_algo": "FP8"'),
}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")


@pytest.fixture(scope="module")
def server() -> Iterator[Recorder]:
    from huggingface_hub import utils

    with running() as hub:
        yield hub
    close: Any = getattr(utils, "close_session", lambda: None)
    close()


@pytest.fixture
def hub(recorder: Recorder) -> Recorder:
    """A Hub that the installed library can ask to copy."""
    import huggingface_hub

    names = {each.name for each in dataclasses.fields(huggingface_hub.CommitOperationCopy)}
    if "src_repo_id" not in names:
        pytest.skip(f"huggingface_hub {huggingface_hub.__version__} cannot copy; 1.17 can")
    return recorder


@pytest.fixture
def recorder(server: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    """A Hub with one repository, an empty cache, a token, and no pauses between attempts."""
    from huggingface_hub import constants, file_download, hf_api

    server.reset()
    server.repositories[REPO] = Writable(dict(FILES))
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(hf_api.api, "endpoint", server.url)
    for module in (constants, file_download):  # the second has its own in old releases
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the library's pauses too
    monkeypatch.chdir(tmp_path)
    return server


@pytest.fixture
def mirror(run: Run, recorder: Recorder) -> Run:
    """Mirror, with nothing secret in the output and no weights on the wire."""

    def call(*words: str) -> Done:
        done = run("mirror", *TARGET, *words)
        assert TOKEN not in done.out + done.err
        assert "Traceback" not in done.out + done.err
        assert not any(
            r.path.endswith(".safetensors") for r in recorder.log if "/resolve/" in r.path
        )
        return done

    return call


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def lines(hub: Recorder, number: int = -1) -> list[Any]:
    """The NDJSON of a commit."""
    body = hub.posted("/commit/")[number].body
    assert isinstance(body, list)
    return body


def paths(hub: Recorder) -> list[str]:
    return sorted(line["value"]["path"] for line in lines(hub)[1:])


def made(mirror: Run) -> Done:
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 0, done.err
    return done


# What is sent


def test_one_commit_copies_the_weights_and_adds_the_patched_files(
    hub: Recorder, mirror: Run
) -> None:
    made(mirror)
    assert [each.path.rpartition("/main")[0] or each.path for each in hub.sent] == [
        "/api/repos/create",
        f"/api/models/{MIRROR}/preupload",
        f"/api/models/{MIRROR}/paths-info",
        f"/api/models/{REPO}/paths-info/{COMMIT}",
        f"/api/models/{REPO}/lfs-files/duplicate",
        f"/api/models/{MIRROR}/commit",
    ]
    create, *_, duplicate, _ = hub.sent
    assert (create.body["organization"], create.body["name"]) == ("me", "Kimi-sm120")
    assert create.body.get("visibility") is None
    assert duplicate.body["target"] == {"type": "model", "name": MIRROR}
    oids = [sha256(FILES[name]) for name in (ONE, TWO)]
    assert sorted(file["sha256"] for file in duplicate.body["files"]) == sorted(oids)
    header, *operations = lines(hub)
    assert header == {
        "key": "header",
        "value": {
            "summary": "Mirror of acme/Kimi, KV-cache metadata for sm120, vllm 0.16.0",
            "description": f"The source is {REPO}@{COMMIT}; its weights are the same objects.\n\n"
            "config.json: replace /quantization_config/kv_cache_scheme\n"
            "hf_quant_config.json: replace /quantization/kv_cache_quant_algo",
            "parentCommit": f"{0xB0B0_0001:040x}",
        },
    }
    large = [line["value"] for line in operations if line["key"] == "lfsFile"]
    assert large == [
        {"path": name, "algo": "sha256", "oid": sha256(FILES[name])} for name in (ONE, TWO)
    ]
    small = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in operations
        if line["key"] == "file"
    }
    assert set(small) == {*SMALL, *PATCHED, MANIFEST}
    assert all(small[name] == FILES[name] for name in SMALL)
    for name, (new, old) in PATCHED.items():
        assert new in small[name]
        assert old not in small[name]
    assert len(operations) == len(large) + len(small)
    assert decode(small[MANIFEST]).source.revision == COMMIT


def test_fewer_bytes_than_one_shard_pass_through_this_machine(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    sent, received = sum(each.bytes for each in hub.sent), sum(r.sent for r in hub.log)
    assert 0 < sent + received < SHARD
    assert hub.repositories[MIRROR].files[ONE] == FILES[ONE]


def test_what_is_said(hub: Recorder, mirror: Run) -> None:
    assert made(mirror).out.splitlines() == [
        "config.json           /quantization_config/kv_cache_scheme  "
        '{"dynamic": false, "num_bits": 8, "type": "float"} -> null',
        'hf_quant_config.json  /quantization/kv_cache_quant_algo     "FP8" -> null',
        "KV cache: 35,136 -> 70,272 bytes per token (2 times).",
        f"Copied by the Hub: 2 files, 400.3 kB, of {REPO}@{COMMIT}; none of it passes through this "
        "machine.",
        "Copied through this machine: 3 files, 136 bytes.",
        f"Sent from here: config.json, hf_quant_config.json, {MANIFEST}.",
        f"Made hub://{MIRROR}, commit {hub.repositories[MIRROR].commit}.",
        f"Weights were neither read nor changed. Use it like any other: hf download {MIRROR}",
    ]


def test_the_mirror_starts_and_can_be_verified(
    hub: Recorder, mirror: Run, run: Run, tmp_path: Path
) -> None:
    from huggingface_hub import snapshot_download

    made(mirror)
    assert run("check", *TARGET, REPO).code == 1
    assert run("check", *TARGET, MIRROR).code == 0
    for place in (snapshot_download(MIRROR), snapshot_download(MIRROR, local_dir=tmp_path / "D")):
        done = run("verify", "--hash", place)
        assert done.code == 0, done.out
        assert "Weights whose hash is right: 2 files" in done.out
    hub.repositories[MIRROR].files["README.md"] = b"other"
    (tmp_path / "D" / "README.md").write_bytes(b"other")
    done = run("verify", str(tmp_path / "D"))
    assert (done.code, done.out.split()[:2]) == (1, ["edited", "README.md"])


def test_the_manifest_depends_on_the_source_and_the_target_alone(
    hub: Recorder, mirror: Run, tmp_path: Path
) -> None:
    made(mirror)
    assert mirror(REPO, "hub://me/second").code == 0
    first, second = (hub.repositories[name].files[MANIFEST] for name in (MIRROR, "me/second"))
    assert first == second
    assert str(tmp_path).encode() not in first


# Without writing


def test_dry_run_writes_nothing(hub: Recorder, mirror: Run) -> None:
    done = mirror("--dry-run", REPO, f"hub://{MIRROR}")
    assert done.code == 0
    assert hub.sent == []
    assert set(hub.repositories) == {REPO}
    assert '+        "kv_cache_scheme": null,' in done.out
    assert done.out.splitlines()[-5:] == [
        "One commit would be made:",
        f"Copied by the Hub: 2 files, 400.3 kB, of {REPO}@{COMMIT}; none of it passes through this "
        "machine.",
        "Copied through this machine: 3 files, 136 bytes.",
        f"Sent from here: config.json, hf_quant_config.json, {MANIFEST}.",
        "Nothing was written (--dry-run).",
    ]
    assert f"Would create hub://{MIRROR} (public" in done.out


def test_json(hub: Recorder, mirror: Run) -> None:
    would = json.loads(mirror("--dry-run", "--json", REPO, f"hub://{MIRROR}").out)
    assert (would["schema"], would["outcome"]) == ("ckpt-patch/mirror@1", "dry-run")
    assert would["commit"] is None
    assert would["operations"] == {
        "create": True,
        "copy": sorted([*SMALL, ONE, TWO]),
        "add": [*PATCHED, MANIFEST],
        "delete": [],
        "kept": [],
    }
    done = json.loads(mirror("--json", REPO, f"hub://{MIRROR}").out)
    assert (done["outcome"], done["commit"]) == ("made", hub.repositories[MIRROR].commit)
    assert done["copied_bytes"] == sum(len(FILES[name]) for name in (*SMALL, ONE, TWO))
    assert done["files"] == would["files"]


def test_a_second_run_does_nothing(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    before, commit = len(hub.sent), hub.repositories[MIRROR].commit
    done = made(mirror)
    assert f"Nothing to do: hub://{MIRROR} is this mirror already, commit {commit}." in done.out
    assert mirror("-q", REPO, f"hub://{MIRROR}").out == f"{MIRROR}\n"
    assert json.loads(mirror("--json", REPO, f"hub://{MIRROR}").out)["outcome"] == "current"
    assert len(hub.sent) == before


def test_another_version_of_the_tool_alone_is_no_reason_for_a_commit(
    hub: Recorder, mirror: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(mirror)
    before = len(hub.sent)
    monkeypatch.setattr("patcher.mirroring.drafting.__version__", "9.9.9")
    made(mirror)
    assert len(hub.sent) == before


def test_a_changed_source_is_planned_anew_and_committed_on_top(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    parent, source = hub.repositories[MIRROR].commit, hub.repositories[REPO]
    source.commit = "c0ffee" + "2" * 34
    source.files["README.md"] = b"# Kimi, second edition\n"
    source.files["config.json"] = METADATA["config.json"].replace(b"kimi_k25", b"kimi_k2")
    del source.files["templates/chat.jinja"]
    done = made(mirror)
    assert f"Brought hub://{MIRROR} up to date" in done.out
    assert lines(hub)[0]["value"]["parentCommit"] == parent
    assert lines(hub)[-1] == {"key": "deletedFile", "value": {"path": "templates/chat.jinja"}}
    assert paths(hub) == [MANIFEST, "README.md", "config.json", "templates/chat.jinja"]
    assert len(hub.posted("duplicate")) == 1  # by the first run
    files = hub.repositories[MIRROR].files
    assert b"kimi_k2" in files["config.json"]
    assert PATCHED["config.json"][0] in files["config.json"]
    assert decode(files[MANIFEST]).source.revision == source.commit


def test_an_own_revision_of_the_source(hub: Recorder, mirror: Run) -> None:
    assert mirror(f"hf://{REPO}@refs/pr/1", f"hub://{MIRROR}").code == 0
    assert decode(hub.repositories[MIRROR].files[MANIFEST]).source.revision == COMMIT


def test_an_empty_repository_is_used(hub: Recorder, mirror: Run) -> None:
    hub.repositories[MIRROR] = Writable({".gitattributes": b""}, "e" * 40)
    made(mirror)
    assert hub.posted("create") == []
    assert lines(hub)[0]["value"]["parentCommit"] == "e" * 40
    assert hub.repositories[MIRROR].files[".gitattributes"] == b""


def test_passthrough(hub: Recorder, mirror: Run) -> None:
    done = mirror("--passthrough", "-q", "--engine", "vllm==0.33.0", REPO, f"hub://{MIRROR}")
    assert (done.code, done.out) == (0, f"{REPO}\n")
    assert hub.sent == []


# What somebody else did


def test_foreign_content_is_left_alone(hub: Recorder, mirror: Run) -> None:
    hub.repositories["me/mine"] = Writable({"README.md": b"mine"})
    done = mirror(REPO, "hub://me/mine")
    assert done.code == 3
    assert (
        "me/mine: holds files and is not a mirror made by ckpt-patch. Nothing was wri" in done.err
    )
    assert hub.sent == []


def test_a_mirror_of_something_else_is_left_alone(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    before = len(hub.sent)
    hub.repositories["acme/other"] = Writable(dict(FILES))
    done = mirror("acme/other", f"hub://{MIRROR}")
    assert (done.code, len(hub.sent)) == (3, before)
    assert f"{MIRROR}: is a mirror of {REPO}. Nothing was written" in done.err


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"schema": 1}'])
def test_a_damaged_manifest_is_not_trusted(hub: Recorder, mirror: Run, data: bytes) -> None:
    hub.repositories[MIRROR] = Writable({MANIFEST: data})
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 3
    assert "has a manifest that cannot be trusted" in done.err


def test_an_edited_model_card_is_kept(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    mine = hub.repositories[MIRROR]
    mine.files["README.md"], mine.files["NOTES.md"] = b"# Mine\n", b"notes"
    before = len(hub.sent)
    assert "Nothing to do" in made(mirror).out
    assert len(hub.sent) == before
    hub.repositories[REPO].commit = "c0ffee" + "3" * 34
    hub.repositories[REPO].files["templates/chat.jinja"] = b"new\n"
    assert "Left as somebody has edited it: README.md." in made(mirror).out
    assert paths(hub) == [MANIFEST, "templates/chat.jinja"]
    assert mine.files["README.md"] == b"# Mine\n"
    assert mine.files["NOTES.md"] == b"notes"


@pytest.mark.parametrize("name", ["config.json", ONE])
def test_an_edited_patch_is_not_overwritten(hub: Recorder, mirror: Run, name: str) -> None:
    made(mirror)
    hub.repositories[MIRROR].files[name] += b"\n"
    before = len(hub.sent)
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, len(hub.sent)) == (3, before)
    assert f"{name}: is not what ckpt-patch put there" in done.err
    assert f"hf repos delete-files {MIRROR} {name}" in done.err


def test_an_edited_file_that_the_source_changed_too_is_not_overwritten(
    hub: Recorder, mirror: Run
) -> None:
    made(mirror)
    hub.repositories[MIRROR].files["README.md"] = b"mine"
    hub.repositories[REPO].files["README.md"] = b"theirs"
    assert mirror(REPO, f"hub://{MIRROR}").code == 3
    assert hub.repositories[MIRROR].files["README.md"] == b"mine"


def test_what_is_missing_is_brought_back(hub: Recorder, mirror: Run) -> None:
    made(mirror)
    for name in ("config.json", ONE):
        del hub.repositories[MIRROR].files[name]
    made(mirror)
    assert paths(hub) == ["config.json", ONE]


# Races and lost answers


def test_a_commit_in_between_is_said(
    hub: Recorder, mirror: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(mirror)
    mine, send = hub.repositories[MIRROR], uploading.send
    files = dict(mine.files)

    def late(*words: Any) -> str:
        mine.commit = "d" * 40
        return send(*words)

    monkeypatch.setattr(uploading, "send", late)
    hub.repositories[REPO].files["README.md"] = b"new"
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 3
    assert (
        "somebody has committed to it, or is doing so (412). Your commit was not made" in done.err
    )
    assert f"/{MIRROR}/commits/main, then run the same command again" in done.err
    assert (mine.commit, mine.files) == ("d" * 40, files)


def test_a_busy_branch_is_said(hub: Recorder, mirror: Run) -> None:
    hub.faults.append(Fault("/commit/", 409, {}, "POST"))
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 5
    assert "somebody has committed to it, or is doing so (409)" in done.err
    assert (
        f"The repository {MIRROR} was created\n" in done.err
    )  # whose files are there is not known


@pytest.mark.parametrize("after", ["create", "send"])
def test_a_repository_that_somebody_fills_meanwhile_is_left_alone(
    hub: Recorder, mirror: Run, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Nor is it called empty, or its removal proposed."""
    create, send = uploading.create, uploading.send
    theirs = {"model.gguf": b"GGUF"}

    def fill() -> None:
        hub.repositories[MIRROR] = Writable(dict(theirs), "d" * 40)

    def created(*words: Any, **options: Any) -> None:
        create(*words, **options)
        fill()

    def sending(*words: Any) -> str:
        fill()
        return send(*words)

    call = {"create": created, "send": sending}[after]
    monkeypatch.setattr(uploading, after, call)
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, hub.repositories[MIRROR].files) == ({"create": 3, "send": 5}[after], theirs)
    assert not done.err.splitlines()[0].endswith("empty")
    if after == "create":
        assert "holds files and is not a mirror made by ckpt-patch. Nothing was written" in done.err
        assert "hf repos delete" not in done.err
    else:
        assert "somebody has committed to it, or is doing so (412)" in done.err
        assert f"or, if it is empty, remove it: hf repos delete {MIRROR}" in done.err


def test_a_lost_answer_is_no_failure(hub: Recorder, mirror: Run) -> None:
    hub.lose_commit = 1
    assert f"Made hub://{MIRROR}" in made(mirror).out
    assert hub.repositories[MIRROR].commit == f"{0xB0B0_0002:040x}"
    assert len(hub.posted("/commit/")) == 1


@pytest.mark.usefixtures("hub")
def test_a_commit_that_was_done_although_the_hub_failed(
    mirror: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = uploading.send

    def lost(*words: Any) -> str:
        send(*words)
        raise NoAnswerError("no answer")

    monkeypatch.setattr(uploading, "send", lost)
    made(mirror)


@pytest.mark.usefixtures("hub")
def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(uploading, "send", interrupt)
    target = Target.parse("sm120", engine="vllm==0.16.0")
    with pytest.raises(InterruptedError_, match=r"Kimi-sm120 was created$") as caught:
        patcher.api.mirror_to_hub(REPO, MIRROR, target)
    assert caught.value.exit_code == 130
    assert f"hf repos delete {MIRROR}" in str(caught.value.hint)


ANSWERS = [
    (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, 1,
     "writing to the Hub needs a token", "hf auth login"),
    (401, {}, 1, "writing to the Hub needs a token", "hf auth login"),
    (403, {"X-Error-Message": "You don't have the rights"}, 1,
     "the Hub forbids writing to this repository (403): You don't have the rights", "hf auth log"),
    (404, {"X-Error-Code": "RepoNotFound"}, 1, "the Hub shows you no such rep", "hf auth whoami"),
    (413, {"Error": "over your quota"}, 1, "the Hub refuses (413): over your quota", "http"),
    (429, {"Retry-After": "1"}, 4, "the Hub was asked too often (429)", "wait a few minutes"),
    (503, {}, 4, "the Hub is out of order (503)", "wait a few minutes"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "headers", "attempts", "message", "hint"), ANSWERS)
def test_a_repository_that_is_not_created(  # noqa: PLR0913, PLR0917 - one answer
    hub: Recorder,
    mirror: Run,
    status: int,
    headers: dict[str, str],
    attempts: int,
    message: str,
    hint: str,
) -> None:
    hub.faults.append(Fault("/create", status, headers, "POST"))
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == (5 if attempts > 1 else 3)
    assert message in done.err
    assert hint in done.err
    assert len(done.err.splitlines()) == 2
    assert ("Nothing was written" in done.err) == (attempts == 1)
    assert len(hub.posted("create")) == len(hub.sent)  # nothing else was asked for
    assert set(hub.repositories) == {REPO}


@pytest.mark.parametrize(("status", "headers", "attempts", "message", "hint"), ANSWERS)
def test_a_commit_that_is_not_taken(  # noqa: PLR0913, PLR0917 - one answer
    hub: Recorder,
    mirror: Run,
    status: int,
    headers: dict[str, str],
    attempts: int,
    message: str,
    hint: str,
) -> None:
    hub.faults.append(Fault("/commit/", status, headers, "POST"))
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 5
    assert message in done.err
    assert hint in done.err
    known = "" if attempts > 1 else ", and is empty"
    assert f"The repository {MIRROR} was created{known}\n" in done.err
    assert f"hf repos delete {MIRROR}" in done.err
    assert len(hub.posted("/commit/")) == attempts
    assert set(hub.repositories[MIRROR].files) == {".gitattributes"}
    hub.faults.clear()
    assert f"Made hub://{MIRROR}" in made(mirror).out


@pytest.mark.parametrize("what", ["/create", "/commit/", "/preupload/", "/duplicate"])
def test_a_hub_that_recovers(hub: Recorder, mirror: Run, what: str) -> None:
    hub.faults.append(Fault(what, 503, {}, "POST", times=2))
    assert f"Made hub://{MIRROR}" in made(mirror).out


# What the Hub does not copy


def test_a_gated_source_is_refused(hub: Recorder, mirror: Run) -> None:
    hub.repositories[REPO] = Writable(dict(FILES), gated="manual")
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, hub.sent) == (3, [])
    assert f"{REPO}: is gated" in done.err
    assert f"ckpt-patch mirror {' '.join(TARGET)} {REPO} {REPO[5:]}-sm120\n" in done.err


def test_weights_that_are_not_in_xet_are_refused_before_anything_is_made(
    hub: Recorder, mirror: Run
) -> None:
    hub.repositories[REPO] = Writable(dict(FILES), xet=False)
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, hub.sent) == (3, [])
    assert f"has files that the Hub cannot copy, because they are not in Xet: {ONE}, {TWO}" in (
        done.err
    )


def test_what_the_hub_fails_to_copy_is_said_with_its_reason(hub: Recorder, mirror: Run) -> None:
    hub.failed[sha256(FILES[TWO])] = "target is in another storage region"
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 5
    assert (
        "the Hub does not copy these files itself: target is in another storage region. The "
        f"repository {MIRROR} was created, and is empty" in done.err
    )
    assert hub.posted("/commit/") == []
    again = mirror(REPO, f"hub://{MIRROR}")  # now the empty repository is there
    assert again.code == 3
    assert f"{MIRROR}: the Hub does not copy these files itself: " in again.err
    assert "Nothing was written" in again.err
    assert "Hint: make it here and send all of it: ckpt-patch mirror acme/" in again.err
    assert f" Kimi-sm120 && hf upload {MIRROR} Kimi-sm120\n" in again.err


def test_a_private_source_stays_private(hub: Recorder, mirror: Run) -> None:
    hub.repositories[REPO] = Writable(dict(FILES), private=True)
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, hub.sent) == (3, [])
    assert f"{REPO}: is private, and {MIRROR} would not be" in done.err
    assert mirror("--private", REPO, f"hub://{MIRROR}").code == 0
    assert hub.sent[0].body["visibility"] == "private"
    mine = hub.repositories[MIRROR]
    assert isinstance(mine, Writable)
    assert mine.private
    assert "Nothing to do" in made(mirror).out


def test_nothing_private_is_put_into_a_public_repository(hub: Recorder, mirror: Run) -> None:
    hub.repositories[MIRROR] = Writable({}, "e" * 40)
    done = mirror("--private", REPO, f"hub://{MIRROR}")
    assert (done.code, hub.sent) == (3, [])
    assert f"hf repos settings {MIRROR} --private" in done.err


def test_what_a_gitignore_keeps_out_is_missed(hub: Recorder, mirror: Run) -> None:
    hub.ignored.add("config.json")
    done = mirror(REPO, f"hub://{MIRROR}")
    assert done.code == 5
    assert "is there, but not as it was sent: config.json" in done.err
    assert f"hf repos delete {MIRROR}" in done.err


def test_a_patched_cache_is_not_mistaken_for_the_source(
    hub: Recorder, mirror: Run, run: Run, tmp_path: Path
) -> None:
    assert run("check", *TARGET, REPO).code == 1  # fetches the metadata
    snapshot = next((tmp_path / "cache").glob("models--*/snapshots/*"))
    text = (snapshot / "config.json").read_bytes()
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_bytes(text.replace(b"kimi_k25", b"kimi_k2"))
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, hub.sent) == (3, [])
    assert "is not what the Hub has" in done.err
    assert f"ckpt-patch undo {snapshot}" in done.err


@dataclasses.dataclass
class OldCopy:
    src_path_in_repo: str
    path_in_repo: str
    src_revision: str | None = None


def test_a_library_that_cannot_copy_is_named(
    recorder: Recorder, mirror: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "CommitOperationCopy", OldCopy)
    done = mirror(REPO, f"hub://{MIRROR}")
    assert (done.code, recorder.sent) == (3, [])
    assert "cannot copy files from one repository to another; that needs huggingface_hub>=1.17" in (
        done.err
    )
    assert "uvx --with 'huggingface_hub>=1.17' ckpt-patch mirror" in done.err


# The command line


def test_a_directory_is_no_source(mirror: Run, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "here", FILES)
    done = mirror("here", f"hub://{MIRROR}")
    assert done.code == 3
    assert "is a directory here, and the Hub can copy weights only from a repository" in done.err
    assert f"hf upload {MIRROR}" in done.err


def test_a_cached_snapshot_is_named_by_its_repository(mirror: Run, tmp_path: Path) -> None:
    names = {name: data for name, data in FILES.items() if "/" not in name}
    snapshot = make_cache(tmp_path / "other-cache", REPO, names, commit=COMMIT)
    done = mirror(str(snapshot), f"hub://{MIRROR}")
    assert done.code == 3
    assert f"ckpt-patch mirror hf://{REPO}@{COMMIT} hub://{MIRROR}" in done.err


@pytest.mark.parametrize("how", ["--no-network", "HF_HUB_OFFLINE"])
def test_without_a_network(mirror: Run, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    from huggingface_hub import constants

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was made")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = mirror(*([how] if how.startswith("-") else []), REPO, f"hub://{MIRROR}")
    assert done.code == 3
    assert "needs the network, which --no-network or HF_HUB_OFFLINE forbids" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((REPO, "hub://name"), "names no repository that could be made"),
        ((REPO, "hub://me/name@v1"), "names no repository that could be made"),
        ((REPO, f"hub://{REPO}"), "source and destination are the same repository"),
        (("--link", "copy", REPO, f"hub://{MIRROR}"), "a mirror on the Hub goes without --link"),
        (("--private", REPO, "DEST"), "a mirror in a directory goes without --private"),
    ],
)
def test_usage(hub: Recorder, mirror: Run, words: tuple[str, ...], message: str) -> None:
    done = mirror(*words)
    assert (done.code, hub.sent) == (2, [])
    assert message in done.err


def test_the_library_call(hub: Recorder) -> None:
    target = Target.parse("sm120", engine="vllm==0.16.0")
    done = patcher.api.mirror_to_hub(REPO, MIRROR, target)
    assert isinstance(done, HubMirrored)
    assert (done.name, done.outcome) == (MIRROR, "made")
    assert done.commit == hub.repositories[MIRROR].commit
    with pytest.raises(UsageError):
        patcher.api.mirror_to_hub(REPO, "name", target)
    with pytest.raises(RefusedError):
        patcher.api.mirror_to_hub(FIXTURE, MIRROR, target)
