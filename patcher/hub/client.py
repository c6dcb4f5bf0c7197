"""Every call of huggingface_hub; all HF_* variables are left to it.

The library retries less than it should: 503 on GET and 429 or 503 on ``/api`` end a call at once.
So every request is repeated here. Works with huggingface_hub from 0.34 (requests) to 2.x (httpx).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from patcher.errors import UnreadableError
from patcher.hub.failures import PAUSES, UNREADABLE, explain, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from patcher.errors import CkptPatchError
    from patcher.hub.ids import HubId

    T = TypeVar("T")

_ERROR = 400

#: Bytes that are taken from a connection at a time.
_CHUNK = 65536


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    from huggingface_hub import constants  # noqa: PLC0415 - lazy: only Hub ids need it

    return bool(constants.HF_HUB_OFFLINE)


def model_info(hub_id: HubId) -> Any:
    """The library's ``ModelInfo`` with sizes and hashes of all files, as the Hub has it now."""
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 - lazy: only Hub ids need it

    def ask() -> Any:
        return HfApi().model_info(
            hub_id.repo_id,
            revision=hub_id.revision or "main",
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )

    return asked(ask, hub_id)


def folder_of(hub_id: HubId, commit: str) -> Path:
    """Where the cache keeps the snapshot of a commit, whether it is there or not."""
    from huggingface_hub import constants  # noqa: PLC0415 - lazy: only Hub ids need it
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415 - the same

    folder = repo_folder_name(repo_id=hub_id.repo_id, repo_type="model")
    return Path(constants.HF_HUB_CACHE, folder, "snapshots", commit).absolute()


def cached_folder(hub_id: HubId, names: Iterable[str]) -> Path | None:
    """The cached snapshot of a revision that has one of the files; opens no connection."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - lazy: only Hub ids need it

    for name in names:
        found = try_to_load_from_cache(hub_id.repo_id, name, revision=hub_id.revision)
        if isinstance(found, str):
            return Path(found).absolute().parent
    return None


def fetch(hub_id: HubId, name: str) -> Path:
    """Download one file into the cache; returns its name there."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - lazy: only Hub ids need it

    def ask() -> Path:
        return Path(hf_hub_download(hub_id.repo_id, name, revision=hub_id.revision))

    return asked(ask, hub_id, name)


def fetch_all(hub_id: HubId, commit: str) -> None:
    """Download what is missing of a commit into the cache, with the library's progress bars."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - lazy: only Hub ids need it

    asked(lambda: snapshot_download(hub_id.repo_id, revision=commit), hub_id)


def size(hub_id: HubId, commit: str, name: str) -> int:
    """Bytes of a file, from a HEAD request."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # noqa: PLC0415 - lazy: Hub only

    url = hf_hub_url(hub_id.repo_id, name, revision=commit)
    found = asked(lambda: get_hf_file_metadata(url).size, hub_id, name)
    if found is None:
        raise UnreadableError(f"the server does not say how long {name} is", path=str(hub_id))
    return found


def read_range(hub_id: HubId, commit: str, name: str, size: int, offset: int) -> bytes:
    """``size`` bytes of a file on the Hub, from ``offset`` on.

    Raises:
        UnreadableError: also when the server gives the whole file instead, which is not read.
    """
    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - lazy: only Hub ids need it

    url = hf_hub_url(hub_id.repo_id, name, revision=commit)
    wanted = {"Range": f"bytes={offset}-{offset + size - 1}", "Accept-Encoding": "identity"}

    def ask() -> bytes | None:
        with _opened(url, {**_utils().build_hf_headers(), **wanted}) as response:
            given = response.headers.get("Content-Range", "")
            return _first(response, size) if given.startswith(f"bytes {offset}-") else None

    data = asked(ask, hub_id, name)
    if data is None or len(data) != size:
        raise UnreadableError(
            f"the server does not give parts of {name}: it ignores Range requests",
            path=str(hub_id),
            hint=f"hf download {hub_id.repo_id} --revision {commit}",
        )
    return data


def asked(ask: Callable[[], T], hub_id: HubId, name: str | None = None) -> T:
    """Ask for something of a repository.

    Raises:
        UnreadableError: one sentence on why there is no answer.
    """
    return repeated(ask, lambda error, endpoint: explain(error, hub_id, endpoint, name))


def repeated(ask: Callable[[], T], explained: Callable[[BaseException, str], CkptPatchError]) -> T:
    """Ask up to ``len(PAUSES) + 1`` times; ``explained`` makes an error, given the endpoint too.

    Raises:
        CkptPatchError: what ``explained`` makes of the last failure.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - lazy: only Hub ids need it
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - the same

    # Of the library, of the HTTP library below it, whichever that is, and of hf_xet.
    failures: tuple[type[BaseException], ...] = (
        OSError, RuntimeError, HfHubHTTPError.__bases__[0], *UNREADABLE
    )  # fmt: skip
    for usual in (*PAUSES, None):
        try:
            return ask()
        except failures as error:
            seconds = None if usual is None else pause(error, usual)
            if seconds is None:
                raise explained(error, constants.ENDPOINT) from error
        time.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


def _utils() -> Any:
    """The library's ``utils``, whose names its type hints do not export."""
    from huggingface_hub import utils  # noqa: PLC0415 - lazy: only Hub ids need it

    return utils


@contextlib.contextmanager
def _opened(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """A response whose body was not read yet; HTTP errors are raised as the library raises them."""
    from huggingface_hub import constants  # noqa: PLC0415 - lazy: only Hub ids need it

    session = _utils().get_session()
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if callable(getattr(session, "stream", None)):  # httpx
        opened = session.stream("GET", url, headers=headers, timeout=timeout)
    else:  # requests, which has a flag of that name
        opened = contextlib.closing(session.get(url, headers=headers, timeout=timeout, stream=True))
    with opened as response:
        if response.status_code >= _ERROR:
            getattr(response, "read", lambda: response.content)()  # for the library's message
        _utils().hf_raise_for_status(response)
        yield response


def _first(response: Any, size: int) -> bytes:
    """At most ``size`` bytes of a body, whatever its length says."""
    chunks = getattr(response, "iter_bytes", None) or response.iter_content
    data = bytearray()
    for chunk in chunks(_CHUNK):
        data += chunk
        if len(data) >= size:
            break
    return bytes(data[:size])
