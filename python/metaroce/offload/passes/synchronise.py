"""Rows of all nodes, words between them, and from these the program.

The lanes of a node are its subgraphs. Where somebody waits for it, each lane sets a word at its end, and the first lane
gathers these and sets one for the node. A lane starts when the nodes that its node depends on are complete, when what
runs before it in its stream on its engine is complete, and when its trigger holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...collectives import ALL_RANKS, Array, Op, Program, Ranges
from ..algorithms import ALGORITHMS, SCRATCH, STAGED
from ..call import Call, aligned, buffer_bytes, payload
from ..ir import COMPARISONS, Module, Node, Outside, Word
from ..table import EARLIEST, Flow, Lane, Table, lower

_START, _END = EARLIEST - 16, 1 << 60


def synchronise(module: Module) -> Module:
    """Decides memory, slots, the order of entries and flow fields."""
    emission = _Emission(module)
    program = emission.program()
    staged = sum((lane.slots + lane.across) * lane.slot_bytes for lane in emission.lanes)
    return module.but(program=program, notes=module.notes | {"staging_bytes": staged})


class _Emission:
    def __init__(self, module: Module) -> None:
        self.nodes, self.target, self.table = module.nodes, module.target, Table()
        self.ranks = self.target.ranks
        self.lane0 = np.cumsum([0] + [node.lanes for node in self.nodes])
        self.lanes: list[Lane] = []
        self.bases, self.top = self._areas()
        self.calls = [self._call(k, node) for k, node in enumerate(self.nodes)]
        self.words = max((w.word for node in self.nodes for w in (node.trigger, node.done) if w), default=-1) + 1
        self.done = {node.id: node.done for node in self.nodes if node.done}
        self.lane_done: dict[tuple[int, int], int] = {}

    def program(self) -> Program:
        """Emit everything and lower it."""
        for k, call in enumerate(self.calls):
            ALGORITHMS[call.node.algorithm](call)
            self._starts(k, call)
        for k, call in enumerate(self.calls):
            self._ends(k, call)
        columns = lower(self.table, self.ranks, self.lanes)
        names = ("rank_start", "op", "peer", "stream", "local", "remote", "bytes")
        fill, expect, at_in, at_out = self._payload()
        columns |= self._outside()
        entries, sizes = len(columns["op"]), [_printed(call.node, call.n) for call in self.calls]
        return Program(
            dtype=self.nodes[0].dtype,
            memory_bytes=max(self.top, 1),
            **{name: columns[name] for name in names},
            dep_start=np.zeros(entries + 1, np.uint32),
            deps=np.zeros(0, np.uint32),
            fill=fill,
            expect=expect,
            size_bytes=sum(size for size, _ in sizes),
            count=sum(count for _, count in sizes),
            input_offset=at_in,
            output_offset=at_out,
            extra={name: column for name, column in columns.items() if name not in names},
            offload=self.target.spec(self.words),
        )

    def _areas(self) -> tuple[dict[str, int], int]:
        bases: dict[str, int] = {}
        top = 0
        for node in self.nodes:
            if node.area not in bases:
                bases[node.area] = top
                top = aligned(top + buffer_bytes(node, len(node.members(self.ranks))))
        return bases, top

    def _call(self, k: int, node: Node) -> Call:
        """Its lanes, with slots, and scratch memory, on top of what is taken."""
        ranks, domains = node.members(self.ranks), np.array(self.target.domains)
        where = self.bases[node.area], self.top, int(self.lane0[k]), int(self.lane0[-1])
        call = Call(node, self.table, ranks, domains[ranks], *where)
        self.top = aligned(self.top + SCRATCH.get(node.algorithm, _no_scratch)(call))
        staged = node.algorithm in STAGED and "reduce_scatter" in node.phases
        slot = aligned(int(call.pieces[1].max())) if staged else 0
        for engine in node.engines:
            self.lanes.append(
                Lane(
                    engine,
                    k,
                    node.priority,
                    node.release,
                    node.ready == "every",
                    node.slots,
                    node.across,
                    slot,
                    self.top,
                )
            )
            self.top += slot * (node.slots + node.across)
        return call

    def _starts(self, k: int, call: Call) -> None:
        """What lanes wait for."""
        node = call.node
        if node.trigger:
            self._wait(call.ranks, call.lane, node.trigger)
        for other in node.deps:
            self._wait(np.intersect1d(call.ranks, self._of(other).ranks), call.lane, self._done_word(other))
        before = [j for j, other in enumerate(self.nodes[:k]) if other.stream == node.stream]
        for e, engine in enumerate(node.engines):
            same = [j for j in before if engine in self.nodes[j].engines]
            if same and self.nodes[same[-1]].id not in node.deps:
                word = self._lane_word(same[-1], self.nodes[same[-1]].engines.index(engine))
                ranks = np.intersect1d(call.ranks, self.calls[same[-1]].ranks)
                self._wait(ranks, call.lane[e : e + 1], Word(word))

    def _ends(self, k: int, call: Call) -> None:
        """The words that somebody waits for: of lanes, and of the node."""
        done = self.done.get(call.node.id)
        if done:
            for e in range(1, call.lanes):
                self._wait(call.ranks, call.lane[:1], Word(self._lane_word(k, e)), time=_END)
            self._set(call, 0, done.word, done.value, time=_END + 1)
        for (other, e), word in self.lane_done.items():
            if other == k:
                self._set(call, e, word, 1, time=_END + 2 if e == 0 else _END)

    def _wait(self, ranks: Array, lane: Array, word: Word, time: int = _START) -> None:
        common = {"rank": ranks[:, None], "lane": lane, "time": time, "always": 1}
        how = COMPARISONS.index(word.compare)
        self.table.add(Op.WAIT, local=word.word, remote=word.value, imm=how, **common)

    def _set(self, call: Call, e: int, word: int, value: int, time: int) -> None:
        common = {"rank": call.ranks, "lane": call.lane[e], "always": 1, "flow": int(Flow.SYNC)}
        self.table.add(Op.SET, time=time, local=word, remote=value, **common)

    def _outside(self) -> dict[str, Array]:
        """What sets triggers, unless nodes do: all at once, until a caller says when."""
        inside = {word.word for word in self.done.values()}
        words = {c.node.trigger: c.ranks for c in self.calls if c.node.trigger and c.node.trigger.word not in inside}
        return outside(
            [Outside(w.word, w.value + (w.compare == ">"), 0, int(r)) for w, rs in words.items() for r in rs]
        )

    def _of(self, name: str) -> Call:
        return next(call for call in self.calls if call.node.id == name)

    def _done_word(self, name: str) -> Word:
        """The word that is set when a node is complete."""
        if name not in self.done:
            self.done[name] = Word(self.words)
            self.words += 1
        return self.done[name]

    def _lane_word(self, k: int, e: int) -> int:
        if (k, e) not in self.lane_done:
            self.lane_done[k, e] = self.words
            self.words += 1
        return self.lane_done[k, e]

    def _payload(self) -> tuple[Ranges, Ranges, Array, Array]:
        """Of all areas; sums are expected where all ranks take part, since expectations know no other sums."""
        seen: dict[str, tuple[Ranges, Ranges, Array, Array]] = {}
        for call in self.calls:
            if call.node.area not in seen:
                seen[call.node.area] = payload(call.node, call.ranks, call.base)
        parts = list(seen.values())
        fills, expects = [part[0] for part in parts], [part[1] for part in parts]
        everyone = [
            _known(expect, self.ranks, self._group_of(area)) for area, expect in zip(seen, expects, strict=True)
        ]
        return _together(fills), _together(everyone), parts[0][2], parts[0][3]

    def _group_of(self, area: str) -> int:
        return next(call.n for call in self.calls if call.node.area == area)


def outside(rows: Sequence[Outside]) -> dict[str, Array]:
    """Columns of words that are set from outside; every row names its rank."""
    kinds = {"rank": np.uint32, "word": np.uint32, "value": np.uint64, "ps": np.uint64}
    columns = zip(*((row.rank, row.word, row.value, row.at_ps) for row in rows), strict=True) if rows else [[]] * 4
    return {f"set_{name}": np.array(column, kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)}


def _no_scratch(call: Call) -> int:
    return 0


def _known(expect: Ranges, ranks: int, group: int) -> Ranges:
    if group == ranks:
        return expect
    kept = expect.source != ALL_RANKS
    return Ranges(*(getattr(expect, name)[kept] for name in _RANGE))


_RANGE = ("rank", "offset", "count", "source", "index")


def _together(parts: list[Ranges]) -> Ranges:
    return Ranges(*(np.concatenate([getattr(part, name) for part in parts]) for name in _RANGE))


def _printed(node: Node, n: int) -> tuple[int, int]:
    """Size and count as nccl-tests prints them."""
    if node.matrix is not None:
        count = int(max(node.matrix.sum(axis=0).max(), node.matrix.sum(axis=1).max()))
        return count * node.element_bytes, count
    return node.count * node.element_bytes * (1 if node.kind == "all_reduce" else n), node.count
