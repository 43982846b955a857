"""The table and the JSON of nccl-tests, field for field.

Whatever reads nccl-tests output (people, `analyze_perf_json.py`) reads this. Widths, number formats and keys follow
nccl-tests 2.19 (`src/util.cu`, JSON file version 2). What has no meaning in a simulation keeps its column or key with
a neutral value; the fields of this project sit in `#` lines and under the one additional key `metaroce`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JSON_FILE_VERSION = 2
_MIN_BW_TOLERANCE = 0.9  # nccl-tests fails a bandwidth floor below 90 % of it

# NumPy's names on the left, the names of nccl-tests on the right.
TYPE_NAMES: Mapping[str, str] = {
    "int8": "int8",
    "int32": "int32",
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "bfloat16": "bfloat16",
}


@dataclass(frozen=True)
class Half:
    """One half of a row, out of place or in place: time in µs, bandwidths in GB/s (1e9), wrong elements or None."""

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One message size: `size` in bytes, `count` in elements as passed to the call."""

    size: int
    count: int
    type: str
    redop: str
    out_of_place: Half
    in_place: Half
    iterations: int
    root: int = -1


@dataclass(frozen=True)
class Run:
    """What the prologue and the JSON's `config` state about a sweep; `step` is a factor or a number of bytes."""

    program: str
    version: str
    ranks: int
    min_bytes: int
    max_bytes: int
    step: int
    step_is_factor: bool
    warmup_iters: int
    iters: int
    check: int
    hosts: Sequence[str]
    """Name of the host of each rank."""
    notes: Sequence[str] = ()
    """Further `#` lines: the scenario."""


@dataclass(frozen=True)
class Totals:
    """The epilogue: wrong elements, mean of all busbw (GB/s), and the floor of `NCCL_TESTS_MIN_BW` if there is one."""

    wrong: int
    busbw_gbs: float
    floor_gbs: float | None = None

    @classmethod
    def of(cls, rows: Sequence[Row], floor_gbs: float | None = None) -> "Totals":
        """Totals of finished rows; both halves count, as in nccl-tests."""
        halves = [half for row in rows for half in (row.out_of_place, row.in_place)]
        mean = sum(half.busbw_gbs for half in halves) / len(halves) if halves else 0.0
        return cls(sum(half.wrong or 0 for half in halves), mean, floor_gbs)

    @property
    def fast_enough(self) -> bool:
        """True where no floor is set or the mean reaches 90 % of it."""
        return self.floor_gbs is None or self.busbw_gbs >= self.floor_gbs * _MIN_BW_TOLERANCE


def number(value: float, width: int) -> str:
    """`value` right-aligned with two decimals, one, none, or an exponent: the first that fits, as nccl-tests chooses.

    The choice counts the digits of the integer part before rounding, so 9999.999 takes one decimal at width 7.
    """
    digits, bound = 0, 1
    while value >= bound:
        digits, bound = digits + 1, bound * 10
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    if digits < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def prologue(run: Run) -> Iterator[str]:
    """Lines before the first row, table header included."""
    step = f"{run.step}({'factor' if run.step_is_factor else 'bytes'})"
    yield f"# metaroce version {run.version} (MetaRoCE-style model, independent; table as nccl-tests)"
    yield f"# Collective test starting: {run.program}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {run.min_bytes} maxBytes {run.max_bytes} step: {step} "
        f"warmup iters: {run.warmup_iters} iters: {run.iters} agg iters: 1 validation: {run.check} graph: 0 unalign: 0"
    )
    yield from (f"# {note}" for note in run.notes)
    yield "#"
    yield "# Using devices"
    for rank, host in enumerate(run.hosts):
        yield f"#  Rank {rank:2d} Group  0 Pid {0:6d} on {host:>10} device  0 [0000:00:00] emulated"
    yield from header()


def header() -> Iterator[str]:
    """The three header lines of the table and the `#` above them."""
    half = f"{'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"{'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    yield "#"
    yield f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6}           out-of-place                       in-place          "
    yield f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {half}  {half} "
    yield f"# {'(B)':>10}  {'(elements)':>12}  {'':8}  {'':6}  {'':6}  {units}  {units} "


def line(row: Row) -> str:
    """One row of the table."""
    left = f"{row.size:12d}  {row.count:12d}  {row.type:>8}  {row.redop:>6}  {row.root:6d}"
    return left + _half(row.out_of_place) + _half(row.in_place)


def epilogue(totals: Totals, program: str) -> Iterator[str]:
    """Lines after the last row."""
    floor = "" if totals.floor_gbs is None else "OK" if totals.fast_enough else "FAILED"
    yield f"# {'Out of bounds values':<20} : {totals.wrong} {'FAILED' if totals.wrong else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {totals.busbw_gbs:g} {floor}"
    yield "#"
    yield f"# Collective test concluded: {program}"
    yield "#"


def to_json(
    run: Run,
    rows: Sequence[Row],
    totals: Totals,
    *,
    args: Sequence[str],
    times: tuple[str, str],
    errors: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document that `-J` writes.

    Parameters
    ----------
    args
        The command line.
    times
        Start and end, `YYYY-MM-DD HH:MM:SS`.
    errors
        One line a row that did not finish.
    extra
        The scenario and digests, under the key `metaroce` which nccl-tests does not have.
    """
    floor = "unchecked" if totals.floor_gbs is None else _bool(totals.fast_enough)
    return {
        "version": JSON_FILE_VERSION,
        "start_time": times[0],
        "args": list(args),
        "env": [],  # of the real machine; a result here does not depend on it
        "nccl_version": 0,
        "config": _config(run),
        "results": [_result(row, run.program) for row in rows],
        "out_of_bounds": {"count": totals.wrong, "okay": _bool(totals.wrong == 0)},
        "average_bus_bandwidth": {"bandwidth": totals.busbw_gbs, "okay": floor},
        "errors": list(errors),
        "metaroce": {"version": run.version, **(extra or {})},
        "end_time": times[1],
    }


def _half(half: Half) -> str:
    # nccl-tests pads its N/A one column short; here it keeps the column. Seven digits turn into 1e+06, as there.
    wrong = "   N/A" if half.wrong is None else f"{float(half.wrong):6g}"
    return f"  {number(half.time_us, 7)}  {number(half.algbw_gbs, 6)}  {number(half.busbw_gbs, 6)}  {wrong}"


def _config(run: Run) -> dict[str, Any]:
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": run.min_bytes,
        "maximum_bytes": run.max_bytes,
        "step_factor" if run.step_is_factor else "step_bytes": run.step,
        "warmup_iters": run.warmup_iters,
        "iterations": run.iters,
        "aggregated_iterations": 1,
        "validation": run.check,
        "graph": 0,
        "blocking_collectives": "false",
        "per_iter_timing": "false",
        "parallel_init": "false",
        "devices": [
            {
                "rank": rank,
                "group": 0,
                "pid": 0,
                "hostname": host,
                "device": 0,
                "device_hex": "0000:00:00",
                "device_info": "emulated",
            }
            for rank, host in enumerate(run.hosts)
        ],
    }


def _result(row: Row, program: str) -> dict[str, Any]:
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": f"{row.root:6d}",
        "out_of_place": _half_json(row.out_of_place),
        "in_place": _half_json(row.in_place),
        "actual_iterations": row.iterations,
        "experiment_name": program,
    }


def _half_json(half: Half) -> dict[str, Any]:
    return {
        "time": half.time_us,
        "alg_bw": half.algbw_gbs,
        "bus_bw": half.busbw_gbs,
        "nwrong": None if half.wrong is None else float(half.wrong),
    }


def _bool(value: bool) -> str:
    # nccl-tests writes booleans as strings
    return "true" if value else "false"
