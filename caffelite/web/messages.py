"""Messages with arrays in them: a header of JSON, and then the bytes of the arrays.

    4 bytes      the length of the header, an unsigned integer, little-endian
    the header   JSON in UTF-8, filled up with blanks to a multiple of 8 bytes. In the place of an array it has
                 {"$array": shape, "type": "float32", "at": where its bytes begin behind the header}
    the bytes    of each array, in C order, each at a multiple of 8

`static/messages.js` reads them.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

ALIGNED = 8  # bytes
TYPES = {"f": np.float32, "i": np.int32, "u": np.uint8, "b": np.uint8}  # by the kind of a dtype


def encode(message: Any) -> bytes:
    """Return a message, of dicts, lists, numbers, strings, None and arrays, as bytes.

    Arrays of floats become float32, of integers int32, of bools uint8. Numbers that are not finite become null.
    """
    parts: list[bytes] = []
    text = json.dumps(_plain(message, parts), allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(4 + len(text)) % ALIGNED)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def _plain(x: Any, parts: list[bytes]) -> Any:
    if isinstance(x, np.ndarray):
        array = np.ascontiguousarray(x, x.dtype if x.dtype == np.uint8 else TYPES[x.dtype.kind])
        place = sum(map(len, parts))
        parts.append(array.tobytes() + b"\0" * (-array.nbytes % ALIGNED))
        return {"$array": list(array.shape), "type": array.dtype.name, "at": place}
    if isinstance(x, dict):
        return {str(name): _plain(value, parts) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value, parts) for value in x]
    if isinstance(x, float | np.floating):
        return float(x) if math.isfinite(x) else None
    return int(x) if isinstance(x, np.integer) else x
