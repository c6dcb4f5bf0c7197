"""JSON text cut into members only where an edit passes; everything else stays the text it was."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher.jsontext.pointer import array_index
from patcher.jsontext.scan import SPACE, members, skip_space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patcher.jsontext.style import Style

    # Writes a value, given the indentation of its line and whether to spread it over lines.
    Writer = Callable[[str, bool], str]


class Node:
    """A value: the text it was read from or, once an edit passed through it, its branches."""

    __slots__ = ("_branches", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._branches: list[Branch] | None = None

    @property
    def is_object(self) -> bool:
        """Whether it has keys."""
        return self.text[0] == "{"

    @property
    def is_array(self) -> bool:
        """Whether it has elements."""
        return self.text[0] == "["

    @property
    def branches(self) -> list[Branch]:
        """The members as they are written, duplicates included; none for a scalar."""
        if self._branches is None:
            self._branches = _cut(self.text)
        return self._branches

    def indices(self, token: str) -> list[int]:
        """Return the places of the members that ``token`` names; Python reads the last one."""
        if self.is_object:
            return [i for i, branch in enumerate(self.branches) if branch.name == token]
        index = array_index(token, len(self.branches))
        return [] if index is None else [index]

    def render(self) -> str:
        """Return the text as it is now. Recursive, but only as deep as edits went."""
        if not self._branches:
            return self.text
        inside = ",".join(map(Branch.render, self._branches))
        return self.text[0] + inside + self.text[-1]

    def remove(self, index: int) -> None:
        """Take out one member, one comma, and white space so that no line stays empty."""
        branches = self.branches
        branch = branches.pop(index)
        if not branches:
            self.text = self.text[0] + self.text[-1]
        elif index == len(branches):
            branches[-1].after = branch.after
        elif index == 0 or ("\n" in branch.before and "\n" not in branches[index].before):
            branches[index].before = branch.before


class Branch(Struct):
    """A member: white space, key and colon (none in an array), value, white space."""

    before: str
    name: str
    key: str
    node: Node
    after: str

    @classmethod
    def root(cls, text: str) -> Branch:
        """Make the whole of a file a member without key."""
        start = skip_space(text, 0)
        end = len(text.rstrip(SPACE))
        return cls(text[:start], "", "", Node(text[start:end]), text[end:])

    def render(self) -> str:
        """Return the text as it is now."""
        return self.before + self.key + self.node.render() + self.after

    def indent(self, outer: str) -> str:
        """Return the indentation of the line the value begins on; ``outer`` is its parent's."""
        return self.before.rpartition("\n")[2] if "\n" in self.before else outer


class Place(Struct, frozen=True):
    """A member, the indentation of the line its value begins on, and whether it begins one."""

    branch: Branch
    indent: str
    style: Style
    on_own_line: bool

    @classmethod
    def root(cls, text: str, style: Style) -> Place:
        """Return the place of the whole document."""
        branch = Branch.root(text)
        return cls(branch, branch.indent(""), style, on_own_line=style.multiline)

    @property
    def node(self) -> Node:
        """The value."""
        return self.branch.node

    def child(self, index: int) -> Place:
        """Return the place of the member at ``index``."""
        branch = self.node.branches[index]
        on_own_line = "\n" in branch.before
        return Place(branch, branch.indent(self.indent), self.style, on_own_line)

    def follow(self, tokens: Sequence[str]) -> Place | None:
        """Return the place that a pointer leads to from here, None if there is none."""
        place = self
        for token in tokens:
            indices = place.node.indices(token)
            if not indices:
                return None
            place = place.child(indices[-1])
        return place

    def replace(self, write: Writer) -> None:
        """Put another value here, spread over lines if the old one or the member is."""
        spread = "\n" in self.node.render() if self.node.branches else self.on_own_line
        self.branch.node = Node(write(self.indent, spread))

    def set(self, name: str, write: Writer) -> None:
        """Give the object here a member: in its place if there is one of that name, else last."""
        indices = self.node.indices(name)
        if indices:
            self.child(indices[-1]).replace(write)
        else:
            self.insert(len(self.node.branches), name, write)

    def insert(self, index: int, name: str, write: Writer) -> None:
        """Put a new member before the one at ``index``, spaced as its siblings are."""
        key = self.style.key(name) if self.node.is_object else ""
        branch = Branch("", name, key, Node("null"), "")
        siblings = self.node.branches
        if siblings:
            self._space(branch, index)
        elif self.on_own_line or "\n" in self.node.text:
            branch.before = self.style.newline + self.indent + self.style.unit
            branch.after = self.style.newline + self.indent
        branch.node = Node(write(branch.indent(self.indent), "\n" in branch.before))
        siblings.insert(index, branch)

    def _space(self, branch: Branch, index: int) -> None:
        """Give ``branch`` the white space of its siblings, and them what it displaces."""
        siblings = self.node.branches
        first, *others = siblings
        between = Counter(each.before for each in others).most_common(1)
        alone = first.before if "\n" in first.before else self.style.gap
        usual = between[0][0] if between else alone
        before_comma = first.after if others else ""
        branch.before, branch.after = usual, before_comma
        if index == 0:
            branch.before, first.before = first.before, usual
        elif index == len(siblings):
            branch.after, siblings[-1].after = siblings[-1].after, before_comma


def _cut(text: str) -> list[Branch]:
    if text[0] not in "[{":
        return []
    left = 1
    branches = []
    for name, key, start, end, stop in members(text, 0):
        node = Node(text[start:end])
        branches.append(Branch(text[left:key], name, text[key:start], node, text[end:stop]))
        left = stop + 1
    return branches
