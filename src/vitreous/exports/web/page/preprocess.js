// Resize and crop as Python does it (vitreous.exports.resampling): two matrix products, each row with its few shares.
// Positions are whole numbers until the last division; Pillow's rule rounds to bytes after each product.

const UNIT = 2 ** 22, HALF = 2 ** 21; // Pillow's fixed point

/** Bytes rows columns channels, as the model sees an image.  image: { height, width, channels, data: bytes h w c }. */
export function prepare(image, rule) {
  const [rows, columns] = rule.size, { height, width } = image;
  const [tall, wide] = beforeCrop(height, width, rule);
  const across = lines(width, wide, firstLine(wide, columns, rule), columns, rule);
  const down = lines(height, tall, firstLine(tall, rows, rule), rows, rule);
  if (!rule.antialias || rule.resized_by === "torch") return bytes(inFloats(image, across, down));
  across.forEach(fixedPoint);
  down.forEach(fixedPoint);
  const lost = height - tall, rowsFirst = rule.may_shrink_rows_first && lost > 0 && lost > 2 * (width - wide);
  return rowsFirst
    ? alongRow(alongColumn(image, down, Uint8Array, pillow), across, Uint8Array, pillow).data
    : alongColumn(alongRow(image, across, Uint8Array, pillow, used(down)), down, Uint8Array, pillow).data;
}

/** Left, top, right, bottom of what the model sees, as shares of the image. */
export function seenBox(height, width, rule) {
  const sides = beforeCrop(height, width, rule).map((have, i) => {
    const first = firstLine(have, rule.size[i], rule);
    return [first / have, (first + rule.size[i]) / have];
  });
  return [sides[1][0], sides[0][0], sides[1][1], sides[0][1]];
}

/** (x / 255 − mean) / std, channels first, in float32 at every step as Python has it. */
export function normalise(seen, rule) {
  const channels = rule.mean.length, size = seen.length / channels, x = new Float32Array(seen.length);
  for (let c = 0; c < channels; c++) {
    const mean = Math.fround(rule.mean[c]), std = Math.fround(rule.std[c]);
    for (let i = 0; i < size; i++) x[c * size + i] = Math.fround(Math.fround(Math.fround(seen[i * channels + c] / 255) - mean) / std);
  }
  return x;
}

export function beforeCrop(h, w, { size, fit, short_side }) {
  if (fit === "squash" || short_side === null) return size;
  const [rows, columns] = size.map((n) => Math.floor((short_side * n) / Math.min(...size)));
  if (fit === "squash-crop") return [rows, columns];
  if (rows * w >= columns * h) return [rows, Math.max(Math.floor((rows * w) / h), columns)];
  return [Math.max(Math.floor((columns * h) / w), rows), columns];
}

/** The first of the `keep` central lines; below 0 when there are fewer, which get a black frame. */
function firstLine(have, keep, { centre }) {
  if (have < keep) return -Math.floor((keep - have) / 2);
  const half = Math.floor((have - keep) / 2), isBetween = (have - keep) % 2 === 1;
  return centre === "round" && isBetween && half % 2 === 1 ? half + 1 : half; // Python's: a half goes to the even number
}

// The matrices -----------------------------------------------------------------------------------------------------

/** Lines first … first + count − 1 of `want`, from `have`; each { from, shares }. A line outside is black: no shares. */
function lines(have, want, first, count, rule) {
  const share = kernel(rule, have, want), reach = 3 * Math.max(have / want, 1) + 2; // Lanczos is the widest
  return Array.from({ length: count }, (_, k) => {
    const i = first + k;
    if (i < 0 || i >= want) return { from: 0, shares: new Float64Array(0) };
    const middle = ((2 * i + 1) * have) / (2 * want);
    let from = Math.max(Math.floor(middle - reach), 0), to = Math.min(Math.ceil(middle + reach), have);
    while (from < to - 1 && share(from, i) === 0) from += 1;
    while (to > from + 1 && share(to - 1, i) === 0) to -= 1;
    const shares = Float64Array.from({ length: to - from }, (_, n) => share(from + n, i));
    const total = shares.reduce((a, b) => a + b, 0);
    return { from, shares: Math.abs(total - 1) < 1e-5 ? shares : shares.map((each) => each / total) };
  });
}

/** A function of pixel j and line i: the share of one in the other, before the shares are made to sum to 1. */
function kernel({ interpolation, antialias }, have, want) {
  const away = (j, i) => Math.abs((2 * j + 1) * want - (2 * i + 1) * have); // in units of 1 / (2 · want) pixel
  if (!antialias) {
    const whole = 2 * want, ratio = Math.fround(have / want);
    const sampled = {
      nearest: (j, i) => Number(j === Math.min(Math.floor(Math.fround(i * ratio)), have - 1)),
      bilinear: (j, i) => triangle(Math.abs(whole * j - Math.min(Math.max((2 * i + 1) * have - want, 0), whole * (have - 1))), whole),
      bicubic: (j, i) => {
        let sum = cubic(away(j, i), whole, -0.75);
        for (const beyond of [1, 2]) { // the border's pixel repeats
          if (j === 0) sum += cubic(away(-beyond, i), whole, -0.75);
          if (j === have - 1) sum += cubic(away(have - 1 + beyond, i), whole, -0.75);
        }
        return sum;
      },
    };
    return sampled[interpolation];
  }
  if (interpolation === "nearest") return (j, i) => Number(j === Math.floor(((2 * i + 1) * have) / (2 * want)));
  if (interpolation === "box") return (j, i) => box(j, i, have / want);
  const curve = { bilinear: triangle, bicubic: cubic, lanczos }[interpolation], whole = 2 * Math.max(have, want);
  return (j, i) => curve(away(j, i), whole);
}

const triangle = (away, whole) => Math.max(whole - away, 0) / whole;

/** Keys' kernel at x = away / whole, both whole numbers. */
function cubic(away, whole, a = -0.5) {
  const x = away / whole, y = (whole - away) / whole, z = (2 * whole - away) / whole;
  if (away >= 2 * whole) return 0;
  if (away >= whole) return -a * y * z * z;
  return 2 * away < whole ? 1 - x * x * (a + 3 - (a + 2) * x) : y * (-a + y * (2 * a + 3 - (a + 2) * y));
}

function lanczos(away, whole) {
  if (away === 0) return 1;
  if (away >= 3 * whole) return 0;
  const angle = (Math.PI * away) / whole;
  return (3 * Math.sin(angle) * Math.sin(angle / 3)) / (angle * angle);
}

/** Pillow's own steps: its rounding decides where a pixel just between two lines goes. */
function box(j, i, scale) {
  const wide = Math.max(scale, 1), middle = (i + 0.5) * scale, x = (j - middle + 0.5) * (1 / wide);
  const isBetween = j >= Math.floor(middle - wide / 2 + 0.5) && j < Math.floor(middle + wide / 2 + 0.5);
  return Number(x > -0.5 && x <= 0.5 && isBetween);
}

function fixedPoint(line) {
  line.shares = line.shares.map((share) => even(share * UNIT));
}

// The products -----------------------------------------------------------------------------------------------------

const plain = (sum) => sum;
const pillow = (sum) => Math.min(Math.max(Math.floor((sum + HALF) / UNIT), 0), 255);

/** The first row that a matrix reads, and the first that it does not read any more. */
function used(matrix) {
  const read = matrix.filter(({ shares }) => shares.length);
  return [Math.min(...read.map(({ from }) => from)), Math.max(...read.map(({ from, shares }) => from + shares.length))];
}

/** x · matrixᵀ: rows keep their number.  [top, end]: the rows that are wanted; the others stay 0. */
function alongRow({ height, width, channels, data }, matrix, Kind, rounded, [top, end] = [0, height]) {
  const out = new Kind(height * matrix.length * channels);
  for (let r = top; r < end; r++)
    for (let k = 0; k < matrix.length; k++) {
      const { from, shares } = matrix[k];
      for (let c = 0; c < channels; c++) {
        let sum = 0, at = (r * width + from) * channels + c;
        for (let n = 0; n < shares.length; n++, at += channels) sum += shares[n] * data[at];
        out[(r * matrix.length + k) * channels + c] = rounded(sum);
      }
    }
  return { height, width: matrix.length, channels, data: out };
}

/** matrix · x: columns keep their number. */
function alongColumn({ width, channels, data }, matrix, Kind, rounded) {
  const step = width * channels, out = new Kind(matrix.length * step);
  for (let k = 0; k < matrix.length; k++) {
    const { from, shares } = matrix[k];
    for (let i = 0; i < step; i++) {
      let sum = 0, at = from * step + i;
      for (let n = 0; n < shares.length; n++, at += step) sum += shares[n] * data[at];
      out[k * step + i] = rounded(sum);
    }
  }
  return { height: matrix.length, width, channels, data: out };
}

const inFloats = (image, across, down) => alongColumn(alongRow(image, across, Float64Array, plain, used(down)), down, Float64Array, plain).data;
const bytes = (x) => Uint8Array.from(x, (value) => Math.min(Math.max(even(value), 0), 255));

/** Rounded; a half goes to the even number, as in Python. */
function even(x) {
  const near = Math.round(x);
  return near - x === 0.5 && near % 2 !== 0 ? near - 1 : near;
}
