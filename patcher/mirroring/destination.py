"""Where a mirror will be, and what stands there now."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher.errors import RefusedError, UsageError
from patcher.headers.files import StrPath, quoted
from patcher.mirroring import verifying
from patcher.mirroring.listing import inside
from patcher.mirroring.manifest import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.mirroring.manifest import Manifest

Standing = Literal["absent", "current", "outdated"]


class Destination(Struct, frozen=True):
    """A name in a folder that exists; ``parent`` is absolute and without links."""

    parent: str
    name: str

    @property
    def path(self) -> str:
        """The absolute path."""
        return os.path.join(self.parent, self.name)


def locate(target: StrPath) -> Destination:
    """From the argument to the place.

    Raises:
        RefusedError: it is a link, or its folder is missing.
        UsageError: it is no path.
    """
    text = os.fspath(target)
    try:
        linked = os.path.islink(text)
        parent, name = os.path.split(os.path.realpath(text))
    except (OSError, ValueError) as error:
        raise UsageError(f"{text!r} is no path: {error}", hint="ckpt-patch mirror SRC DEST") from (
            error
        )
    if not text or not name:
        raise UsageError(f"{text!r} cannot be a mirror", hint="ckpt-patch mirror SRC DEST")
    if linked:
        raise RefusedError(
            f"is a link to {os.readlink(text)}. Nothing was written",
            path=text,
            hint=f"name the place that it leads to: {quoted(os.path.join(parent, name))}",
        )
    if not os.path.isdir(parent):
        raise RefusedError(
            "the folder for it does not exist. Nothing was written",
            path=text,
            hint=f"mkdir -p {quoted(parent)}",
        )
    return Destination(parent, name)


@contextmanager
def opened(place: Destination) -> Iterator[int]:
    """Open the folder that the mirror will be in.

    Raises:
        RefusedError: it cannot be opened.
    """
    try:
        fd = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RefusedError(
            f"cannot be opened: {error.strerror}. Nothing was written", path=place.parent
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)


def require_apart(source: str, place: Destination) -> None:
    """Source and destination must not contain each other, nor the destination be in a Hub cache.

    Raises:
        UsageError: they are the same.
        RefusedError: one is inside the other.
    """
    root = os.path.realpath(source)
    if root == place.path:
        raise UsageError(
            "source and destination are the same",
            path=place.path,
            hint=f"name another place, or patch in place: ckpt-patch apply {quoted(root)}",
        )
    snapshots = os.path.dirname(root)
    homes = [(root, "the source itself")]
    if os.path.basename(snapshots) == "snapshots":
        homes.append((os.path.dirname(snapshots), "the Hub's cache, whose tools would delete it"))
    for home, what in homes:
        if inside(place.path, home):
            raise RefusedError(
                f"lies inside {what}. Nothing was written",
                path=place.path,
                hint=f"choose a place outside of {quoted(home)}",
            )
    if inside(root, place.path):
        raise RefusedError(
            "contains the source. Nothing was written",
            path=place.path,
            hint="choose a place that does not exist yet",
        )


def standing(place: Destination, wanted: Manifest) -> Standing:
    """What is at the destination.

    Raises:
        RefusedError: something that is not a mirror, or a mirror in which somebody has worked.
    """
    path, there = place.path, present(place)
    if there is None:
        return "absent"
    problems = verifying.here(path, there)
    if there.wanted() == wanted.wanted() and all(each.kind == "added" for each in problems):
        return "current"
    theirs = [each for each in problems if each.kind in {"added", "edited"}]
    if theirs:
        raise RefusedError(
            "has to be made anew, and would lose what somebody has done in it. Nothing was written",
            path=path,
            hint=f"move it away, then run the command again: mv {quoted(path)} {quoted(path)}.old",
            detail="".join(f"{each.file}: {each.message}\n" for each in theirs),
        )
    return "outdated"


def present(place: Destination) -> Manifest | None:
    """The mirror at the destination; ``None`` where there is nothing.

    Raises:
        RefusedError: something that is not a mirror.
    """
    path = place.path
    if not os.path.lexists(path):
        return None
    if os.path.islink(path) or not os.path.isdir(path):
        raise _foreign(path, "is something else, not a mirror")
    try:
        if not os.listdir(path):
            return None
    except OSError as error:
        raise _foreign(path, f"cannot be read: {error.strerror}") from error
    manifest = read(path)
    if manifest is None:
        raise _foreign(path, "holds files and is not a mirror made by ckpt-patch")
    return manifest


def mount_point(place: Destination) -> RefusedError:
    """The error for a destination that cannot be renamed over."""
    return RefusedError(
        "is a mount point, and a mirror takes its name by a rename. Nothing was written",
        path=place.path,
        hint=f"name a folder inside it: {quoted(os.path.join(place.path, 'mirror'))}",
    )


def _foreign(path: str, why: str) -> RefusedError:
    return RefusedError(
        f"{why}. Nothing was written",
        path=path,
        hint="choose a place that does not exist yet, or is empty",
    )
