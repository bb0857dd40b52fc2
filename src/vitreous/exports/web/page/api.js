// Who answers the page here: the model itself, in this browser. The same calls as those to `vitreous serve`.

import { answerOf } from "./answers.js";
import { orders, Refused } from "./orders.js";

export { Refused };

/** Who answers, for the page.  isHere: no photo leaves this machine. */
export const who = {
  privacy: "It stays on this device: the model answers in your browser.",
  foot: "Nothing is loaded from elsewhere, no photo is stored.",
  hasApi: false,
  isHere: true,
};

// (module (func (result v128) i32.const 0 i8x16.splat i8x16.popcnt))
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
const pictures = new Map(); // id -> { photo, seen, name }
const KEPT = 12; // pictures; the worker keeps some more
let count = 0;

// What is told meanwhile ----------------------------------------------------------------------------------------------

const say = (detail) => dispatchEvent(new CustomEvent("loading", { detail }));
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

function tell({ loading: { file, have, of } }) {
  const what = file === "tensor.onnx" ? "The model" : "What runs the model";
  say(`${what} is coming: ${megabytes(have)} of ${megabytes(of)} MB.`);
}

// Opening ------------------------------------------------------------------------------------------------------------

async function json(file) {
  let answer;
  try {
    answer = await fetch(`./${file}`);
  } catch {
    throw new Refused("the host does not answer; load the page again");
  }
  if (!answer.ok) throw new Refused(`the host has no ${file} (${answer.status}); upload the whole folder`);
  try {
    return await answer.json();
  } catch {
    throw new Refused(`the host sent something else for ${file} (${answer.headers.get("content-type")}); upload the whole folder again`);
  }
}

function able() {
  if (!globalThis.WebAssembly) throw new Refused("this browser has no WebAssembly, or it is turned off (a lockdown mode?); open the page in another");
  if (!WebAssembly.validate(new Uint8Array(SIMD))) throw new Refused("this browser's WebAssembly has no SIMD, which the runtime needs; use a browser of 2023 or later");
  if (!globalThis.OffscreenCanvas) throw new Refused("this browser draws no pictures beside a page (OffscreenCanvas); use a browser of 2023 or later");
}

/** Keep the page for times without a network. Answers come without it, too. */
async function keep() {
  if (!navigator.serviceWorker) return;
  const had = Boolean(navigator.serviceWorker.controller);
  try {
    await navigator.serviceWorker.register("./sw.js");
    if (had) navigator.serviceWorker.addEventListener("controllerchange", () => say("A newer version of this page is here; load the page again."));
    else await Promise.race([new Promise((done) => navigator.serviceWorker.addEventListener("controllerchange", done)), new Promise((done) => setTimeout(done, 3000))]);
  } catch { /* a private window may refuse it */ }
}

async function open() {
  able();
  const [facts, export_, parity] = await Promise.all([json("model.json"), json("export.json"), json("parity.json")]);
  const exported = { precision: export_.precision, agrees: parity.passed, faults: parity.faults, closed: facts.closed };
  return { ...facts, answers: export_.answers, temperature: export_.temperature, threshold: export_.threshold, exported };
}

const opening = open();
let working = null, ordered = null;

/** The model, ready to answer. */
function model() {
  working ??= (async () => {
    const about = await opening;
    await keep();
    const worker = new Worker("./worker.js", { type: "module" });
    ordered = orders(worker, tell);
    const lost = new Promise((_, failed) => worker.addEventListener("error", () => failed(new Refused("worker.js cannot be run; the host must send .js files as text/javascript"))));
    const { provider, threads, isTrue } = await Promise.race([ordered("open", about), lost]);
    say(isTrue ? "" : "This browser changes the pixels that a page reads (against being recognised), so answers here may differ a little.");
    document.documentElement.dataset.ready = `${provider} ${threads}`;
    return about;
  })();
  return working;
}

// The calls ----------------------------------------------------------------------------------------------------------

async function predict(id, blob, name, photo = true) {
  const about = await model();
  const found = await ordered("answer", { id, blob, name, photo });
  if (found.photo) pictures.set(id, { photo: found.photo, seen: found.small, name });
  for (const old of [...pictures.keys()].slice(0, -KEPT)) pictures.delete(old);
  return { images: [{ ...told(pictures.get(id)?.name ?? name, found, about), image: id, box: found.box }] };
}

/** The row of an image: its answer, or the features that an encoder without a head gives. */
const told = (name, { features, logits, score }, about) => (features ? { name, features } : answerOf(name, logits, score, about));

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.max(Math.sqrt(dot(a, a) * dot(b, b)), 1e-12);
}

async function example(id) {
  const { examples } = await opening, one = examples.find(({ image }) => image === id);
  if (!one || pictures.has(id)) return null;
  const answer = await fetch(one.picture);
  if (!answer.ok) throw new Refused(`the host has no ${one.picture}; upload the whole folder`);
  return { blob: await answer.blob(), name: one.label };
}

async function named({ image }) {
  const found = await example(image);
  return predict(image, found?.blob ?? null, found?.name ?? "the image");
}

const CALLS = {
  "/api/model": async () => {
    const about = await opening;
    model().catch((error) => {
      say("");
      dispatchEvent(new CustomEvent("failed", { detail: error }));
    });
    return { ...about, runtime: "in your browser" };
  },
  "/api/examples": async () => {
    const { examples, learned } = await opening;
    return { examples, learned };
  },
  "/api/predict": named,
  "/api/features": named,
  "/api/tokens": async ({ image }) => (await model(), ordered("tokens", { id: image })),
  "/api/stem": async ({ image }) => (await model(), ordered("stem", { id: image })),
  "/api/worksheet": async () => ({ ...(await json("worksheet.json")), name: (await opening).name }),
  "/api/attention": async ({ image, patch }) => {
    const { grid } = await model();
    return { grid, query: patch ?? "answer", ...(await ordered("attend", { id: image, patch: patch ?? null })) };
  },
  "/api/break": async ({ image, shuffle, hide }) => {
    const about = await model(), places = about.grid[0] * about.grid[1];
    const order = shuffle === null ? null : shuffled(places, shuffle);
    const found = await ordered("broken", { id: image, hide, order });
    const [before, after] = [found.before, found.after].map((each) => ({ ...told("", each, about), rollout: each.rollout }));
    const likeness = before.features ? cosine(before.features, after.features) : null;
    const hidden = hide.length ? [`${hide.length} square${hide.length > 1 ? "s" : ""} covered`] : [];
    return { broken: [...(order ? ["patches shuffled"] : []), ...hidden], order, before, after, likeness };
  },
};

/** 0 … n − 1 in an order that the seed decides. */
function shuffled(n, seed) {
  const order = [...Array(n).keys()];
  let state = seed >>> 0;
  const next = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(next() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

export const get = (path, given = {}) => CALLS[path](given);
export const ask = get;
export const send = (path, file, { photo = false } = {}) => predict(photo ? `picture-${++count}` : "moment", file, file.name || "pasted.png", photo);

/** The drawing of the whole model, as an element of the page: it takes the page's colours. */
export async function drawing() {
  const answer = await fetch("./architecture.svg");
  if (!answer.ok) throw new Refused(`the host has no architecture.svg (${answer.status}); upload the whole folder`);
  return document.importNode(new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement, true);
}

/** The image as the model sees it, ready to draw. */
export const seen = async (image) => pictures.get(image).seen;

/** The whole image, sharp. */
export const photo = async (image) => pictures.get(image).photo;
