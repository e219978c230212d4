// Messages with arrays in them, as `messages.py` writes them.

const TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

/** Return the message in an ArrayBuffer. Its arrays are typed arrays, with their shape in `.shape`. */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return filled(header, buffer, 4 + length);
}

function filled(value, buffer, start) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((item) => filled(item, buffer, start));
  if (Array.isArray(value.array) && value.type in TYPES) {
    const count = value.array.reduce((product, length) => product * length, 1);
    const found = new TYPES[value.type](buffer, start + value.at, count);
    found.shape = value.array;
    return found;
  }
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, filled(item, buffer, start)]));
}
