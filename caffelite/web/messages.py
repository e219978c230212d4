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

ALIGNMENT = 8  # bytes
DTYPES = {"f": np.float32, "i": np.int32, "u": np.uint8, "b": np.uint8}  # by the kind of a dtype
DTYPES_BY_NAME = {"float32": np.float32, "int32": np.int32, "uint8": np.uint8}


def encode(message: Any) -> bytes:
    """Return a message, of dicts, lists, numbers, strings, None and arrays, as bytes.

    Arrays of floats become float32, of integers int32, of bools uint8. Numbers that are not finite become null.
    """
    parts: list[bytes] = []
    text = json.dumps(_to_json(message, parts), allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(4 + len(text)) % ALIGNMENT)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def _to_json(x: Any, parts: list[bytes]) -> Any:
    if isinstance(x, np.ndarray):
        array = np.ascontiguousarray(x, x.dtype if x.dtype == np.uint8 else DTYPES[x.dtype.kind])
        place = sum(map(len, parts))
        parts.append(array.tobytes() + b"\0" * (-array.nbytes % ALIGNMENT))
        return {"$array": list(array.shape), "type": array.dtype.name, "at": place}
    if isinstance(x, dict):
        return {str(name): _to_json(value, parts) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_to_json(value, parts) for value in x]
    if isinstance(x, float | np.floating):
        return float(x) if math.isfinite(x) else None
    return int(x) if isinstance(x, np.integer) else x


def decode(content: bytes) -> Any:
    """Return the message that `encode` turned into these bytes. Raise ValueError if they are not a message."""
    length = int.from_bytes(content[:4], "little")
    start = 4 + length
    if len(content) < 4 or start > len(content):
        raise ValueError("the message is cut off")
    try:
        return _restore_arrays(json.loads(content[4:start]), memoryview(content)[start:])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"this is not a message: {error}") from None


def _restore_arrays(x: Any, body: memoryview) -> Any:
    if isinstance(x, list):
        return [_restore_arrays(item, body) for item in x]
    if not isinstance(x, dict):
        return x
    if x.keys() != {"$array", "type", "at"}:
        return {name: _restore_arrays(value, body) for name, value in x.items()}
    shape, place, dtype = x["$array"], x["at"], np.dtype(DTYPES_BY_NAME[x["type"]])
    if not all(type(n) is int and n >= 0 for n in (*shape, place)):
        raise ValueError("shapes and places are counts")
    array = np.frombuffer(body[place : place + math.prod(shape) * dtype.itemsize], dtype)
    return array.reshape(shape)
