"""A word for every receive: nothing is sent before its receive is posted, whatever the delays.

Behind each receive comes a WRITE_IMM without bytes to the sender, whose send waits for it; the receives of these words
are posted before all else. Costs four entries a transfer, so it is for proofs and for networks where an early message
is dear; otherwise receives that are posted far enough ahead do.
"""

from __future__ import annotations

import numpy as np

from ..collectives import Array, Op

SENDS = (Op.SEND, Op.WRITE_IMM)


def with_credits(rows: dict[str, Array], wanted: Array, streams: int, first: int) -> dict[str, Array]:
    """``rows`` with words for the transfers of ``wanted`` rows, on streams from ``streams`` on, posted at ``first``."""
    receives = np.flatnonzero(wanted & (rows["op"] == Op.RECV))
    sends = np.flatnonzero(wanted & np.isin(rows["op"], SENDS))
    ranks = np.int64(rows["rank"].max(initial=0) + 1)

    def key(who: Array, source: str, target: str) -> Array:
        return np.asarray((rows[source][who] * ranks + rows[target][who]) << 16 | rows["stream"][who])

    receives = receives[np.lexsort((rows["time"][receives], rows["posted"][receives], key(receives, "peer", "rank")))]
    sends = sends[np.lexsort((rows["time"][sends], rows["posted"][sends], key(sends, "rank", "peer")))]
    many, size = len(receives), len(rows["op"])
    told = {name: rows[name][receives] for name in rows} | _nothing(many, Op.WRITE_IMM)
    told |= {"stream": streams + rows["stream"][receives], "turn": np.ones(many, np.int64)}
    heard = {name: rows[name][sends] for name in rows} | _nothing(many, Op.RECV)
    heard |= {"stream": streams + rows["stream"][sends], "turn": np.zeros(many, np.int64)}
    heard["posted"] = np.full(many, first)
    # Who waits for something else too does so one entry later.
    waits = {name: rows[name][sends] for name in rows} | _nothing(many, Op.NOOP)
    waits |= {"after": size + many + np.arange(many), "turn": rows["turn"][sends] - 1}
    double = rows["after"][sends] >= 0
    rows["after"][sends[~double]] = waits["after"][~double]
    kept = {name: column[double] for name, column in waits.items()}
    return {name: np.concatenate((rows[name], told[name], heard[name], kept[name])) for name in rows}


def _nothing(many: int, op: Op) -> dict[str, Array]:
    """Columns of an entry without bytes."""
    zeros = np.zeros(many, np.int64)
    empty = dict.fromkeys(("local", "remote", "bytes", "flow", "staged"), zeros)
    return {**empty, "op": np.full(many, int(op)), "after": np.full(many, -1), "always": zeros + 1}
