"""Writing to a repository on the Hub: one commit, for which the Hub itself copies the weights.

The library duplicates large files from repository to repository on the server (it needs their Xet
hashes, and both must be in one storage region), and fetches and sends small ones again. Every
commit names its parent, so that to send it twice is harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from patcher.errors import RefusedError, UnreadableError
from patcher.hub import client
from patcher.hub.failures import response_of
from patcher.hub.write_failures import explain, not_copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.hub.ids import HubId

#: The first release whose `CommitOperationCopy` has ``src_repo_id``, found by reading the wheels.
NEEDED = "huggingface_hub>=1.17"


class Blob(Struct, frozen=True):
    """A file of a repository.

    Attributes:
        size: bytes.
        digest: git's sha1 of the blob, or the sha256 of a large file.
        large: whether it is stored beside git (LFS, Xet), as weights are.
        copyable: whether the Hub can copy it to another repository.
    """

    size: int
    digest: str
    large: bool
    copyable: bool


class Repository(Struct, frozen=True):
    """One commit of a repository, as the Hub has it now.

    Attributes:
        hub_id: with the commit as its revision.
        private: whether only its owners see it.
        gated: whether its files are given only to who agreed to terms.
        files: all of them, by path.
    """

    hub_id: HubId
    private: bool
    gated: bool
    files: Mapping[str, Blob]

    @property
    def commit(self) -> str:
        """40 hexadecimal digits."""
        return str(self.hub_id.revision)


class Commit(Struct, frozen=True):
    """What one commit does.

    Attributes:
        parent: the commit that it is made on.
        summary: its first line.
        description: the rest.
        source: from where files are copied, with a commit as its revision.
        copies: paths, equal on both sides.
        additions: path -> bytes that are sent from here.
        deletions: paths.
    """

    parent: str
    summary: str
    description: str
    source: HubId
    copies: tuple[str, ...]
    additions: Mapping[str, bytes]
    deletions: tuple[str, ...]


def require_copying() -> None:
    """The installed library must be able to copy between repositories.

    Raises:
        RefusedError: it is too old.
    """
    from dataclasses import fields  # noqa: PLC0415 - lazy: only this question needs it

    import huggingface_hub  # noqa: PLC0415 - lazy: only Hub ids need it

    if "src_repo_id" not in {field.name for field in fields(huggingface_hub.CommitOperationCopy)}:
        raise RefusedError(
            f"huggingface_hub {huggingface_hub.__version__}, which is installed, cannot copy files "
            f"from one repository to another; that needs {NEEDED}. Nothing was written",
            hint=f"uvx --with '{NEEDED}' ckpt-patch mirror ...   (or: pip install '{NEEDED}')",
        )


def find(hub_id: HubId) -> Repository | None:
    """A repository at one revision; ``None`` where there is none that the Hub shows you.

    Raises:
        UnreadableError: one sentence on why that is not known.
    """
    try:
        info = client.model_info(hub_id)
    except UnreadableError as error:
        if _is_absent(error):
            return None
        raise
    here = replace(hub_id, revision=info.sha)
    return Repository(here, bool(info.private), bool(info.gated), dict(_files(here)))


def read(repository: Repository, path: str, limit: int) -> bytes:
    """A small file of a repository; whether it arrived whole is for its reader to see.

    Raises:
        UnreadableError: it did not arrive, or has more than ``limit`` bytes.
    """
    size = repository.files[path].size
    if size > limit:
        raise UnreadableError(
            f"is {size:,} bytes long, more than the {limit:,} it may have", path=path
        )
    return client.fetch(repository.hub_id, path).read_bytes()


def create(repo_id: str, *, private: bool) -> None:
    """Create an empty repository; one that is there is left as it is.

    Raises:
        CkptPatchError: one sentence on why it was not created.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - lazy: only Hub ids need it

    client.repeated(
        lambda: HfApi().create_repo(
            repo_id, repo_type="model", exist_ok=True, private=True if private else None
        ),
        lambda error, endpoint: explain(error, repo_id, endpoint),
    )


def send(repo_id: str, commit: Commit) -> str:
    """Make a commit on the branch ``main``; returns its id.

    Raises:
        MovedError: the branch is not at ``commit.parent`` any more.
        NoAnswerError: the answer was lost, or the Hub is out of order.
        RefusedError: the Hub does not take it, for the reason that is said.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - lazy: only Hub ids need it
    from huggingface_hub.errors import (  # noqa: PLC0415 - the same
        EntryNotFoundError,
        FileDuplicationError,
    )

    def ask() -> str:
        try:
            return (
                HfApi()
                .create_commit(
                    repo_id,
                    _operations(
                        commit
                    ),  # the library notes in them what it did, so new ones each time
                    commit_message=commit.summary,
                    commit_description=commit.description,
                    parent_commit=commit.parent,
                )
                .oid
            )
        except (EntryNotFoundError, FileDuplicationError, ValueError) as error:
            if response_of(error) is not None:
                raise
            raise not_copied(_reason(error), str(commit.source), repo_id) from error

    return client.repeated(ask, lambda error, endpoint: explain(error, repo_id, endpoint))


def _files(hub_id: HubId) -> Iterator[tuple[str, Blob]]:
    from huggingface_hub import HfApi  # noqa: PLC0415 - lazy: only Hub ids need it

    def ask() -> list[Any]:
        found = HfApi().list_repo_tree(hub_id.repo_id, recursive=True, revision=hub_id.revision)
        return [item for item in found if hasattr(item, "blob_id")]  # folders have none

    for item in client.asked(ask, hub_id):
        large = item.lfs is not None
        digest = item.lfs.sha256 if large else item.blob_id
        copyable = not large or bool(item.xet_hash)
        yield item.path, Blob(item.size, digest, large, copyable)


def _reason(error: Exception) -> str:
    """The last words of what the client says when the Hub does not copy a file."""
    if isinstance(error, ValueError):  # before it has asked: there is no Xet hash
        return str(error).partition(" (file: ")[0]
    return str(error).rpartition("\n")[2].rpartition(": ")[2]


def _operations(commit: Commit) -> list[Any]:
    from huggingface_hub import (  # noqa: PLC0415 - lazy: only Hub ids need it
        CommitOperationAdd,
        CommitOperationCopy,
        CommitOperationDelete,
    )

    source: dict[str, Any] = {
        "src_repo_id": commit.source.repo_id,
        "src_repo_type": "model",
        "src_revision": commit.source.revision,
    }
    copies: list[Any] = [CommitOperationCopy(path, path, **source) for path in commit.copies]
    additions = [CommitOperationAdd(path, data) for path, data in commit.additions.items()]
    deletions = [CommitOperationDelete(path, is_folder=False) for path in commit.deletions]
    return [*copies, *additions, *deletions]


def _is_absent(error: UnreadableError) -> bool:
    """Whether the Hub says that there is no such repository: 401 without a token, 404 with one."""
    response = response_of(error)
    if response is None or response.status_code not in {401, 404}:
        return False
    return bool(response.headers.get("X-Error-Code") == "RepoNotFound")
