"""Whether all ranks do the same: the same options, data and batches."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite.core.sparse import SparseRows
from caffelite.data.generator import Batch
from caffelite.distributed.mpi import Communicator

SAMPLED_ROWS = 8  # of each batch made in Python


def check_facts(comm: Communicator, what: str, facts: dict[str, Any]) -> None:
    """Raise RuntimeError unless all ranks have the same facts. It names the first rank and fact that differ."""
    all_facts = comm.all_gather_object({name: json.dumps(fact, default=str) for name, fact in facts.items()})
    for rank, rank_facts in enumerate(all_facts):
        for name in dict.fromkeys([*all_facts[0], *rank_facts]):
            first, other = all_facts[0].get(name), rank_facts.get(name)
            if first != other:
                is_short = max(len(str(first)), len(str(other))) <= 50
                raise RuntimeError(
                    f"{what}: rank {rank} differs from rank 0 in its {name}{f': {other}, {first}' * is_short}; "
                    "every rank has to run the same program on the same data"
                )


def check_batch(comm: Communicator, location: str, batch: Batch | None) -> None:
    """Raise RuntimeError unless all ranks got the same batch, or None. It compares only some rows."""
    rows = 0 if batch is None else batch.rows
    facts = {"number of rows in the batch": rows}
    if batch is not None:
        sample = np.linspace(0, rows - 1, SAMPLED_ROWS).astype(int)
        facts["checksum of the batch"] = checksum(column[sample] for column in batch.columns())
    check_facts(comm, location, facts)


def checksum(values: Any) -> int:
    """Return a checksum of the bits of arrays, and of other values."""
    crc = 0
    for value in values:
        pieces: Iterable[Any]
        if isinstance(value, np.ndarray):
            pieces = [np.ascontiguousarray(value).view(np.uint8).data]
        else:
            pieces = value.bytes() if isinstance(value, SparseRows) else [repr(value).encode()]
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
    return crc
