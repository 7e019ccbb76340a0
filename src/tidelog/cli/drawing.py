"""Draws the replicas of a partition as the papers draw a log: boxes, gaps, and marks below.

    offset      0       11     21        33     41     46
    node 1      [t1=====|======<-- gap -->t3====|======~~~~~~]
    leader      ^                              ^      ^      ^
                start=0                        |      |      dirty=49
                                               |      flushed=45
                                               committed=visible=applied=40

Theory of operation. The drawing is not to scale: a log of a million records has its story in the
last twenty. Every offset at which something happens on some replica (a segment or a gap begins, a
mark stands) is an *edge*; between two edges is a cell, as wide as its labels need. All replicas
share the edges, so what is above one another is at the same offset. When there are more edges than
fit, those that only separate segments go first, the oldest first, then the oldest gaps; marks stay.

Nothing here knows a terminal: lines are spans of text with the name of a style.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Final

# The widest a cell grows when there is room: more would only push apart what belongs together.
WIDEST_CELL: Final = 16
NARROWEST: Final = 40
# Columns kept free on the right for the name of the last mark.
LABEL_ROOM: Final = 16
NOTHING: Final = -1  # the offset before the first

# Marks in the order in which they are named where they coincide.
MARKS: Final = ("dirty", "flushed", "committed", "visible", "applied")


class Style(Enum):
    """What a piece of a drawing is; the terminal decides how that looks."""

    PLAIN = "plain"
    TITLE = "title"
    COMMITTED = "committed"
    FLUSHED = "flushed"
    DIRTY = "dirty"
    GAP = "gap"
    MARK = "mark"
    FAINT = "faint"
    BAD = "bad"


Span = tuple[str, Style]
Line = list[Span]


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of a log: its offsets and its one term."""

    base: int
    last: int
    term: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, as the cluster's `log` operation describes it."""

    node: int
    alive: bool
    role: str = "unknown"
    term: int = 0
    start: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    snapshot: tuple[int, int] | None = None  # offset and size in bytes
    failed: str | None = None

    @property
    def dirty(self) -> int:
        """The last offset of its log."""
        return self.marks.get("dirty", NOTHING)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.alive or self.dirty < self.start

    def is_gap(self, first: int, last: int) -> bool:
        """Tell whether compaction removed all of these offsets."""
        return any(begin <= first and last <= end for begin, end in self.gaps)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Replica:
        """Read one replica of the operation's answer."""
        if not answer.get("alive", False):
            return cls(node=answer["node"], alive=False)
        marks = {name: answer[name] for name in MARKS}
        if answer["readable"] < answer["applied"]:
            marks["readable"] = answer["readable"]
        if answer["compacted"] >= 0:
            marks["compacted"] = answer["compacted"]
        snapshot = answer["snapshot"]
        return cls(
            node=answer["node"],
            alive=True,
            role=answer["role"],
            term=answer["term"],
            start=answer["start"],
            marks=marks,
            segments=tuple(
                Segment(each["base"], each["last"], each["term"]) for each in answer["segments"]
            ),
            gaps=tuple((first, last) for first, last in answer["gaps"]),
            snapshot=None if snapshot is None else (snapshot["offset"], snapshot["size"]),
            failed=answer["failed"],
        )


def draw(answer: Mapping[str, Any], width: int) -> list[Line]:
    """Draw the answer of the `log` operation, at most `width` columns wide if that can be."""
    replicas = [Replica.read(each) for each in answer["replicas"]]
    replicas.sort(key=lambda replica: (replica.role != "leader", not replica.alive, replica.node))
    gutter = max(len(_title(replica)) for replica in replicas) + 2 if replicas else 2
    lines = _heading(answer, replicas)
    drawn = [replica for replica in replicas if not replica.is_empty]
    scale = Scale(drawn, max(width - LABEL_ROOM, NARROWEST) - gutter)
    if drawn:
        lines += [[], [("offset".ljust(gutter), Style.FAINT), (scale.labels(), Style.FAINT)]]
    for replica in replicas:
        lines += _replica_lines(replica, scale, gutter)
    if drawn:
        lines += [[], _legend()]
    return lines


def plain(lines: Iterable[Line]) -> str:
    """Return a drawing as text without colours."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


class Scale:
    """The edges that the replicas share, and the column of each."""

    def __init__(self, replicas: Sequence[Replica], width: int) -> None:
        first = min((replica.start for replica in replicas), default=0)
        end = max((replica.dirty + 1 for replica in replicas), default=0)
        segments, gaps, marks = _edges(replicas)
        # Room for the name of a term at every place where one may stand: at the head of a segment,
        # or after the gap that begins there.
        widest = max(
            (len(f"t{segment.term}") for replica in replicas for segment in replica.segments),
            default=0,
        )
        self._tags = dict.fromkeys(segments | gaps, widest + 1)
        edges = {edge for edge in segments | gaps | marks if first <= edge <= end}
        edges |= {first, end}
        spare = sorted(segments - gaps - marks) + sorted(gaps - marks)
        needed = self._needed(sorted(edges))
        for edge in spare:
            if needed <= width:
                break
            if edge not in (first, end):
                edges.discard(edge)
                needed = self._needed(sorted(edges))
        self.edges = sorted(edges)
        cells = max(1, len(self.edges) - 1)
        extra = max(0, (width - needed) // cells)
        self._columns: dict[int, int] = {}
        column = 0
        for edge in self.edges[:-1]:
            self._columns[edge] = column
            need = self._need(edge)
            column += 1 + max(need, min(need + extra, WIDEST_CELL))
        self._columns[self.edges[-1]] = column
        self.width = column + 1

    def cells(self) -> Iterable[tuple[int, int]]:
        """Return the cells from left to right, each as its first offset and the next one's."""
        return pairwise(self.edges)

    def column(self, edge: int) -> int:
        """Return the column of an edge; of one beyond the ends, the column of that end."""
        return self._columns[min(max(edge, self.edges[0]), self.edges[-1])]

    def labels(self) -> str:
        """Return the first offset of every cell, each above its edge."""
        text = ""
        for edge, _ in self.cells():
            text = text.ljust(self.column(edge)) + str(edge)
        return text

    def _needed(self, edges: Sequence[int]) -> int:
        return 1 + sum(1 + self._need(edge) for edge in edges[:-1])

    def _need(self, edge: int) -> int:
        """Return the columns inside a cell: for its label, its term, and an arrow of a gap."""
        return max(len(str(edge)), self._tags.get(edge, 0), 3)


def _edges(replicas: Sequence[Replica]) -> tuple[set[int], set[int], set[int]]:
    segments = {segment.base for replica in replicas for segment in replica.segments}
    gaps = {
        edge for replica in replicas for first, last in replica.gaps for edge in (first, last + 1)
    }
    marks = {offset + 1 for replica in replicas for offset in replica.marks.values()}
    marks |= {replica.start for replica in replicas}
    marks |= {replica.snapshot[0] + 1 for replica in replicas if replica.snapshot is not None}
    return segments, gaps, marks


# --- Lines ----------------------------------------------------------------------------------------


def _title(replica: Replica) -> str:
    return f"node {replica.node} {replica.role if replica.alive else ''}".rstrip()


def _heading(answer: Mapping[str, Any], replicas: Sequence[Replica]) -> list[Line]:
    name = f"{answer['topic']}/{answer['partition']}"
    leader = next((each for each in replicas if each.role == "leader"), None)
    led = "no leader" if leader is None else f"led by node {leader.node} in term {leader.term}"
    lines: list[Line] = [[(name, Style.TITLE), (f"   group {answer['group']}, {led}", Style.PLAIN)]]
    for each in answer["replicas"]:
        if leader is not None and each["node"] == leader.node:
            start, mark, end = each["log_start"], each["high_watermark"], each["end"]
            seen = f"from {start} to {mark - 1}" if mark > start else "nothing"
            lines.append([(f"clients see {seen}; the next record gets {end}", Style.FAINT)])
    return lines


def _replica_lines(replica: Replica, scale: Scale, gutter: int) -> list[Line]:
    title: Span = (_title(replica).ljust(gutter), Style.TITLE)
    if not replica.alive:
        return [[], [title, ("does not answer", Style.BAD)]]
    lines: list[Line] = [[]]
    if replica.is_empty:
        lines.append([title, (f"[] empty from {replica.start} on", Style.FAINT)])
    else:
        lines.append([title, *_bar(replica, scale)])
        lines += [[(" " * gutter, Style.PLAIN), *line] for line in _mark_lines(replica, scale)]
    if replica.failed is not None:
        lines.append([(" " * gutter, Style.PLAIN), (f"failed: {replica.failed}", Style.BAD)])
    return lines


def _bar(replica: Replica, scale: Scale) -> Line:
    """Draw the log itself: one column a separator, then the inside of the cell, and so on."""
    terms = {segment.base: segment.term for segment in replica.segments}
    spans: Line = []
    last_term: int | None = None
    tag = ""  # the name of a term that began in a gap waits for the first batch after it
    gap_open = False
    for first, after in scale.cells():
        inside = scale.column(after) - scale.column(first) - 1
        if after <= replica.start or first > replica.dirty:
            closing = first == replica.dirty + 1
            spans.append(((("]" if closing else " ") + " " * inside), Style.PLAIN))
            continue
        separator = "[" if first == replica.start else "|" if first in terms else ""
        if first in terms and terms[first] != last_term:
            last_term = terms[first]
            tag = f"t{last_term}"
        if replica.is_gap(first, after - 1):
            ends = not replica.is_gap(after, after)
            spans.append(_gap_span(separator, inside, begins=not gap_open, ends=ends))
            gap_open = not ends
            continue
        gap_open = False
        style = _style(replica, after - 1)
        fill = FILLS[style]
        spans.append((separator, Style.PLAIN))
        spans.append((tag, Style.TITLE))
        spans.append((fill * (inside + 1 - len(separator) - len(tag)), style))
        tag = ""
    if replica.dirty + 1 == scale.edges[-1]:
        spans.append(("]", Style.PLAIN))
    return [span for span in spans if span[0]]


FILLS: Final = {Style.COMMITTED: "=", Style.FLUSHED: "-", Style.DIRTY: "~"}


def _style(replica: Replica, last: int) -> Style:
    """Return how safe the offsets up to `last` are on this replica."""
    if last > replica.marks["flushed"]:
        return Style.DIRTY
    return Style.COMMITTED if last <= replica.marks["committed"] else Style.FLUSHED


def _gap_span(separator: str, inside: int, *, begins: bool, ends: bool) -> Span:
    room = inside + 1 - len(separator)
    text = "-" * room
    if begins and ends and room >= len("<- gap ->"):
        text = " gap ".center(room, "-")
    if begins:
        text = "<" + text[1:]
    if ends:
        text = text[:-1] + ">"
    return separator + text, Style.GAP


def _mark_lines(replica: Replica, scale: Scale) -> list[Line]:
    """Draw carets under the bar, and the names of the marks on as few lines as they fit on."""
    labels = _labels(replica, scale)
    columns = sorted(labels)
    rows: dict[int, int] = {}  # column of a mark to the line its label is on, counted from 0
    for column in reversed(columns):
        rows[column] = _first_free(column, column + len(labels[column]), rows, columns)
    text = [_carets(columns)]
    for row in range(max(rows.values(), default=-1) + 1):
        line = ""
        for column in columns:
            if rows[column] >= row:
                line = line.ljust(column) + (labels[column] if rows[column] == row else "|")
        text.append(line)
    return [[(line, Style.MARK)] for line in text]


def _labels(replica: Replica, scale: Scale) -> dict[int, str]:
    by_offset: dict[int, list[str]] = {}
    for name, offset in replica.marks.items():
        by_offset.setdefault(offset, []).append(name)
    found: dict[int, list[str]] = {scale.column(replica.start): [f"start={replica.start}"]}
    for offset, names in by_offset.items():
        column = _mark_column(scale, offset)
        # From dirty to applied nothing lies between, so the ends say it all.
        text = "dirty=...=applied" if set(names) >= set(MARKS) else "=".join(names)
        found.setdefault(column, []).append(f"{text}={offset}")
    if replica.snapshot is not None:
        offset, size = replica.snapshot
        column = _mark_column(scale, offset)
        found.setdefault(column, []).append(f"snapshot={offset} ({size:,} bytes)")
    return {column: ", ".join(texts) for column, texts in found.items()}


def _mark_column(scale: Scale, offset: int) -> int:
    """Return the column of an offset: the last of the cell that ends with it."""
    return max(0, scale.column(offset + 1) - 1)


def _first_free(begin: int, end: int, rows: Mapping[int, int], columns: Sequence[int]) -> int:
    """Return the first line on which a label from `begin` to `end` covers nothing to its right."""
    right = [column for column in columns if column > begin and column in rows]
    row = 0
    while any(column <= end and rows[column] >= row for column in right):
        row += 1
    return row


def _carets(columns: Sequence[int]) -> str:
    text = ""
    for column in columns:
        text = text.ljust(column) + "^"
    return text


def _legend() -> Line:
    return [
        ("=", Style.COMMITTED),
        (" committed and on disk   ", Style.FAINT),
        ("-", Style.FLUSHED),
        (" on disk   ", Style.FAINT),
        ("~", Style.DIRTY),
        (" in memory   ", Style.FAINT),
        ("<-->", Style.GAP),
        (" compacted away   ", Style.FAINT),
        ("t3", Style.TITLE),
        (" term 3 begins", Style.FAINT),
    ]
