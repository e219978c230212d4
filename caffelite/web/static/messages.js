// Messages with arrays in them, as `messages.py` writes them.

const TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

/** Return the message in an ArrayBuffer. Its arrays are typed arrays, with their shape in `.shape`. */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return restoreArrays(header, buffer, 4 + length);
}

function restoreArrays(value, buffer, start) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((item) => restoreArrays(item, buffer, start));
  if (Array.isArray(value.$array) && value.type in TYPES) {
    const count = value.$array.reduce((product, length) => product * length, 1);
    const array = new TYPES[value.type](buffer, start + value.at, count);
    array.shape = value.$array;
    return array;
  }
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, restoreArrays(item, buffer, start)]));
}

/** Return a message as an ArrayBuffer that `decode` reads. Typed arrays in it need no shape if they have one axis. */
export function encode(message) {
  const arrays = [];
  let at = 0;
  const toJSON = (value) => {
    const type = Object.keys(TYPES).find((name) => value instanceof TYPES[name]);
    if (type) {
      arrays.push([at, new Uint8Array(value.buffer, value.byteOffset, value.byteLength)]);
      const reference = { $array: value.shape ?? [value.length], type, at };
      at += 8 * Math.ceil(value.byteLength / 8);
      return reference;
    }
    if (Array.isArray(value)) return value.map(toJSON);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, toJSON(item)]));
  };
  const text = new TextEncoder().encode(JSON.stringify(toJSON(message)));
  const start = 8 * Math.ceil((4 + text.length) / 8);
  const bytes = new Uint8Array(start + at).fill(32, 4, start);
  new DataView(bytes.buffer).setUint32(0, start - 4, true);
  bytes.set(text, 4);
  for (const [place, content] of arrays) bytes.set(content, start + place);
  return bytes.buffer;
}
