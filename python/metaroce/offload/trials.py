"""Programs for message engines that show one thing: near-memory sums, and an exchange that a word starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..collectives import Array, Op, Program
from ..engine import draws
from ..errors import ConfigError
from ..units import parse_size
from .compiler import collective, compile
from .hardware import load
from .ir import Node, Outside, Word
from .options import OffloadOptions

TRIGGERS = ("device", "host")


def sums(engines: int, size: int | str = "1MiB", count: int = 32, hardware: str = "mtia300") -> Program:
    """On each of two ranks ``engines`` engines make ``count`` sums of ``size`` bytes each, and nothing else."""
    most, piece = load(hardware), parse_size(size, "size")
    base = collective([0, 0], most, OffloadOptions(engines=engines), kind="alltoall", size=2 * engines * 4096).program()
    many, graphs = 2 * engines * count, 2 * engines
    lane = np.tile(np.repeat(np.arange(engines), count), 2)
    zeros, start = np.zeros(many, np.uint32), np.arange(graphs + 1) * count
    fields: dict[str, Any] = {
        "op": np.full(many, Op.SUM, np.uint8),
        "peer": np.repeat(np.arange(2, dtype=np.uint32), engines * count),
        "stream": zeros,
        "local": (lane * 2 * piece).astype(np.uint64),
        "remote": ((lane * 2 + 1) * piece).astype(np.uint64),
        "bytes": np.full(many, piece, np.uint64),
    }
    extra: dict[str, Array] = {
        "flow": np.zeros(many, np.uint8),
        "wqe_sync": zeros,
        "imm": zeros,
        "subgraph_start": start.astype(np.uint32),
        "subgraph_engine": np.tile(np.arange(engines, dtype=np.uint32), 2),
        "subgraph_packet": np.zeros(graphs, np.uint32),
        "subgraph_priority": np.zeros(graphs, np.uint8),
        "subgraph_release_ps": np.zeros(graphs, np.uint64),
    }
    return replace(
        base,
        memory_bytes=2 * engines * piece,
        rank_start=(np.arange(3) * engines * count).astype(np.uint32),
        dep_start=np.zeros(many + 1, np.uint32),
        size_bytes=engines * count * piece,
        count=engines * count * piece // 4,
        extra=extra,
        **fields,
    )


def exchange(bytes_in: float, ranks: int = 16, trigger: str = "device", at_us: float = 50.0, seed: int = 1) -> Program:
    """An AllToAllv of counts that a device knows when it issues, started ``at_us`` into the iteration.

    ``trigger`` "device": it was queued ahead and waits for a word, which a kernel sets; another word says that it is
    complete. "host": it is enqueued then. The counts are uneven by peer (0.5 to 1.5 of their mean, from the seed), and
    every rank sends and receives ``bytes_in``, its own part included.
    """
    if trigger not in TRIGGERS:
        raise ConfigError.unknown("trigger", trigger, TRIGGERS)
    numbers = draws.stream(seed, "offload exchange")
    share = np.array([0.5 + next(numbers) / 2**64 for _ in range(ranks)])
    cells = (bytes_in / 4 * share / share.sum()).astype(np.int64)
    i = np.arange(ranks)
    counts, room = cells[(i - i[:, None]) % ranks], int(2 * bytes_in / 4 / ranks)
    node = Node("exchange", "alltoallv", matrix=np.full((ranks, ranks), room))
    at = round(at_us * 1e6)
    if trigger == "device":
        made = compile(node.but(trigger=Word(0), done=Word(1)), [0] * ranks).patched(counts * 4)
        return made.program([Outside(0, 1, at)])
    return compile(node.but(release=at, done=Word(1)), [0] * ranks).patched(counts * 4).program()
