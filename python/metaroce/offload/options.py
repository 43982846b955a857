"""What a caller may say about how collectives are compiled; everything else follows from the hardware."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..config import Config, Size


class OffloadOptions(Config):
    """Left-out fields follow from the hardware and from computed cost.

    ``engines`` message engines to use; ``reserve`` of them are kept for nodes of the highest priority. ``chunk`` bytes
    a transfer at most; ``slots`` staging slots a subgraph. ``ready``: receivers say when their first receives are
    posted (``first``; rings), when each is (``every``: nothing with bytes comes too early, at four entries more a
    transfer), or never.
    ``bucket`` merges small collectives of one kind. ``posters``: one-shot collectives are posted by cores of the
    accelerator, without event and dispatch, as in inference; else by message engines.
    """

    engines: int | None = Field(default=None, ge=1)
    reserve: int = Field(default=0, ge=0)
    algorithm: Literal["auto", "put", "recursive", "ring", "direct", "hierarchical"] = "auto"
    chunk: Size | None = Field(default=None, gt=0)
    slots: int | None = Field(default=None, ge=2, le=64)
    ready: Literal["never", "first", "every"] = "first"
    bucket: bool = True
    posters: bool = False
    partition: str | None = None
    express_doorbell: bool | None = None
