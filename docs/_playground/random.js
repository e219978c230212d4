// The random numbers of NumPy and of caffelite, bit by bit: the same seed gives the same points, weights and batches.

const LOW32 = 0xffffffffn, LOW64 = (1n << 64n) - 1n, LOW128 = (1n << 128n) - 1n;
const MULTIPLIER = (2549297995355413924n << 64n) + 4865540595714422341n;

/** Return `count` words of 64 bits from a seed and a key, as `np.random.SeedSequence` does. */
function seedWords(seed, key, count) {
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value ^= constant;
    constant = Math.imul(constant, 0x931e8875);
    value = Math.imul(value, constant);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const value = Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const entropy = key.length ? [seed, 0, 0, 0, ...key] : [seed];
  const pool = [0, 1, 2, 3].map((i) => hash(entropy[i] ?? 0));
  for (let i = 0; i < 4; i++) for (let j = 0; j < 4; j++) if (i !== j) pool[j] = mix(pool[j], hash(pool[i]));
  for (let i = 4; i < entropy.length; i++) for (let j = 0; j < 4; j++) pool[j] = mix(pool[j], hash(entropy[i]));
  constant = 0x8b51f9dd;
  const words = Array.from({ length: 2 * count }, (_, i) => {
    let value = pool[i % 4] ^ constant;
    constant = Math.imul(constant, 0x58f38ded);
    value = Math.imul(value, constant);
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return Array.from({ length: count }, (_, i) => words[2 * i] | (words[2 * i + 1] << 32n));
}

// The layers of the ziggurat (G. Marsaglia and W. Tsang, "The ziggurat method for generating random variables", 2000).
const TAIL = 3.6541528853610088, AREA = 0.00492867323397465524494;
const limits = new Float64Array(256), widths = new Float64Array(256), heights = new Float64Array(256);
{
  const density = (x) => Math.exp(-0.5 * x * x), base = AREA / density(TAIL);
  limits[0] = (TAIL / base) * 2 ** 52;
  [widths[0], widths[255], heights[0], heights[255]] = [base / 2 ** 52, TAIL / 2 ** 52, 1, density(TAIL)];
  for (let i = 254, x = TAIL, wider = TAIL; i > 0; i--, wider = x) {
    x = Math.sqrt(-2 * Math.log(AREA / x + density(x)));
    limits[i + 1] = (x / wider) * 2 ** 52;
    [widths[i], heights[i]] = [x / 2 ** 52, density(x)];
  }
}

/** `np.random.default_rng(seed)`: PCG64 (M. O'Neill, "PCG: a family of simple fast space-efficient … algorithms", 2014). */
export class Generator {
  constructor(seed, key = []) {
    Object.assign(this, { seed, key, children: 0, upper: null });
    const [a, b, c, d] = seedWords(seed, key, 4);
    this.increment = ((((c << 64n) | d) << 1n) | 1n) & LOW128;
    this.state = (this.increment + ((a << 64n) | b)) & LOW128;
    this.advance();
  }

  advance() {
    this.state = (this.state * MULTIPLIER + this.increment) & LOW128;
  }

  /** The next 64 bits. */
  next64() {
    this.advance();
    const bits = (this.state >> 64n) ^ (this.state & LOW64), rotation = this.state >> 122n;
    return ((bits >> rotation) | (bits << (64n - rotation))) & LOW64;
  }

  /** The next 32 bits: the upper half of a word waits for the next call. */
  next32() {
    if (this.upper !== null) {
      const bits = this.upper;
      this.upper = null;
      return bits;
    }
    const word = this.next64();
    this.upper = Number(word >> 32n);
    return Number(word & LOW32);
  }

  random() {
    return Number(this.next64() >> 11n) / 2 ** 53;
  }

  uniform(low, high) {
    return low + (high - low) * this.random();
  }

  normal() {
    for (;;) {
      const word = this.next64(), layer = Number(word & 0xffn), size = Number((word >> 9n) & ((1n << 52n) - 1n));
      const x = (word & 0x100n ? -1 : 1) * size * widths[layer];
      if (size < limits[layer]) return x;
      if (layer === 0) {
        for (;;) {
          const beyond = -Math.log1p(-this.random()) / TAIL, y = -Math.log1p(-this.random());
          if (y + y > beyond * beyond) return (word & (1n << 17n) ? -1 : 1) * (TAIL + beyond);
        }
      }
      if ((heights[layer - 1] - heights[layer]) * this.random() + heights[layer] < Math.exp(-0.5 * x * x)) return x;
    }
  }

  /** A number of 0 … n: as many bits as n has, until the number is at most n. */
  upTo(n) {
    const mask = 2 ** (32 - Math.clz32(n)) - 1;
    let value = this.next32() & mask;
    while (value > n) value = this.next32() & mask;
    return value;
  }

  /** The numbers below n in a random order. */
  permutation(n) {
    const order = Int32Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const j = this.upTo(i);
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  /** A generator that draws other numbers. */
  spawn() {
    return new Generator(this.seed, [...this.key, this.children++]);
  }
}

/** Shuffles the order of the rows, epoch by epoch: xoshiro256++ (D. Blackman and S. Vigna, 2021), as `shuffle` does. */
export class Shuffle {
  constructor(words) {
    this.halves = Int32Array.from(words.flatMap((word) => [Number(word & LOW32), Number(word >> 32n)]));
  }

  /** The lower 32 of the next 64 bits. Each word is in two halves, because numbers of 64 bits are slow here. */
  next() {
    const s = this.halves, a = s[0], aHigh = s[1], b = s[2], bHigh = s[3];
    const low = (a >>> 0) + (s[6] >>> 0), high = (aHigh + s[7] + (low > 0xffffffff ? 1 : 0)) | 0;
    const bits = (((low << 23) | (high >>> 9)) + a) | 0;
    const c = s[4] ^ a, cHigh = s[5] ^ aHigh, d = s[6] ^ b, dHigh = s[7] ^ bHigh;
    s[2] = b ^ c;
    s[3] = bHigh ^ cHigh;
    s[0] = a ^ d;
    s[1] = aHigh ^ dHigh;
    s[4] = c ^ (b << 17);
    s[5] = cHigh ^ ((bHigh << 17) | (b >>> 15));
    s[6] = (dHigh << 13) | (d >>> 19);
    s[7] = (d << 13) | (dHigh >>> 19);
    return bits;
  }

  shuffle(order) {
    for (let i = order.length - 1; i > 0; i--) {
      const mask = 2 ** (32 - Math.clz32(i)) - 1;
      let j = this.next() & mask;
      while (j > i) j = this.next() & mask;
      const row = order[i];
      order[i] = order[j];
      order[j] = row;
    }
  }
}

/** Draw the masks of dropout: Philox4x32-10 (J. Salmon et al., 2011). Element i has 16 bits of its own. */
export class Mask {
  constructor(seed) {
    this.key = [Number(seed & LOW32), Number(seed >> 32n)];
    this.step = 0;
    this.words = new Uint32Array(64);
  }

  /** Fill a mask for the next step: `scale` for elements that stay, and 0 for others. */
  fill(mask, n, limit, scale) {
    const { words } = this;
    for (let begin = 0; begin < n; begin += 128) {
      for (let i = 0; i < 16; i++) this.draw((begin / 128) * 16 + i, i);
      const end = Math.min(128, n - begin);
      for (let i = 0; i < end; i++) mask[begin + i] = (i < 64 ? words[i] & 0xffff : words[i - 64] >>> 16) >= limit ? scale : 0;
    }
    this.step++;
  }

  draw(counter, at) {
    const { words } = this;
    let key0 = this.key[0] | 0, key1 = this.key[1] | 0, c0 = counter, c1 = 0, c2 = this.step, c3 = 0;
    for (let round = 0; round < 10; round++) {
      const high0 = highProduct(c0, 0xd2511f53), low0 = Math.imul(c0, 0xd2511f53);
      const high2 = highProduct(c2, 0xcd9e8d57), low2 = Math.imul(c2, 0xcd9e8d57);
      c0 = high2 ^ c1 ^ key0;
      c1 = low2;
      c2 = high0 ^ c3 ^ key1;
      c3 = low0;
      key0 = (key0 + 0x9e3779b9) | 0;
      key1 = (key1 + 0xbb67ae85) | 0;
    }
    words[at] = c0;
    words[16 + at] = c1;
    words[32 + at] = c2;
    words[48 + at] = c3;
  }
}

/** The upper 32 bits of the product of two unsigned numbers. */
function highProduct(a, b) {
  const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
  const middle = a1 * b0 + ((a0 * b0) / 65536 >>> 0), rest = a0 * b1 + (middle & 0xffff);
  return (a1 * b1 + Math.floor(middle / 65536) + Math.floor(rest / 65536)) | 0;
}
