// The model at work, beside the page: a picture is decoded, prepared and answered here, so the page never stands still.

import { Refused } from "./orders.js";
import { normalise, prepare, seenBox } from "./preprocess.js";

const KEPT = 16; // pictures; the page keeps fewer
const STRIP = 2 ** 22; // pixels that a canvas holds at a time; phones have small ones
const PHOTO_SIDE = 1024; // of the longer side, for the page
const pictures = new Map(); // id -> { seen, box }: bytes as the model gets them
let about = null, session = null, ort = null, latest = { id: null, outputs: null };

// Opening ------------------------------------------------------------------------------------------------------------

const addressOf = (file) => new URL(`./${file}`, self.location.href).href;

/** A file of the export, with its size checked; progress is told. */
async function fetched(file) {
  let answer;
  try {
    answer = await fetch(addressOf(file));
  } catch {
    throw new Refused(`${file} cannot be fetched; is the host still there? Then load the page again`);
  }
  if (!answer.ok) throw new Refused(`the host has no ${file} (${answer.status}); upload the whole folder`);
  const of = about.files[file], parts = [];
  let have = 0;
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    have += value.length;
    self.postMessage({ loading: { file, have, of } });
  }
  if (have !== of) throw new Refused(`${file} came with ${have.toLocaleString("en")} bytes as ${answer.headers.get("content-type")}, and has ${of.toLocaleString("en")}; upload the whole folder again`);
  const bytes = new Uint8Array(have);
  parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 0);
  return bytes;
}

/** Whether a canvas gives back what was drawn. Some browsers change a few pixels, so that no page can recognise them. */
function isTrueCanvas() {
  const side = 32, drawn = new ImageData(side, side), paint = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
  drawn.data.forEach((_, i) => (drawn.data[i] = i % 4 === 3 ? 255 : (i * 37) % 256));
  paint.putImageData(drawn, 0, 0);
  return paint.getImageData(0, 0, side, side).data.every((value, i) => value === drawn.data[i]);
}

async function open(given) {
  about = given;
  const isTrue = isTrueCanvas();
  const model = await fetched("tensor.onnx");
  if (about.runtime.webgpu && (await self.navigator.gpu?.requestAdapter().catch(() => null))) {
    try {
      await start("webgpu", model);
      await check();
      return { provider: "webgpu", threads: 1, isTrue };
    } catch {
      session = null; // WebAssembly answers instead
    }
  }
  await start("wasm", model);
  return { provider: "wasm", threads: ort.env.wasm.numThreads, isTrue };
}

async function start(provider, model) {
  const files = about.runtime[provider];
  ort = await import(addressOf(files.script));
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = provider === "wasm" && self.crossOriginIsolated ? Math.min(self.navigator.hardwareConcurrency || 1, 4) : 1;
  ort.env.wasm.wasmPaths = { mjs: addressOf(files.glue), wasm: addressOf(files.wasm) };
  ort.env.wasm.wasmBinary = await fetched(files.wasm); // by itself the runtime needs the host to say application/wasm
  const options = { executionProviders: provider === "webgpu" ? ["webgpu", "wasm"] : ["wasm"], freeDimensionOverrides: { batch: 1 } };
  try {
    session = await ort.InferenceSession.create(model, options);
  } catch (error) {
    throw new Refused(`the runtime cannot open this model: ${String(error.message ?? error).split("\n")[0]}`);
  }
}

/** A graphics card answers one picture whose logits are known; one that computes otherwise is not used. */
async function check() {
  const expected = await (await fetch(addressOf("vectors/expected.json"))).json();
  const { seen } = await decoded(await (await fetch(addressOf("vectors/00.png"))).blob(), "vectors/00.png");
  const outputs = await run(normalise(seen, about.rule)), wanted = expected.tensor["00"], { data } = outputs.logits ?? outputs.features;
  const apart = Math.max(...wanted.map((z, k) => Math.abs(z - data[k]))) / Math.max(1, ...wanted.map(Math.abs));
  if (!(apart <= about.check)) throw new Error(`WebGPU answers ${apart.toExponential(1)} off`);
}

// A picture ----------------------------------------------------------------------------------------------------------

async function decoded(blob, name) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image", premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new Refused(await whyNot(blob, name));
  }
  const { width, height } = bitmap;
  if (width * height > about.limits.pixels) throw new Refused(`${name} has ${Math.round((width * height) / 1e6)} megapixels; at most ${Math.round(about.limits.pixels / 1e6)} are taken here: shrink it`);
  const seen = prepare({ height, width, channels: about.rule.mean.length, data: pixelsOf(bitmap) }, about.rule);
  return { bitmap, seen, box: seenBox(height, width, about.rule) };
}

/** All pixels, height width channels, with transparency on white. */
function pixelsOf(bitmap) {
  const { width, height } = bitmap, channels = about.rule.mean.length, out = new Uint8Array(width * height * channels);
  const high = Math.min(Math.max(Math.floor(STRIP / width), 1), height);
  const paint = new OffscreenCanvas(width, high).getContext("2d", { willReadFrequently: true });
  let at = 0;
  for (let top = 0; top < height; top += high) {
    const rows = Math.min(high, height - top);
    paint.fillStyle = "#fff";
    paint.fillRect(0, 0, width, rows);
    paint.drawImage(bitmap, 0, -top);
    const { data } = paint.getImageData(0, 0, width, rows);
    for (let i = 0; i < 4 * width * rows; i += 4)
      if (channels === 1) out[at++] = (19595 * data[i] + 38470 * data[i + 1] + 7471 * data[i + 2] + 32768) >> 16; // Pillow's grey
      else for (let c = 0; c < 3; c++) out[at++] = data[i + c];
  }
  return out;
}

/** Why a file is no picture here, by its first bytes. */
async function whyNot(blob, name) {
  const head = new Uint8Array(await blob.slice(0, 16).arrayBuffer()), text = String.fromCharCode(...head);
  if (!blob.size) return `${name} is empty (0 bytes); choose another`;
  if (/^....ftyp(hei|hev|mif1|msf1)/s.test(text)) return `${name} is a HEIC image, which this browser cannot decode (Safari can); save it as JPEG, or set the phone's camera to "most compatible"`;
  if (/^(II\*\0|MM\0\*)/.test(text)) return `${name} is a TIFF image, which this browser cannot decode; save it as JPEG or PNG`;
  if (/^(\xff\xd8|\x89PNG|RIFF|GIF8|BM)/.test(text)) return `${name} is broken; choose it again, or another`;
  return `${name} is not an image that this browser reads; choose JPEG, PNG, WebP or GIF`;
}

async function smaller(bitmap) {
  const scale = PHOTO_SIDE / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1) return bitmap;
  const [resizeWidth, resizeHeight] = [bitmap.width, bitmap.height].map((n) => Math.max(Math.round(scale * n), 1));
  return createImageBitmap(bitmap, { resizeWidth, resizeHeight, resizeQuality: "high" });
}

function asBitmap(seen) {
  const [rows, columns] = about.rule.size, channels = about.rule.mean.length, data = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++)
    data.data.set([seen[i * channels], seen[i * channels + (channels > 1)], seen[i * channels + 2 * (channels > 1)], 255], 4 * i);
  return createImageBitmap(data);
}

// Answers ------------------------------------------------------------------------------------------------------------

async function run(x) {
  const tensor = new ort.Tensor("float32", x, [1, about.rule.mean.length, ...about.rule.size]);
  return session.run({ images: tensor });
}

async function outputsOf(id) {
  if (latest.id !== id) latest = { id, outputs: await run(normalise(pictures.get(id).seen, about.rule)) };
  return latest.outputs;
}

/** Logits and score; of an encoder without a head, features. */
const said = ({ features, logits, score }) => (features ? { features: Array.from(features.data) } : { logits: Array.from(logits.data), score: Number(score.data[0]) });

async function answer({ id, blob, name, photo }) {
  if (blob) {
    const { bitmap, seen, box } = await decoded(blob, name);
    pictures.set(id, { seen, box });
    for (const old of [...pictures.keys()].slice(0, -KEPT)) pictures.delete(old);
    if (latest.id === id) latest = { id: null, outputs: null };
    const whole = photo ? await smaller(bitmap) : null;
    return { ...said(await outputsOf(id)), box, photo: whole, small: photo ? await asBitmap(seen) : null };
  }
  if (!pictures.has(id)) throw new Refused("the page no longer has that image; choose it again");
  return { ...said(await outputsOf(id)), box: pictures.get(id).box };
}

/** Where the answer, or a patch, looks: maps L H P and the rollout P. */
async function attend({ id, patch }) {
  if (!pictures.has(id)) throw new Refused("the page no longer has that image; choose it again");
  return maps(await outputsOf(id), patch);
}

function maps(outputs, patch = null) {
  const { depth, heads, tokens_in_front: front, grid } = about, patches = grid[0] * grid[1], tokens = front + patches;
  const row = (data, at) => Array.from(data.subarray(at, at + patches), short);
  const each = (place) => Array.from({ length: depth }, (_, l) => Array.from({ length: heads }, (_, h) => place(l * heads + h)));
  if (patch === null) return { maps: each((n) => row(outputs.answer_maps.data, n * patches)), rollout: row(outputs.answer_rollout.data, 0) };
  const from = (n) => (n * tokens + front + patch) * tokens + front;
  return { maps: each((n) => row(outputs.attention_weights.data, from(n))), rollout: row(outputs.rollout.data, from(0)) };
}

/** The tokens that enter the first block: some numbers of each. */
async function tokens({ id }) {
  const { data, dims: [, count, width] } = (await outputsOf(id)).tokens;
  return { tokens: Array.from({ length: count }, (_, n) => Array.from(data.subarray(n * width, (n + 1) * width), short)) };
}

/** What each convolution before the tokens makes: its shape, and some of its maps, made smaller. */
async function stem({ id }) {
  const outputs = await outputsOf(id);
  const steps = about.stem.map((shape, i) => {
    const { data, dims: [, count, h, w] } = outputs[`stem_${i}`];
    return { shape, size: [h, w], maps: Array.from({ length: count }, (_, k) => Array.from(data.subarray(k * h * w, (k + 1) * h * w), short)) };
  });
  return { steps };
}

const short = (value) => Math.round(1e5 * value) / 1e5;

/** The answer before and after patches are covered (with 0, the mean of training images) or change places. */
async function broken({ id, hide, order }) {
  if (!pictures.has(id)) throw new Refused("the page no longer has that image; choose it again");
  const told = (outputs) => ({ ...said(outputs), rollout: about.attention ? maps(outputs).rollout : null });
  const before = told(await outputsOf(id)), x = normalise(pictures.get(id).seen, about.rule);
  return { before, after: told(await run(moved(covered(x, hide), order))) };
}

function covered(x, hide) {
  const [height, width] = about.rule.size, [rows, columns] = about.grid, [x0, y0, x1, y1] = about.cells;
  const edge = (n, of, side, from, to) => (n === 0 ? 0 : n === of ? side : Math.round(side * (from + ((to - from) * n) / of)));
  for (const patch of hide)
    for (let c = 0; c < about.rule.mean.length; c++) {
      const r = Math.floor(patch / columns), k = patch % columns, left = edge(k, columns, width, x0, x1), right = edge(k + 1, columns, width, x0, x1);
      for (let y = edge(r, rows, height, y0, y1); y < edge(r + 1, rows, height, y0, y1); y++) x.fill(0, (c * height + y) * width + left, (c * height + y) * width + right);
    }
  return x;
}

function moved(x, order) {
  if (!order) return x;
  const [height, width] = about.rule.size, [rows, columns] = about.grid, high = height / rows, wide = width / columns, out = new Float32Array(x.length);
  order.forEach((from, to) => {
    for (let c = 0; c < about.rule.mean.length; c++)
      for (let y = 0; y < high; y++) {
        const at = (place) => (c * height + Math.floor(place / columns) * high + y) * width + (place % columns) * wide;
        out.set(x.subarray(at(from), at(from) + wide), at(to));
      }
  });
  return out;
}

// Messages: one after the other, so that two pictures never share the model -----------------------------------------

const KINDS = { open, answer, attend, tokens, stem, broken, seen: async ({ id }) => pictures.get(id).seen };
let turn = Promise.resolve();

self.addEventListener("message", ({ data: { number, kind, given } }) => {
  turn = turn.then(async () => {
    try {
      const found = await KINDS[kind](given);
      self.postMessage({ number, found }, [found.photo, found.small].filter(Boolean));
    } catch (error) {
      self.postMessage({ number, line: String(error.message ?? error), isRefused: error instanceof Refused });
    }
  });
});
