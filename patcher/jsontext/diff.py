"""The difference of two versions of a text file."""

from __future__ import annotations


def unified_diff(before: bytes, after: bytes, name: str) -> str:
    r"""Return a unified diff from ``a/name`` to ``b/name`` as git writes it, "" if they are equal.

    Lines end at ``\n`` alone, so a carriage return stays in its line. Bytes that are not UTF-8
    become surrogates (PEP 383), which ``str.encode("utf-8", "surrogateescape")`` takes back.
    """
    import difflib  # noqa: PLC0415 - start-up time: only what shows a diff needs it

    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def _lines(data: bytes) -> list[str]:
    *lines, rest = data.decode("utf-8", "surrogateescape").split("\n")
    return [line + "\n" for line in lines] + ([rest] if rest else [])
