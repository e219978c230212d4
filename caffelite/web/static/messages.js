// Reads the messages of caffelite/web/messages.py: a header of JSON, and arrays behind it.

const TYPES = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array };

/** The message in an ArrayBuffer. Arrays become typed arrays with a `shape`. */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const start = 4 + length;
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return revived(header, buffer, start);
}

function revived(value, buffer, start) {
  if (Array.isArray(value)) return value.map((item) => revived(item, buffer, start));
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value.$array) && value.type in TYPES) {
    const size = value.$array.reduce((a, b) => a * b, 1);
    const found = new TYPES[value.type](buffer, start + value.at, size);
    found.shape = value.$array;
    return found;
  }
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revived(item, buffer, start)]));
}
