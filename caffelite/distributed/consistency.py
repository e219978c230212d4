"""Checks that all ranks do the same, with the same options, data and batches."""

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


def check_fingerprints(comm: Communicator, what: str, fingerprint: dict[str, Any]) -> None:
    """Raise RuntimeError, naming the first rank and entry that differ, unless all ranks have the same fingerprint."""
    fingerprints = comm.all_gather_object({k: json.dumps(x, default=str) for k, x in fingerprint.items()})
    for rank, rank_fingerprint in enumerate(fingerprints):
        for name in dict.fromkeys([*fingerprints[0], *rank_fingerprint]):
            first, other = fingerprints[0].get(name), rank_fingerprint.get(name)
            if first != other:
                is_short = max(len(str(first)), len(str(other))) <= 50
                raise RuntimeError(
                    f"{what}: rank {rank} differs from rank 0 in its {name}{f': {other}, {first}' * is_short}; "
                    "every rank has to run the same program on the same data"
                )


def check_batch(comm: Communicator, location: str, batch: Batch | None) -> None:
    """Raise RuntimeError unless all ranks got the same batch, or None. Only some rows are compared."""
    rows = 0 if batch is None else batch.rows
    fingerprint = {"number of rows in the batch": rows}
    if batch is not None:
        sample = np.linspace(0, rows - 1, SAMPLED_ROWS).astype(int)
        fingerprint["checksum of the batch"] = checksum(column[sample] for column in batch.columns())
    check_fingerprints(comm, location, fingerprint)


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
