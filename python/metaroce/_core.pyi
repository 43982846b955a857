"""The compiled core: one call a run.

`simulate` takes a JSON object and columns, and gives a dictionary back. Unknown keys are refused; keys marked ? may be
left out and then take the core's defaults. Times are picoseconds, rates bits per second, sizes bytes, all integers::

    {"seed": 1,
     "fabric": {"hosts": 64, "planes": 4,
                "switches": {"plane": [], "tier": []},      switch i is node hosts + i; tier 1 is next to hosts
                "links": {"a": [], "b": [], "rate_bps": [], "delay_ps": [], "queue_bytes": [],
                          "ecn_kmin_bytes": [], "ecn_kmax_bytes": [], "ecn_pmax": []},      one row a cable
                "ecmp"?: "linear" | "mixed" | "qp", "reroute_delay_ps"?: 1000000000,
                "trim"?: false, "control_priority"?: false, "last_hop_ecn"?: true, "explicit_queues"?: false,
                "lossless"?: false, "pfc"?: {...},             other keys as in `defaults`
                "balance"?: "ecmp" | "flowlet" | "flowlet-random" | "spray" | "spray-least" | "pinned",
                "flowlet_gap_ps"?: 16000000, "flowlet_entries"?: 32768,       these two with flowlets only
                "islands"?: false},      true: hosts have ports in the first planes, and not all reach each other
     "transport": {"kind": "metaroce" | "rocev2" | "mrc", ...},     other keys as in `defaults`
     "loss"?: {"probability": 0.01, "per"?: "packet" | "link", "on"?: "data_and_ack" | "data"},
     "faults"?: [{"at_ps": 0, "target": "link" | "switch" | "plane", "id": 0, "up": false}],
     "hosts_of_ranks": [],
     "scale_out"?: {"hosts_of_ranks": [], "domain_of_rank": []},    by these hosts, ranks of different domains talk
     "memory_bytes": 1, "iterations"?: 1, "warmup"?: 0, "time_limit_ps"?: null,
     "threads"?: 1,                                         that share the run; results do not depend on it
     "payload"?: {"dtype": "float32"}, "record_wqes"?: false, "record_bin_ps"?: null,
     "record_paths_ps"?: null, "record_paths_ranks"?: null,         samples of what these ranks send; null: all
     "offload"?: {...},                                     engines of a rank; with subgraphs, see below
     "on_error"?: "stop" | "continue",                      a completion with an error: ends the run | ends its entry
     "inject"?: {"flip_byte_at": 17}}

Payload is moved in the first iteration, warm-up included, and compared, or given back, as it is at the end of that.

Columns are C-contiguous little-endian buffers, each asked for once and let go before the run: the program
(`metaroce.collectives.Program`), and for payload either ``fill_rank`` u32, ``fill_offset`` ``fill_count``
``fill_index`` u64 and ``expect_rank`` ``expect_from`` u32, ``expect_offset`` ``expect_count`` ``expect_index`` u64, or
``memory`` u8[ranks * memory_bytes]. A program may also have ``imm`` u32, ``operand0`` ``operand1`` u64 (COMPARE_SWAP:
compare, swap; FETCH_ADD: addend), ``flags`` u8 (bit 0 fence, bit 1 unsignaled) and ``rkey`` u32, each for every entry;
absent, they are 0. With ``rkey``, ``remote`` is an offset in that region of the peer, and the peer checks it. Regions
are rows of ``region_rank`` u32, ``region_offset`` ``region_len`` u64, ``region_access`` u8 (bits: 1 write, 2 read, 4
atomics), numbered for each rank from 1 in their order; where there are any, region 0, all of a rank's memory, is closed
to peers. Rows of ``deny_rank`` ``deny_peer`` ``deny_plane`` u32 take a plane out of use for what the rank sends to the
peer.

A program may be for *message engines*, devices of each rank that start entries by themselves. Then it has no
dependencies and no ``start_ps``, but ``subgraph_start`` u32[S+1] (subgraphs cover all entries in order, each in one
rank), ``subgraph_engine`` ``subgraph_packet`` u32, ``subgraph_release_ps`` u64 and ``subgraph_priority`` u8 (lower goes
first), each [S], and for every entry, 0 if absent, ``flow`` u8 (bits: 1 FENCE, nothing later of the subgraph issues
until this is complete; 2 SYNC, issues after all earlier ones of it are complete; 4 RX_SYNC, after all earlier RECVs; 8
TX_SYNC, after all earlier SENDs and WRITEs; 16 FUSED, see ``copies_sends``) and ``wqe_sync`` u32 (k: issues after the
k-th previous one of the subgraph is complete). Of the operations it may have SEND, RECV, WRITE, WRITE_IMM, COPY, SUM
and NOOP, and two on words, u64 of the device, 0 when an iteration begins: WAIT (11; issues when word ``local`` is >=,
==, > ``remote`` with ``imm`` 0, 1, 2) and SET (12; word ``local`` becomes ``remote``). Rows of ``set_rank``
``set_word`` u32, ``set_value`` ``set_ps`` u64 set words from outside, at times from the start of the iteration. The
specification says what engines cost, the same for each rank, lists by engine::

    {"issue_ps": [], "start_ps": [],        CPU time of an entry; of a subgraph before its first entry
     "post_ps": [],                         from the issue of a transfer until the NIC has it
     "direct": [],                          booleans: subgraphs start at their release, without dispatch
     "event_ps": 0, "dispatch_ps": 0,       from a packet's trigger until CPU-C knows; CPU-C time of a packet
     "unit_bps": 1, "units_bps": 1,         near-memory unit alone; all of a rank at once, in equal shares
     "outstanding": 1,                      most transfers that are issued and not complete, of a rank
     "words": 0,                            of a rank
     "copies_sends": false}                 what is sent, and not FUSED, passes the unit of its engine first

A packet is released when the latest of its subgraphs is; CPU-C takes packets of a rank by their number, one at a time.
An engine's CPU is a serial server. Of its subgraphs whose next entry may issue it takes the one of the least priority
number that has been ready longest. An entry takes effect at the end of its issue time: a transfer is posted, COPY and
SUM queue for the engine's unit (and change memory at their end), others are complete at once.

The dictionary has ``status`` ("done", "bound", "stalled", "deadlock"), ``time_ps``, ``iteration_start_ps`` and
``iteration_end_ps`` (warm-up left out), ``digest``, ``version``, ``wrong`` (None: not checked), ``checked``,
``resolved`` (JSON), ``counters``, ``pauses`` (of a lossless class: directed link, how often paused, for how long),
``deadlock`` (the directed links of a cycle), ``plane_bytes``, ``plane_bins``, ``stalled_flows``, ``wqe_done_ps`` and
``wqe_placed_ps`` (bytes of u64, empty unless recorded, 2^64 - 1 = never) and with them ``wqe_status`` (bytes of u8: 0
success, 1 retries exceeded, 2 receiver-not-ready retries exceeded, 3 flushed, 4 access error, 5 length error, 6 failed
at the peer, 7 not complete, 8 success of an unsignaled entry), ``wqe_bytes``, ``wqe_imm`` (u64, 2^64 - 1 = none),
``memory`` (bytes, where it came in) and ``payload_line_rate_bps`` (of the fastest host). With message engines it also
has ``engines`` (else None), columns by name, bytes, a row for each engine of each rank over all iterations: ``rank``
``engine`` u32, ``issued`` (entries), ``cpu_ps`` and ``unit_ps`` (busy), ``unit_wait_ps`` (operations waiting for the
unit, summed up) and ``stall_ps`` (a started subgraph had entries to issue, but none could) u64; ``outstanding_most``
u64, by rank; and, if recorded, ``wqe_issued_ps`` u64 by entry. Where they stall, ``stalled_flows`` name the entries
that cannot issue, ``src`` being their rank and ``dst`` the rank that they wait for, or again ``src``.

With ``record_paths_ps`` it also has ``connections`` and ``paths`` (else None): columns by name, bytes, a row for each
connection or path at each multiple of the interval and at the end, state after all events of that time. At most 20
million rows a run, about 1.6 GB; more are refused when they are foreseen, naming ``record_paths_ps``. Columns of
``connections``: ``time_ps`` u64, ``src`` ``dst`` u32 (ranks), ``window_bytes`` ``in_flight_bytes`` ``hint_bps``
``least_rtt_ps`` ``sent_bytes`` ``acked_bytes`` ``unsent_bytes`` u64. Columns of ``paths``: ``time_ps`` u64, ``src``
``dst`` u32, ``path`` u16, ``plane`` u8, ``state`` u8 (up, suspect, down, denied), ``window_bytes`` ``in_flight_bytes``
u32, ``srtt_ps`` ``pace_bps`` u64, ``ecn_permille`` u16, ``sent`` ``lost_gap`` ``lost_tail`` ``marked`` u64 (totals).
`metaroce.Result` says what they mean.

`estimate` is the same at flow level. Its JSON object is ``{"seed", "planes", "transport", "memory_bytes", "iterations",
"ecmp"?, "warmup"?, "time_limit_ps"?, "record_wqes"?, "curve"?: {"rate_factor": 0.9, "bdp": [], "ranks": [],
"added": [[]], "unit": "rtt" | "ps", "bdp_packets": [100, 400]}}`` (`metaroce.flow`). Its columns are the program's and
``switch_plane`` ``switch_tier`` u32, ``link_a`` ``link_b`` u32, ``link_rate_bps`` ``link_delay_ps`` u64 (a row a cable)
and ``hosts_of_ranks`` u32. The dictionary has ``status`` ("done", "bound", "stalled"), ``time_ps``, the iterations,
``digest``, ``version``, ``resolved``, ``counters``, ``stalled_flows`` (if entries were recorded), ``wqe_done_ps``,
``wqe_placed_ps`` and ``payload_line_rate_bps``.

`rehearse` runs a program for message engines on a network of random delays, with payload. Its JSON object is
``{"memory_bytes", "dtype", "offload", "least_ps", "most_ps", "unit_ps"?}``: least and most time of a message or
acknowledgement, and most that a COPY or SUM takes longer than it needs (left out: ``most_ps``); its columns are those
of the program and of a checked run. The dictionary has, each a list by seed, ``status`` ("done", "stalled", "failed":
a message did not fit its receive), ``wrong``, ``checked``, ``rnr`` (messages that came before their receive),
``early_bytes`` (bytes of these), ``time_ps`` and ``reason`` (what did not go on, or empty).
"""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = ["ConfigError", "Stop", "__version__", "defaults", "estimate", "profiles", "rehearse", "simulate"]

__version__: str

class ConfigError(ValueError):
    """A specification that the core refuses; one line naming field, value and what is allowed."""

@final
class Stop:
    """What ends runs of other threads: those that it was given to."""

    def set(self) -> None:
        """End them, and all that will be given it."""

def simulate(
    spec: str, columns: Mapping[str, npt.NDArray[np.generic] | memoryview], stop: Stop | None = None
) -> dict[str, Any]:
    """Run; releases the GIL. Raises ConfigError, or KeyboardInterrupt on Ctrl-C; with ``stop``, once that is set."""

def estimate(
    spec: str, hosts: int, columns: Mapping[str, npt.NDArray[np.generic] | memoryview], stop: Stop | None = None
) -> dict[str, Any]:
    """Estimate at flow level; releases the GIL. Raises as `simulate`."""

def rehearse(
    spec: str,
    columns: Mapping[str, npt.NDArray[np.generic] | memoryview],
    seeds: list[int],
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Rehearse once with each seed; releases the GIL. Raises as `simulate`."""

def defaults() -> str:
    """JSON of all defaults: {"metaroce": {...}, "rocev2": {...}, "mrc": {...}, "fabric": {...}, "loss": {...}}."""

def profiles() -> str:
    """JSON of all settings and constants: {"metaroce": [row, ...], "rocev2": [...], "mrc": [...], "fabric": [...]}.

    A row has "name" (of the loss settings: "loss.…"), "kind" ("setting" or "constant"), "value" (the default, exact),
    "unit", "source", "what" and "allowed": {"least": n, "most": n}, {"least": 0, "below": 1}, a list of values, or null
    of a constant.
    """
