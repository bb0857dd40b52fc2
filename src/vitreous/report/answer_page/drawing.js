// Pictures lit where the answer came from: the scale of the reports, as a veil that is clear where most came from.

const STOPS = [[22, 18, 56], [40, 63, 120], [33, 122, 138], [82, 181, 118], [190, 222, 88], [253, 246, 178]];
const DIM = 0.65, LIT = 0.05; // share of the map's colour over the picture, where least and where most came from
const SMALL = 64; // pixels up to which a picture shows its pixels
const NARROW = 448, WIDE = 1024; // pixels of a canvas
const WHOLE = [0, 0, 1, 1]; // left, top, right, bottom

export function colour(share) {
  const x = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(x), STOPS.length - 2);
  return STOPS[i].map((low, c) => Math.round(low + (x - i) * (STOPS[i + 1][c] - low)));
}

/** Numbers to 0…1; one stray patch must not dim all others. */
export function stretched(map) {
  const sorted = Float64Array.from(map).sort();
  const at = (q) => {
    const x = q * (sorted.length - 1), i = Math.floor(x);
    return sorted[i] + (x - i) * ((sorted[i + 1] ?? sorted[i]) - sorted[i]);
  };
  const low = at(0.02), high = at(0.98);
  return map.map((value) => (high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0));
}

/** Draw an image, with a map over its patches, a chosen patch, covered patches, and patches in another order.
 *  area: what the model sees, in shares of the image.  cells: where the patches lie in it; the first and last reach to
 *  its edges.  pixels: show them, however many there are. */
export function draw(canvas, image, { map = null, grid = null, cells = WHOLE, patch = null, hidden = [], order = null, lines = false, area = WHOLE, pixels = false } = {}) {
  canvas.width = Math.min(Math.max(image.width, NARROW), WIDE);
  canvas.height = Math.max(Math.round((canvas.width * image.height) / image.width), 1);
  const { width, height } = canvas, [left, top, right, bottom] = area;
  const paint = canvas.getContext("2d");
  paint.imageSmoothingEnabled = !pixels && Math.max(image.width, image.height) > SMALL;
  paint.imageSmoothingQuality = "high";
  const inside = (w, h) => [left * w, top * h, (right - left) * w, (bottom - top) * h];
  const box = (place, w, h) => {
    const [rows, columns] = grid, r = Math.floor(place / columns), c = place % columns, [x, y, wide, high] = inside(w, h);
    const [x0, y0, x1, y1] = order ? WHOLE : cells; // cells that change places are of one size
    const [begin, end] = [edge(c, columns, x0, x1) * wide, edge(c + 1, columns, x0, x1) * wide];
    const [above, below] = [edge(r, rows, y0, y1) * high, edge(r + 1, rows, y0, y1) * high];
    return [x + begin, y + above, end - begin, below - above];
  };
  if (order) order.forEach((from, to) => paint.drawImage(image, ...box(from, image.width, image.height), ...box(to, width, height)));
  else paint.drawImage(image, 0, 0, width, height);
  if (map) {
    light(paint, order ? map : evened(map, grid, cells), grid, inside(width, height));
    unseen(paint, width, height, inside(width, height));
  }
  paint.fillStyle = "#808080";
  for (const place of hidden) paint.fillRect(...box(place, width, height));
  if (lines) {
    paint.strokeStyle = "rgba(255, 255, 255, .75)";
    paint.lineWidth = 1;
    const [x0, y0, x1, y1] = cells, x = (i) => edge(i, grid[1], x0, x1) * width, y = (i) => edge(i, grid[0], y0, y1) * height;
    for (let i = 1; i < grid[1]; i++) line(paint, x(i), 0, x(i), height);
    for (let i = 1; i < grid[0]; i++) line(paint, 0, y(i), width, y(i));
  }
  if (patch !== null) {
    const [x, y, w, h] = box(patch, width, height);
    for (const [style, wide] of [["#000", 5], ["#fff", 2.5]]) {
      paint.strokeStyle = style;
      paint.lineWidth = wide;
      paint.strokeRect(x, y, w, h);
    }
  }
}

/** Where a cell begins, in shares of the side; the first and the last reach to its ends. */
const edge = (i, count, from, to) => (i === 0 ? 0 : i === count ? 1 : from + ((to - from) * i) / count);

/** The values of a map in the middles of an even grid. */
function evened(map, [rows, columns], [left, top, right, bottom]) {
  const at = (i, count, from, to) => {
    const x = Math.min(Math.max((((i + 0.5) / count - from) / (to - from)) * count - 0.5, 0), count - 1), low = Math.min(Math.floor(x), Math.max(count - 2, 0));
    return [low, Math.min(low + 1, count - 1), x - low];
  };
  return map.map((_, i) => {
    const [r, s, v] = at(Math.floor(i / columns), rows, top, bottom), [c, d, u] = at(i % columns, columns, left, right);
    const row = (k) => map[k * columns + c] * (1 - u) + map[k * columns + d] * u;
    return row(r) * (1 - v) + row(s) * v;
  });
}

function light(paint, map, [rows, columns], place) {
  const small = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  stretched(map).forEach((share, i) => pixels.data.set([...colour(share), Math.round(255 * (DIM + (LIT - DIM) * share))], 4 * i));
  small.getContext("2d").putImageData(pixels, 0, 0);
  paint.save();
  paint.imageSmoothingEnabled = true;
  paint.imageSmoothingQuality = "high";
  paint.drawImage(small, ...place);
  paint.restore();
}

/** Grey over what is cut off before the model looks. */
function unseen(paint, width, height, place) {
  paint.fillStyle = "rgba(128, 128, 128, .75)";
  paint.beginPath();
  paint.rect(0, 0, width, height);
  paint.rect(...place);
  paint.fill("evenodd");
}

function line(paint, x, y, toX, toY) {
  paint.beginPath();
  paint.moveTo(x, y);
  paint.lineTo(toX, toY);
  paint.stroke();
}

/** Mark pixels of an image that was drawn.  box: x, y, width, height.  dots: x, y of each. */
export function mark(canvas, image, box, dots = []) {
  const paint = canvas.getContext("2d"), scale = canvas.width / image.width;
  for (const [x, y] of dots)
    for (const [style, radius] of [["#000", 4.5], ["#fff", 3]]) {
      paint.fillStyle = style;
      paint.beginPath();
      paint.arc(x * scale, y * scale, radius, 0, 2 * Math.PI);
      paint.fill();
    }
  for (const [style, wide] of [["#000", 5], ["#fff", 2.5]]) {
    paint.strokeStyle = style;
    paint.lineWidth = wide;
    paint.strokeRect(...box.map((n) => n * scale));
  }
}

const COLUMNS = 64; // of a mosaic

/** Numbers as squares, row by row; light is much.  columns: 0 is one row. */
export function mosaic(numbers, label, columns = COLUMNS) {
  const canvas = document.createElement("canvas"), wide = columns ? Math.min(columns, numbers.length) : numbers.length;
  [canvas.width, canvas.height] = [wide, Math.ceil(numbers.length / wide)];
  const pixels = new ImageData(canvas.width, canvas.height);
  stretched(numbers).forEach((share, i) => pixels.data.set([...colour(share), 255], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  canvas.className = "mosaic";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

/** The first numbers of many, in words. */
export const few = (numbers, count = 4) => `${numbers.slice(0, count).map((n) => n.toFixed(2).replace("-", "−")).join(", ")} …`;

export const percent = (share) => (share >= 0.9995 ? "100 %" : `${(100 * share).toFixed(1)} %`);

/** An answer in words; without a confidence, which would contradict "none of these". */
export const phrase = ({ said, top }) => said.join(", ") || `none of these (nearest: ${top[0].label})`;

/** What an answer says first. */
export const first = (answer) => (answer.said.length ? answer.top[0].label : phrase(answer));

/** The same with its confidence, which "none of these" does not have. */
export const sure = (answer) => (answer.said.length ? `${first(answer)}, ${percent(answer.top[0].probability)}` : phrase(answer));

/** Whether two answers say the same first; none of these is one answer, whatever is nearest. */
export const alike = (a, b) => (a.said.length && b.said.length ? first(a) === first(b) : a.said.length === b.said.length);

/** Rows of labels with bars; one row without a bar where the answer is none of these. */
export function list(element, answer, before = null) {
  const rows = answer.is_unlike ? [{ label: phrase(answer) }] : answer.top;
  element.replaceChildren(
    ...rows.map(({ label, probability = null }, i) => {
      const item = document.createElement("li"), name = document.createElement("span"), value = document.createElement("span");
      name.textContent = label;
      value.textContent = probability === null ? "" : percent(probability);
      item.style.setProperty("--share", probability ?? 0);
      if (before && i === 0 && !alike(before, answer)) item.className = "gone";
      item.append(name, value);
      return item;
    }),
  );
}

/** A name as nodes that may be broken after each underscore. */
export const breakable = (name) => (name.match(/[^_/]+[_/]*|[_/]+/g) ?? []).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

/** Where a patch or place stands, in words. */
export const spot = (place, [, columns]) => `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;

/** What a map says, in words. */
export function told(map, grid, what) {
  const best = map.indexOf(Math.max(...map)), share = map[best] / (map.reduce((a, b) => a + b, 0) || 1);
  return `most: ${spot(best, grid)}, with ${percent(share)}, ${(share * map.length).toFixed(1)} times the mean of the ${grid[0]} × ${grid[1]} ${what}`;
}

/** Let people pick patches of a stage: by pointer, arrow keys, and Enter or space.  area: what the model sees. */
export function pickable(stage, { grid: size, cells = WHOLE }, picked, walked = picked, area = () => WHOLE) {
  let at = null;
  stage.addEventListener("pointerdown", (event) => {
    const place = stage.getBoundingClientRect(), [rows, columns] = size, [left, top, right, bottom] = area(), [x0, y0, x1, y1] = cells;
    const x = ((event.clientX - place.left) / place.width - left) / (right - left), y = ((event.clientY - place.top) / place.height - top) / (bottom - top);
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return; // outside what the model sees
    const within = (share, from, to, count) => Math.min(Math.max(Math.floor(((share - from) / (to - from)) * count), 0), count - 1);
    const c = within(x, x0, x1, columns), r = within(y, y0, y1, rows);
    at = r * columns + c;
    picked(at);
  });
  stage.addEventListener("keydown", (event) => {
    const [rows, columns] = size;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step) {
      event.preventDefault();
      const next = at === null ? Math.floor(rows / 2) * columns + Math.floor(columns / 2) : at + step;
      const stays = Math.abs(step) === 1 && at !== null && Math.floor(next / columns) !== Math.floor(at / columns);
      if (next >= 0 && next < rows * columns && !stays) walked((at = next));
    } else if ((event.key === "Enter" || event.key === " ") && at !== null) {
      event.preventDefault();
      picked(at);
    }
  });
}

/** Words and their meanings, as the rows of a list. */
export function explained(words) {
  return Object.entries(words).map(([word, meaning]) => {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: word }), Object.assign(document.createElement("dd"), { textContent: meaning }));
    return row;
  });
}
