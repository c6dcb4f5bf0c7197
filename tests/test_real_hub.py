"""Hub ids against a Hub server that is not ours: olah, with what goes wrong on the way to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import shard
from hubs import measured, olah, proxy
from hubs.proxy import Fault, Proxy
from running import Run, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hubs.olah import Origin

pytestmark = pytest.mark.skipif(not olah.installed(), reason="olah is not here: make peers")

REPO = "acme/Kimi-K2.5-NVFP4"
FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SCALES = {
    "model.layers.0.self_attn.k_proj.k_scale": ONE,
    "model.layers.0.self_attn.v_proj.v_scale": ONE,
    "lm_head.weight": TWO,
}
FILES = {
    **{name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")},
    "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": SCALES}).encode(),
    ONE: shard(*list(SCALES)[:2]),
    TWO: shard("lm_head.weight", item=4) + bytes(0),
    "README.md": b"# Kimi\n",
    "kimi/modeling.py": b"# code\n",
}
SINGLE = {
    **{name: FILES[name] for name in ("config.json", "hf_quant_config.json")},
    "model.safetensors": shard("layers.0.self_attn.k_scale", "layers.0.self_attn.v_scale"),
}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")
#: A release that starts, so that it matters whether there are scales.
STARTS = ("--target", "sm120", "--engine", "vllm==0.33.0")
TOKEN = "hf_aSecretThatNobodyMaySee"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Origin]]:
    """olah behind the proxy. The client keeps its connections, so it is closed before them."""
    from huggingface_hub import utils

    with olah.running(tmp_path_factory.mktemp("olah")) as (url, origin):
        origin.commit(REPO, FILES)
        origin.commit("acme/single", SINGLE)
        with proxy.running(url, origin.files) as front:
            yield front, origin
            close: Any = getattr(utils, "close_session", lambda: None)
            close()


@pytest.fixture
def hub(chain: tuple[Proxy, Origin], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Proxy:
    """The chain without faults, an empty cache, a token, no pauses between attempts."""
    from huggingface_hub import constants, file_download

    front, _ = chain
    front.faults.clear()
    front.log.clear()
    template = front.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", front.url)
    for module in (constants, file_download):
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    return front


def weights(hub: Proxy) -> dict[str, int]:
    """Bytes sent of each shard."""
    sent: dict[str, int] = {}
    for seen in hub.log:
        name = seen.path.rpartition("/")[2]
        if name.endswith(".safetensors") and seen.sent:
            sent[name] = sent.get(name, 0) + seen.sent
    return sent


def test_check_of_a_cold_cache_fetches_metadata_only(hub: Proxy, run: Run) -> None:
    done = run("check", *TARGET, "-q", REPO)
    assert (done.code, done.out) == (1, "conflict KV001\n"), done.err
    assert weights(hub) == {}
    hub.log.clear()
    assert run("check", *TARGET, "-q", REPO).out == done.out
    assert [seen.path for seen in hub.log] == [f"/api/models/{REPO}/revision/main"]
    hub.log.clear()
    assert run("check", *TARGET, "-q", "--no-network", REPO).out == done.out
    assert hub.log == []


@pytest.mark.parametrize("elsewhere", [False, True], ids=["hub", "storage"])
def test_shard_headers_are_read_by_range(hub: Proxy, run: Run, *, elsewhere: bool) -> None:
    """Without an index the names of the scales stand in the header of the shard."""
    if elsewhere:
        hub.faults.append(Fault(".safetensors", elsewhere=True))
    done = run("check", *STARTS, "--json", "acme/single")
    assert done.code == 0, done.err
    assert json.loads(done.out)["evidence"]["paired"] == 1
    assert json.loads(done.out)["evidence"]["weight_bytes_read"] == 0
    data = SINGLE["model.safetensors"]
    header = 8 + int.from_bytes(data[:8], "little")
    assert 0 < weights(hub)["model.safetensors"] <= header
    storage = [seen for seen in hub.log if seen.host in hub.storage]
    assert bool(storage) is elsewhere
    assert not any(seen.authorized for seen in storage)
    asked = [seen for seen in hub.log if "acme/single" in seen.path and seen not in storage]
    assert all(seen.authorized for seen in asked)
    assert TOKEN not in done.out + done.err


def test_mirror_downloads_once_and_again_after_a_new_commit(
    hub: Proxy, chain: tuple[Proxy, Origin], run: Run, tmp_path: Path
) -> None:
    origin, repo, place = chain[1], "acme/moving", tmp_path / "mirror"
    origin.commit(repo, FILES)
    hub.faults.append(Fault(".safetensors", elsewhere=True))
    command = ("mirror", "-q", *TARGET, repo, str(place))
    first = run(*command)
    assert (first.code, first.out) == (0, f"{place}\n"), first.err
    for name, data in FILES.items():
        same = (place / name).read_bytes() == data
        assert same is (name not in ("config.json", "hf_quant_config.json")), name
    assert run("check", *TARGET, str(place)).code == 0
    assert run("verify", "--hash", str(place)).code == 0
    assert weights(hub) == {ONE: len(FILES[ONE]), TWO: len(FILES[TWO])}
    made = snapshot(place)
    hub.log.clear()
    assert run(*command).code == 0
    assert (weights(hub), snapshot(place)) == ({}, made)
    origin.commit(repo, {**FILES, "README.md": b"# Kimi, second\n"})
    assert run(*command).code == 0
    assert (place / "README.md").read_bytes() == b"# Kimi, second\n"
    assert weights(hub) == {}  # the same blobs


@pytest.mark.parametrize(
    ("fault", "path", "words"),
    [
        (Fault("/", status=401, headers={"X-Error-Code": "GatedRepo"}), REPO, "is gated"),
        (
            Fault("/", status=401, headers={"X-Error-Message": "Invalid credentials in Auth"}),
            REPO,
            "does not accept your token",
        ),
        (None, "acme/nothing", "no such repository that the Hub shows you"),
        (None, f"{REPO}@v9", "the repository has no revision v9"),
        (
            Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"}),
            REPO,
            "no file config.json",
        ),
        (Fault("/api/", status=429), REPO, "asked too often (429)"),
        (Fault("/api/", status=503), REPO, "out of order (503), 4 attempts failed"),
        (Fault("/resolve/", "GET", status=503), REPO, "out of order (503)"),
        (Fault(".safetensors", "GET", ignore_range=True), "acme/single", "ignores Range"),
        (Fault("/config.json", "GET", flip=40), REPO, "config.json arrived damaged"),
        (Fault("/config.json", "GET", cut=40), REPO, "cannot reach the Hub"),
    ],
    ids=[
        "gated",
        "token",
        "repo",
        "revision",
        "file",
        "429",
        "503-api",
        "503-get",
        "range",
        "flip",
        "cut",
    ],
)
def test_one_sentence_and_exit_4(
    hub: Proxy, run: Run, fault: Fault | None, path: str, words: str
) -> None:
    hub.faults.extend([fault] if fault else [])
    done = run("check", *(STARTS if path == "acme/single" else TARGET), path)
    assert (done.code, done.out) == (4, ""), done.err
    error, *rest = done.err.splitlines()
    assert error.startswith(f"Error: {path}")
    assert words in error
    assert all(line.startswith("Hint: ") for line in rest)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/api/", status=503, times=3),
        Fault("/api/", status=429, headers={"Retry-After": "0"}, times=3),
        Fault("/resolve/", "GET", status=503, times=3),
        pytest.param(Fault("/config.json", "GET", cut=40, times=1), marks=measured),
    ],
    ids=["503-api", "429-api", "503-get", "cut"],
)
def test_what_passes_is_waited_for(hub: Proxy, run: Run, fault: Fault) -> None:
    hub.faults.append(fault)
    done = run("check", *TARGET, "-q", REPO)
    assert (done.code, done.out, fault.times) == (1, "conflict KV001\n", 0), done.err


def test_a_download_goes_on_with_the_file_that_failed(hub: Proxy, run: Run, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    hub.faults.append(Fault(TWO, "GET", status=503))
    done = run("mirror", "-q", *TARGET, REPO, str(place))
    assert (done.code, done.out, place.exists()) == (4, "", False)
    assert "out of order (503)" in done.err
    assert weights(hub)[ONE] == len(FILES[ONE])
    hub.faults.clear()
    hub.log.clear()
    assert run("mirror", "-q", *TARGET, REPO, str(place)).code == 0
    assert weights(hub) == {TWO: len(FILES[TWO])}


def test_a_flipped_byte_in_the_weights_makes_no_mirror(
    hub: Proxy, run: Run, tmp_path: Path
) -> None:
    hub.faults.append(Fault(TWO, "GET", flip=len(FILES[TWO]) - 1))
    done = run("mirror", *TARGET, REPO, str(tmp_path / "mirror"))
    assert done.code == 4
    assert f"{TWO} arrived damaged" in done.err
    assert not (tmp_path / "mirror").exists()


@measured
def test_weights_that_come_through_xet(
    hub: Proxy, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real Xet client, with a content-addressed store on disk instead of its server."""
    hf_xet = pytest.importorskip("hf_xet", reason="hf_xet is not installed")
    if not hasattr(hf_xet, "XetSession"):
        pytest.skip("this hf_xet has no local store")
    store = f"local://{tmp_path / 'store'}"
    (tmp_path / "store").mkdir()
    (tmp_path / ONE).write_bytes(FILES[ONE])
    end = int(time.time()) + 9999
    session = hf_xet.XetSession()
    with session.new_upload_commit(endpoint=store, token="x", token_expiry_unix_secs=end) as commit:
        held = commit.start_upload_file(str(tmp_path / ONE), sha256=hf_xet.COMPUTE_SHA256)
    route = f'<{hub.url}/api/models/{REPO}/xet-read-token/main>; rel="xet-auth"'
    hub.faults += [
        Fault(
            "xet-read-token",
            status=200,
            headers={
                "X-Xet-Cas-Url": store,
                "X-Xet-Access-Token": "x",
                "X-Xet-Token-Expiration": str(end),
            },
            body=b"{}",
        ),
        Fault(ONE, "HEAD", headers={"X-Xet-Hash": held.result().xet_info.hash, "Link": route}),
    ]
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    place = tmp_path / "mirror"
    done = run("mirror", "-q", *TARGET, REPO, str(place))
    assert (done.code, done.out) == (0, f"{place}\n"), done.err
    assert (place / ONE).read_bytes() == FILES[ONE]
    assert weights(hub) == {TWO: len(FILES[TWO])}  # the other came through the store
    assert run("verify", "--hash", str(place)).code == 0


@pytest.mark.usefixtures("hub")
def test_transformers_loads_the_mirror(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    assert run("mirror", "-q", *TARGET, REPO, str(place)).code == 0
    code = (
        "import sys, transformers\n"
        "config, _ = transformers.PretrainedConfig.get_config_dict(sys.argv[1])\n"
        "print(config['quantization_config']['kv_cache_scheme'])\n"
    )
    done = subprocess.run(
        [str(olah.PEERS / "python"), "-c", code, str(place)],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.stdout == "None\n", done.stderr


def test_a_process_of_its_own_as_in_an_entrypoint(hub: Proxy, tmp_path: Path) -> None:
    """Settings come from the environment; nothing but the path is on standard output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "patcher", "mirror", "-q", *TARGET, REPO, "served"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'served'}\n"), done.stderr
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    hub.log.clear()
    again = subprocess.run(
        command, capture_output=True, text=True, check=False, env=offline, cwd=tmp_path
    )
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert hub.log == []
