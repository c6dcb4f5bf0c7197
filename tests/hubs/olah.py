"""olah, a Hub server from PyPI, seeded from directories: the real server that the client talks to.

One olah serves git repositories from disk but ignores ``Range``; a second one in proxy mode stands
in front of it and adds ranges, as mirrors of the Hub in companies do.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
#: Programs of other projects that the tests run, in an environment of their own (`make peers`).
PEERS = Path(os.environ.get("PEERS", _REPOSITORY / ".venv-peers")) / "bin"
LARGE = (".safetensors", ".bin", "tokenizer.json")
_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
_START = 60.0


def installed() -> bool:
    """Whether ``make peers`` was run."""
    return (PEERS / "olah-cli").exists()


class Origin:
    """The git repositories that olah serves; ``commit`` may be called while it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[tuple[str, str], Mapping[str, bytes]] = {}

    def commit(self, repo_id: str, files: Mapping[str, bytes]) -> str:
        """Make ``files`` the content of the branch main; return the commit, 40 hex digits."""
        work = self.root / "mirrors" / "models" / repo_id
        work.mkdir(parents=True, exist_ok=True)
        if not (work / ".git").exists():
            _git(work, "init", "-q", "-b", "main", ".")
        _git(work, "rm", "-r", "-q", "--ignore-unmatch", ".")
        for name, data in files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_stored(work, name, data))
        _git(work, "add", "-A")
        author = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        _git(work, *author, "commit", "-q", "--allow-empty", "-m", "files")
        commit = _git(work, "rev-parse", "HEAD")
        self._announce(repo_id, commit)
        self.files[repo_id, commit] = self.files[repo_id, "main"] = dict(files)
        return commit

    def _announce(self, repo_id: str, commit: str) -> None:
        """Without this file olah answers 401 to ``GET /api/models/REPO`` when it is offline."""
        note = self.root / "repos/api/models" / repo_id / "revision" / commit / "meta_head.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"sha": commit, "lastModified": "2026-01-01T00:00:00.000Z"}))


@contextmanager
def running(root: Path) -> Iterator[tuple[str, Origin]]:
    """Two olah processes; gives the address of the outer one, and the repositories."""
    origin = Origin(root)
    inner, outer = _free_port(), _free_port()
    mirrors = json.dumps([str(root / "mirrors")])
    (root / "mirrors" / "models").mkdir(parents=True)
    (root / "outer").mkdir()
    basic = f"[basic]\nmirrors-path = {mirrors}\n"
    (root / "inner.toml").write_text(f"{basic}[accessibility]\noffline = true\n")
    with ExitStack() as stack:
        stack.enter_context(_olah(root, "-c", str(root / "inner.toml"), port=inner))
        front = ("--hf-scheme", "http", "--hf-netloc", f"127.0.0.1:{inner}")
        fresh = ("--metadata-cache-ttl", "0")
        stack.enter_context(_olah(root / "outer", *front, *fresh, port=outer))
        yield f"http://127.0.0.1:{outer}", origin


@contextmanager
def _olah(folder: Path, *words: str, port: int) -> Iterator[None]:
    command = [str(PEERS / "olah-cli"), *words, "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "olah.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            _until_it_answers(port, process, folder / "olah.log")
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"olah did not start: {log.read_text(errors='replace')[-2000:]}")


def _stored(work: Path, name: str, data: bytes) -> bytes:
    """What git holds of a file: itself, or a pointer to an object that LFS keeps beside it."""
    if not name.endswith(LARGE):
        return data
    digest = hashlib.sha256(data).hexdigest()
    held = work / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
    held.parent.mkdir(parents=True, exist_ok=True)
    held.write_bytes(data)
    return _POINTER.format(digest, len(data)).encode()


def _git(work: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=work, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
