"""Remake docs/regimes.md: each kind of fabric and load that the transport is for, medians of three seeds.

A row's scenario is the text that runs, with S the seed; `haul`, `across`, `idle` and `beside` are functions of
docs/regimes_scenarios.py. `python docs/make_regimes.py`, where the package is installed, takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import regimes_scenarios as made

import metaroce as mr
from metaroce.pool import Pool

SHARE, COUNT = "{:.1%}", "{:.0f}"


@dataclass(frozen=True)
class Table:
    """Rows of (labels, text); `measure` makes of what a text is the numbers that `columns` name and format."""

    title: str
    text: str
    labels: tuple[str, ...]
    columns: dict[str, str]
    rows: Sequence[tuple[tuple[object, ...], str]]
    measure: Callable[[object], Sequence[float]]
    after: str = ""


def _collective(scenario: mr.Scenario) -> Sequence[float]:
    run = mr.run(scenario)
    return run.busbw_gbs, run.of_line_rate, run.retransmitted, run.counters["dropped_queue"], run.timeouts


def _on(fabric: str, work: str, more: str = "") -> str:
    return f"mr.Scenario(topology={fabric}, workload={work}, {more}seed=S)"


_INCAST = {"Jain": "{:.4f}", "dropped": SHARE}
_INCAST |= dict.fromkeys(("drops after 100 us", "trimmed", "p50 us", "p99 us", "ideal us"), COUNT)
_CLASSES = {"Jain 25G": "{:.4f}", "50G": "{:.4f}", "100G": "{:.4f}"} | _INCAST
_FABRICS = "deep-buffer-64 shallow-buffer-64 fat-tree-k8 single-plane-64 multiplane-4x64 multiplane-8x64".split()
_TRIM = 'mr.topology.load("incast-1000").replace(trim={})'
_SENDERS = ((10, 4 << 20), (100, 1 << 20), (1000, 1 << 18))
_PACKED = 'ranks={}, placement="packed", '


def _storage(senders: int, size: int) -> str:
    return _on('"storage-incast-1000"', f"mr.Incast(senders={senders}, bytes={size})", _PACKED.format(senders + 1))


TABLES = (
    Table("Buffers, tiers and planes", "16 MiB a rank, for a ring of 64 only 256 KiB a step (more in docs/results.md). "
          "Line rate is that of payload, all ports of a host together.", ("fabric", "collective", "loss"),
          {"busbw GB/s": "{:.2f}", "of line rate": SHARE, "resent": "{:.2%}", "queue drops": COUNT, "timeouts": COUNT},
          [((f, k, p), _on(f'"{f}"', f'mr.Collective(kind="{k}", size="16MiB")', f'loss="{p}", '))
           for f in _FABRICS for k in ("all_reduce", "alltoall") for p in ("0", "1%")], _collective),
    Table("Trimming", "Incast to one host, all at once, all ports 4 x 200 Gbit/s; times until a sender's last byte is "
          "placed.", ("senders", "bytes", "trim"), _INCAST,
          [((n, size, trim), _on(_TRIM.format(trim), f"mr.Incast(senders={n}, bytes={size})", _PACKED.format(n + 1)))
           for n in (100, 1000) for size in (4096, 65536, 262144) for trim in (False, True)], made.incast),
    Table("Storage incast", "A third of the senders each has 4 ports of 25, 50 and 100 Gbit/s, the reader 4 of 200.",
          ("senders", "bytes"), _CLASSES, [(row, _storage(*row)) for row in _SENDERS], made.incast),
    Table("Shares that are granted", "Hint at the sender over its fair share; 2 round trips after the first hint of "
          "all, and half-way through the run. Must hold: 100 % within 5 %, and 1.00.", ("senders", "bytes"),
          {"within 5 % after 2 RTT": SHARE, "no hint yet": SHARE, "median half-way": "{:.2f}"},
          [(row, _storage(*row)) for row in _SENDERS], made.granted),
    Table("Scale-across", "One message each way between 4 (20 ms: 2) hosts of each site; RTT is that of the nearest "
          "plane, a BDP 100 Gbit/s x RTT. *Done* counts to the last completion, *placed* to the last byte. *Bound* is "
          "what a message can reach placed: M/C + RTT/2 of the longest plane, and one RTT more with loss, since of the "
          "last round trip's packets (15,000 at 5 ms) some are lost. *Eff.* is (M + RTT/2 x C)/(C x finish). Must "
          "hold: 90 % from 8 BDPs at 0.1 %: beyond the bound for one message, within it for messages in a row.", ("RTT ms", "BDPs", "loss"),
          dict.fromkeys(("done", "placed", "bound", "eff. done", "eff. placed"), SHARE)
          | {"resent": "{:.2%}", "duplicates": COUNT},
          [((ms, m, p), _on(f"haul({ms})", f"across({m}, {ms}, {2 if ms == 20 else 4}, S)",
                            f'ranks=64, placement="packed", loss="{p}", '))
           for ms, sizes in ((5, (1, 2, 4, 8, 16)), (1, (8,)), (20, (8,))) for m in sizes for p in ("0", "0.1%")]
          + [((5, "3 x 8", p), _on("haul(5)", "across(8, 5, 4, S, 3)", f'ranks=64, placement="packed", loss="{p}", '))
             for p in ("0", "0.1%")],
          made.across_shares, "A plane is filled as long as paths x 256 packets x MTU >= its BDP: 36 x 256 x 4096 B = "
          "37.7 MB against 17.2 MB at 5.5 ms, and at most 64 paths, 67 MB, against 68.8 MB at 22 ms."),
    Table("Small messages, idle", "Two hosts and one switch, 400 Gbit/s, 100 ns a cable; no host is modelled. One way "
          "is two hops of 118 B + payload; a completion adds two of the acknowledgement's 118 B, a Read or atomic two "
          "of its request's 134 B, and 118 B that leave before the answer. Must hold: equal to the closed form.",
          ("operation", "bytes"), {"ns": "{:.2f}", "closed form": "{:.2f}"},
          [((op, size), f'idle("{op}", {size}, S)') for op in made.OPERATIONS for size in made.OPERATIONS[op]], list),
    Table("Small messages beside a bulk flow", "100 Sends of 64 B, one in 2 us, beside a Write of 12 MiB (250 us), on "
          "the same switch; latency from posting to the receive's completion. *other-sender*: from another host to the "
          "same one; *other-receiver*: from the same host to another.", ("beside", "loss"),
          {"p50 ns": COUNT, "p99 ns": COUNT, "most ns": COUNT},
          [((how, p), f'beside("{how}", "{p}", S)')
           for how in ("nothing", "same-connection", "other-sender", "other-receiver") for p in ("0", "1%")], list),
)  # fmt: skip


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "regimes.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    arguments = parser.parse_args()
    lines = f"""# Regimes

MetaRoCE-style model, independent, not affiliated with Meta; metaroce {mr.__version__}. Made by one command:
`python docs/make_regimes.py`, where the package is installed.

Medians of seeds {", ".join(map(str, arguments.seeds))}, the range in brackets where there is one; S is the seed. Loss
is drawn once a packet, end to end, for data and acknowledgements.""".splitlines()
    with Pool() as pool:
        for table in TABLES:
            lines += _lines(table, arguments.seeds, pool)
            sys.stderr.write(f"{table.title}\n")
    arguments.out.write_text("\n".join(lines) + "\n")


def _lines(table: Table, seeds: Sequence[int], pool: Pool) -> Iterator[str]:
    measure = lambda row: table.measure(made.evaluate(*row))  # noqa: E731
    runs = [[pool.submit(measure, (text, seed)) for seed in seeds] for _, text in table.rows]
    names = (*table.labels, *table.columns, "command")
    yield from ("", f"## {table.title}", "", table.text, "", _line(names), _line(["---"] * len(names)))
    for (labels, text), seeded in zip(table.rows, runs, strict=True):
        values = zip(*(run.result() for run in seeded), strict=True)
        yield _line([*map(str, labels), *map(_middle, values, table.columns.values()), f"`{text}`"])
    yield from ("", table.after) if table.after else ()


def _middle(values: Sequence[float], form: str) -> str:
    low, middle, high = (form.format(f(values)) for f in (min, median, max))
    return middle if low == high else f"{middle} ({low} - {high})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
