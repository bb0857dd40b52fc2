// The lesson: one picture on its way through the model, in six steps. Words, formulas and pictures follow the model.

import { ask, drawing, get, Refused, seen, send, who } from "./api.js";
import { breakable, colour, draw, explained, few, list, mark, mosaic, percent, phrase, pickable, spot, stretched, told } from "./drawing.js";
import { asked, isEncoder, layout, outcome, piece, pieces } from "./encoder.js";
import { film } from "./film.js";

const $ = (id) => document.getElementById(id);
const SQUARE = 8; // pixels of a side whose numbers are shown
const state = { model: null, image: null, bitmap: null, answer: null, tokens: null, maps: null, stem: null, patch: 0, layer: 1, channel: 0, at: 1, turn: 0, stop: null };

const paragraph = (text, kind = "") => Object.assign(document.createElement("p"), { textContent: text, className: kind });
const canvas = () => $("view");
const number = (n) => n.toLocaleString("en");
const NORM = "norm brings the numbers of a token to one scale.";
const isHybrid = (m) => m.transformer.stem !== "patch";
const where = (s) => `the ${piece(s.model)} at ${spot(s.patch, s.model.grid)}`;

const STEPS = [
  {
    name: () => "image",
    heading: () => "An image is a table of numbers",
    words: ({ model: m }) => [
      `The model takes every picture at ${m.image_size[0]} × ${m.image_size[1]} pixels. Each pixel is ${{ 1: "one number from 0 (black) to 255 (white)", 3: "3 numbers from 0 to 255 (red, green, blue)" }[m.channels] ?? `${m.channels} numbers from 0 to 255`}, so it is given ${number(m.image_size[0] * m.image_size[1] * m.channels)} numbers, and nothing else: no name, no place, no time. They are scaled to lie around 0.`,
      "A person sees a thing at once. The model must find out which of these numbers belong together.",
    ],
    paint: (s) => {
      draw(canvas(), s.bitmap, {});
      mark(canvas(), s.bitmap, square(s));
    },
    more: pixels,
    caption: "What the model gets. Click to read the numbers of another square.",
    picks: true,
  },
  {
    name: (m) => (isHybrid(m) ? "convolutions" : "patches"),
    heading: (m) => (isHybrid(m) ? "Convolutions read the image first" : "The image is cut into patches"),
    words: (s) => (isHybrid(s.model) ? convolved(s) : cut(s.model)),
    paint: (s) => {
      draw(canvas(), s.bitmap, isHybrid(s.model) ? {} : { ...layout(s.model), lines: true, patch: s.patch });
      if (isHybrid(s.model)) mark(canvas(), s.bitmap, windowOf(s.model, s.patch), centres(s.model));
    },
    more: (s) => (isHybrid(s.model) ? maps(s) : []),
    caption: (s) => (isHybrid(s.model) ? `Each dot is the middle of a ${piece(s.model)}. The frame is what the windows of ${where(s)} cover.` : `${capital(where(s))} is chosen.`),
    picks: true,
  },
  {
    name: () => "tokens",
    heading: (m) => `Every ${piece(m)} becomes a token`,
    words: ({ model: m }) => [
      `One learned table turns the ${number(m.transformer.numbers)} numbers of each ${piece(m)} into ${number(m.width)}. ${placed(m)}`,
      `${inFront(m)}${read(m)}`,
    ],
    formula: ({ model: m }) => embedding(m),
    letters: ({ model: m }) => `z₀: all tokens. x₁, x₂ …: the numbers of each ${piece(m)}. E: the table that turns them into tokens, with its bias.${embedding(m)[0].includes(" + p₁") ? " p, p₁ …: the position of each." : ""}${m.transformer.norm_before_blocks ? ` ${NORM}` : ""}`,
    paint: (s) => draw(canvas(), s.bitmap, { ...layout(s.model), lines: !isHybrid(s.model), patch: s.patch }),
    more: tokens,
    caption: (s) => `${isHybrid(s.model) ? `Where ${where(s)} stands` : capital(where(s))}, and beside it its numbers.`,
    picks: true,
  },
  {
    name: () => "attention",
    heading: () => "Tokens look at each other",
    words: ({ model: m }) => [
      "Each token asks a question (query), and each offers a key and a value. Where a question fits a key, the value flows. The shares of one token sum to 1: that is attention.",
      m.heads > 1 ? `In every layer ${m.heads} heads ask different questions at once.` : "One head asks in every layer.",
    ],
    formula: ({ model: m }) => attention(m),
    letters: ({ model: m }) => `q, k, v: query, key and value of each token, made of it by three tables; a fourth joins what the heads found. q kᵀ: how well each question fits each key. softmax turns that into shares that sum to 1.${m.transformer.scale === null ? " d: the numbers of a head." : ""}${m.positions === "relative" ? " r: a learned vector for each offset of two tokens." : ""}${m.transformer.qk_norm ? ` ${NORM}` : ""}`,
    paint: (s) => draw(canvas(), s.bitmap, { ...layout(s.model), map: mean(s.maps, s.layer), patch: s.patch }),
    more: layers,
    caption: (s) => `Where ${where(s)} looks in layer ${s.layer}, mean of its heads; ${told(mean(s.maps, s.layer), s.model.grid, pieces(s.model))}.${elsewhere(s)}`,
    picks: true,
  },
  {
    name: () => "layers",
    heading: (m) => (m.depth > 1 ? "Layer upon layer" : "One layer"),
    words: ({ model: m }) => [
      `${m.depth > 1 ? `The ${m.depth} layers (blocks in the drawing) are alike: look` : "The layer (a block in the drawing) does this: look"} around, think for yourself, and keep what you had (the skip connection).${cutSkips(m)}`,
      `The film goes through the layers and shows where ${reader(m)}. Its last picture follows the shares through all layers (rollout): which ${pieces(m)} are in ${outcome(m)} at the end. Each picture is lit on a scale of its own.`,
    ],
    formula: ({ model: m }) => block(m),
    letters: ({ model: m }) => `z: all tokens, z′: after looking around. ${NORM} mlp: two tables, one after the other, for each token by itself.${m.transformer.layer_scale ? " γ: one learned number for each of a token's numbers." : ""}`,
    more: playing,
    caption: (s) => (s.frame < s.model.depth ? `Layer ${s.frame + 1}: where ${reader(s.model)}; ${told(mean(s.whole, s.frame + 1), s.model.grid, pieces(s.model))}.` : `All layers: what came into ${outcome(s.model)}; ${told(s.whole.rollout, s.model.grid, pieces(s.model))}.`),
  },
  {
    name: (m) => (isEncoder(m) ? "features" : "answer"),
    heading: (m) => (isEncoder(m) ? "The features" : "The answer"),
    words: ({ model: m, answer: a }) => (isEncoder(m) ? encoded(m) : [
      `${m.transformer.distillation_head ? "Two more tables turn" : "One more table turns"} ${collected(m)} into a score for each of the ${number(m.classes)} classes, and ${m.answers === "several" ? "a curve turns each score into a share of its own: an image may have several labels" : "softmax turns the scores into shares that sum to 1"}.${m.knows_unlike ? ` None of these is not a class: the model says it when the picture is unlike all that it learned.` : ""}`,
      a.said.length ? `It says ${phrase(a)}, at ${percent(a.top[0].probability)}${expected(m, a)}` : a.is_unlike ? `It says: ${phrase(a)}. The image resembles no class that it learned.` : `It says: ${phrase(a)}. No class reaches one half.`,
    ]),
    paint: (s) => draw(canvas(), s.bitmap, { ...layout(s.model), map: s.whole.rollout }),
    more: (s) => {
      const link = Object.assign(document.createElement("a"), { href: `./?image=${encodeURIComponent(s.image)}#break`, textContent: "Now try to break it." });
      if (isEncoder(s.model)) return [paragraph(`The features: ${few(s.answer.features)}`, "hint"), mosaic(s.answer.features, "The features, a square each"), link];
      if (s.answer.is_unlike) return [link];
      const top = document.createElement("ol");
      top.className = "top";
      list(top, s.answer);
      return [top, link];
    },
    caption: (s) => `The same picture, with light where ${outcome(s.model)} came from. That is not why it was given: cover it and see.`,
  },
];

// What the model is, in words ------------------------------------------------------------------------------------------

function cut(m) {
  const [p, q] = m.transformer.patch, words = p === 16 && q === 16 ? "" : ` Here a word has ${p} × ${q} pixels.`;
  return [
    `${m.grid[0]} rows of ${m.grid[1]} patches: ${number(m.grid[0] * m.grid[1])} pieces of ${p} × ${q} pixels. From here on the model reads them like the words of a sentence.`,
    `That is the idea of the paper: an image is worth 16 × 16 words.${words}`,
    "Click a patch; we follow it through the next steps.",
  ];
}

function convolved({ model: m, stem, patch }) {
  const sizes = [m.image_size, ...stem.map(({ shape }) => shape.slice(1))].map((size) => size.join(" × ")).join(" → ");
  const last = stem.at(-1).shape, [p, q] = m.transformer.patch, [, , w, h] = windowOf(m, patch);
  const few = m.transformer.stem === "convolutions";
  const by = few ? `${stem.length === 1 ? "One convolution, a window of 3 × 3 that moves two pixels at a time," : `${stem.length} convolutions, windows of 3 × 3 that move two pixels at a time,`} ${stem.length === 1 ? "makes" : "make"}` : "A ResNet makes";
  const all = w >= m.image_size[1] && h >= m.image_size[0];
  return [
    `This model is a hybrid: it does not cut the image itself into patches. ${by} a map of fewer places, with more numbers each: ${sizes}.`,
    `Each of the ${last[1]} × ${last[2]} places of the last map has ${number(last[0])} numbers.${p * q > 1 ? ` The map is cut into patches of ${p} × ${q} places.` : ""} The model reads the ${number(m.grid[0] * m.grid[1])} ${pieces(m)} like the words of a sentence.`,
    `Windows upon windows overlap: those of this ${piece(m)} cover ${all ? "the whole image" : `${h} × ${w} pixels`}. The norms between the convolutions add something of the whole picture. Click another; we follow it through the next steps.`,
  ];
}

/** What a confidence promises, if somebody has counted the model's right answers. */
const expected = (m, a) => (m.record ? `: of 100 such answers to images like those it learned, about ${Math.round(100 * a.top[0].probability)} should be right.` : ". How many of such answers are right, nobody has counted.");

/** The end of an encoder, in words. */
const encoded = (m) => [
  `${capital(collected(m))} ${m.features === m.width ? "is" : "becomes"} what leaves the model: ${number(m.features)} numbers, the features of the picture.`,
  "This model has no head, so it names nothing. Pictures that are alike get features that point the same way; a small table on top (a head) can learn names from a few pictures of each class.",
];

function placed(m) {
  if (m.positions === "none") return "Nothing tells where it stood: this model goes without positions.";
  if (m.transformer.positions_at === "attention") return "Where it stands comes in later, inside attention.";
  const by = m.positions === "sincos-2d" ? "Fixed waves of row and column say" : m.positions === "learned" || m.positions === "learned-2d" ? "Learned numbers that are added say" : "Positions say";
  const again = m.transformer.positions_at === "stem" ? "" : " They come in at the start of every layer.";
  const inside = m.transformer.rotary || m.transformer.bias ? " Attention is told it too." : "";
  return `${by} where it stands, since a Transformer does not know the order of its tokens.${again}${inside}`;
}

function named(front) {
  const count = front.filter((name) => name.startsWith("register")).length;
  const names = front.filter((name) => !name.startsWith("register")).map((name) => `a ${name}`);
  return [...names, ...(count ? [count === 1 ? "a register" : `${count} registers`] : [])].join(" and ");
}

function inFront({ transformer: { front, piece: one } }) {
  if (!front.length) return "";
  return front.length === 1 ? `In front stands ${named(front)}, which is no ${one}. ` : `In front stand ${named(front)}, which are no ${one === "patch" ? "patches" : "places"}. `;
}

const read = (m) => ({
  cls: `The class token will collect what ${outcome(m)} need${isEncoder(m) ? "" : "s"}.`,
  gap: `${capital(outcome(m))} will be read from the mean of all ${pieces(m)}.`,
  max: `${capital(outcome(m))} will be read from the largest of each number over all ${pieces(m)}.`,
  map: `At the end one more question asks all ${pieces(m)} for ${outcome(m)}.`,
  "cls-and-gap": `${capital(outcome(m))} will be read from the class token and the mean of all ${pieces(m)}.`,
  "cls-and-distillation": `Both will collect what ${outcome(m)} need${isEncoder(m) ? "" : "s"}.`,
}[m.transformer.pool] ?? "At the end a pool makes one list of numbers of them.");

const reader = (m) => ({
  cls: "the class token looks",
  gap: `the ${pieces(m)} look, on average`,
  "cls-and-distillation": "these two tokens look",
}[m.transformer.pool] ?? `${outcome(m)} come${isEncoder(m) ? "" : "s"} from`);

const collected = (m) => ({ cls: "what the class token collected", gap: `the mean of all ${pieces(m)}` }[m.transformer.pool] ?? "what was collected");
const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

function cutSkips({ transformer: { skips }, depth }) {
  if (!skips.length) return "";
  return skips.length === depth ? " In this model the skips are cut." : ` The skips of layer ${skips.map((i) => i + 1).join(", ")} are cut.`;
}

function elsewhere({ model: { transformer: { front } }, maps: found, layer }) {
  if (!front.length) return "";
  const rest = 1 - mean(found, layer).reduce((sum, share) => sum + share, 0);
  return ` ${percent(Math.max(rest, 0))} of its look goes to ${front.length === 1 ? `the ${front[0]}` : "the tokens in front"}.`;
}

// Its formulas ---------------------------------------------------------------------------------------------------------

const SHORT = { "class token": "class", "distillation token": "distillation" };

function embedding({ positions, transformer: t }) {
  const added = positions !== "none" && t.positions_at === "stem", whole = added && t.covered === t.front.length;
  const registers = t.front.length - t.front.filter((name) => name in SHORT).length;
  const front = t.front.slice(0, t.front.length - registers + Math.min(registers, 1)).map((name, i) => `${SHORT[name] ?? (registers > 1 ? "registers" : "register")}${added && !whole && i < t.covered ? " + p" : ""}`);
  const tokens = ["x₁E", "x₂E"].map((name, i) => `${name}${added && !whole ? ` + p${"₁₂"[i]}` : ""}`);
  const line = `[${[...front, ...tokens, "…"].join("; ")}]${whole ? " + positions" : ""}`;
  return [`z₀ = ${t.norm_before_blocks ? `norm(${line})` : line}`];
}

function attention({ positions, width, heads, transformer: t }) {
  const [q, k] = t.qk_norm ? ["norm(q)", "norm(k)"] : ["q", "k"], turn = t.rotary ? "R " : "";
  const product = t.rotary ? `${turn}${q} (${turn}${k})ᵀ` : `${q} ${k}ᵀ`;
  const sum = positions === "relative" ? `(${product} + q rᵀ)` : product, bias = t.bias ? " + b" : "";
  return [
    t.scale === null ? `softmax(${sum} / √d${bias}) v` : `softmax(${t.scale} · ${sum}${bias}) v`,
    ...(t.scale === null ? [`d = ${width} / ${heads} = ${width / heads}`] : []),
    ...(t.rotary ? ["R turns pairs of numbers by the row and column of the token"] : []),
    ...(t.bias ? ["b: a learned number for each offset of two tokens"] : []),
  ];
}

function block({ depth, transformer: t }) {
  const gain = t.layer_scale ? "γ · " : "", [skip, then] = t.skips.length === depth ? ["", ""] : [" + z", " + z′"];
  if (t.norm === "branch") return [`z′ = norm(attention(z))${skip}`, `z = norm(mlp(z′))${then}`];
  if (t.norm === "post") return [`z′ = norm(${gain}attention(z)${skip})`, `z = norm(${gain}mlp(z′)${then})`];
  return [`z′ = ${gain}attention(norm(z))${skip}`, `z = ${gain}mlp(norm(z′))${then}`];
}

// Its pictures ---------------------------------------------------------------------------------------------------------

/** x, y, width, height of the pixels whose numbers are shown. */
function square({ model: { grid, image_size: [h, w] }, patch }) {
  const y = Math.floor((Math.floor(patch / grid[1]) * h) / grid[0]), x = Math.floor(((patch % grid[1]) * w) / grid[1]);
  return [x, y, Math.min(SQUARE, Math.ceil(w / grid[1])), Math.min(SQUARE, Math.ceil(h / grid[0]))];
}

/** The pixels that a place of a hybrid sees, within the image. */
function windowOf({ grid, image_size: [h, w], transformer: { window: { first, step, size } } }, patch) {
  const place = [Math.floor(patch / grid[1]), patch % grid[1]];
  const [y, x] = place.map((i, side) => Math.max(first[side] + i * step[side], 0));
  const [toY, toX] = place.map((i, side) => Math.min(first[side] + i * step[side] + size[side], [h, w][side]));
  return [x, y, toX - x, toY - y];
}

function centres({ grid, image_size: [h, w], transformer: { window: { first, step, size } } }) {
  return [...Array(grid[0] * grid[1]).keys()].map((patch) => {
    const [y, x] = [Math.floor(patch / grid[1]), patch % grid[1]].map((i, side) => first[side] + i * step[side] + size[side] / 2);
    return [Math.min(Math.max(x, 0), w), Math.min(Math.max(y, 0), h)];
  });
}

function pixels(s) {
  const { bitmap, model } = s, [x, y, w, h] = square(s);
  const small = new OffscreenCanvas(bitmap.width, bitmap.height), paint = small.getContext("2d");
  paint.drawImage(bitmap, 0, 0);
  const { data } = paint.getImageData(x, y, w, h), table = document.createElement("table");
  table.className = "pixels";
  table.createCaption().textContent = `Rows ${y + 1} to ${y + h}, columns ${x + 1} to ${x + w}${model.channels === 3 ? `: ${["red", "green", "blue"][s.channel]}` : ""}`;
  for (let row = 0; row < h; row++) {
    const line = table.insertRow();
    for (let column = 0; column < w; column++) {
      const rgb = [...data.slice(4 * (row * w + column), 4 * (row * w + column) + 3)], value = rgb[s.channel];
      const shade = model.channels === 3 ? rgb.map((n, i) => (i === s.channel ? n : 0)) : rgb;
      const cell = line.insertCell();
      cell.textContent = value;
      cell.style.background = `rgb(${shade.join(",")})`;
      cell.style.color = luminance(shade) > 0.179 ? "#000" : "#fff";
    }
  }
  return [...(model.channels === 3 ? [channels(s)] : []), table];
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((n) => n / 255).map((n) => (n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function channels(s) {
  const row = paragraph("", "buttons");
  ["red", "green", "blue"].forEach((name, i) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.setAttribute("aria-pressed", String(i === s.channel));
    button.addEventListener("click", () => {
      s.channel = i;
      again();
    });
    row.append(button);
  });
  return row;
}

/** Some maps of each convolution. */
function maps({ stem, model }) {
  return stem.flatMap(({ shape: [count, rows, columns], size: [h, w], maps: some }, i) => {
    const after = model.transformer.stem === "convolutions" ? `After convolution ${i + 1}` : `Part ${i + 1} of the ResNet`;
    const row = document.createElement("div");
    row.className = "maps";
    row.setAttribute("role", "img");
    row.setAttribute("aria-label", `${after}: ${some.length} of ${count} maps`);
    row.append(...some.map((map) => {
      const one = document.createElement("canvas"), pixels = new ImageData(w, h);
      [one.width, one.height] = [w, h];
      stretched(map).forEach((share, k) => pixels.data.set([...colour(share), 255], 4 * k));
      one.getContext("2d").putImageData(pixels, 0, 0);
      return one;
    }));
    return [paragraph(`${after}: ${some.length} of ${number(count)} maps of ${rows} × ${columns}; light is a large number, dark a small one.`, "hint"), row];
  });
}

function tokens({ tokens: t, model, patch }) {
  const isLast = (patch + 1) % model.grid[1] === 0, beside = Math.max(patch + (isLast ? -1 : 1), 0);
  const rows = [[`this ${piece(model)}`, model.tokens_in_front + patch], ...(model.tokens_in_front ? [[model.transformer.front[0], 0]] : []), [`its neighbour at ${spot(beside, model.grid)}`, model.tokens_in_front + beside]];
  return rows.flatMap(([name, row]) => {
    const words = `${name}: ${few(t.tokens[row])}`;
    return [paragraph(words, "hint"), mosaic(t.tokens[row], words, 0)];
  });
}

function mean(found, layer) {
  const heads = found.maps[layer - 1];
  return heads[0].map((_, i) => heads.reduce((sum, each) => sum + each[i], 0) / heads.length);
}

function layers(s) {
  const label = document.createElement("label"), name = document.createElement("span"), slider = document.createElement("input");
  label.className = "slider";
  Object.assign(slider, { type: "range", min: 1, max: s.model.depth, value: s.layer });
  name.textContent = `layer ${s.layer}`;
  slider.addEventListener("input", () => {
    s.layer = Number(slider.value);
    name.textContent = `layer ${s.layer}`;
    paint();
  });
  label.append(name, slider);
  return [label, paragraph(`Click another ${piece(s.model)}: does it look elsewhere?`, "hint")];
}

/** Attention over the layers, then through all of them, as a film. */
function playing(s) {
  const frames = [...Array(s.model.depth).keys()].map((i) => mean(s.whole, i + 1)).concat([s.whole.rollout]).map(stretched);
  const names = frames.map((_, i) => (i < s.model.depth ? `layer ${i + 1}` : "all layers"));
  s.frame = -1;
  const { controls, stop } = film(names, (at, turned) => {
    const map = frames[at].map((share, i) => share + turned * ((frames[at + 1] ?? frames[at])[i] - share));
    draw(canvas(), s.bitmap, { ...layout(s.model), map });
    if (s.frame !== at) {
      s.frame = at;
      caption();
    }
  });
  s.stop = stop;
  return controls;
}

function turn(to) {
  if (!state.bitmap) return; // no picture yet
  state.stop?.();
  state.stop = null;
  state.at = Math.min(Math.max(to, 1), STEPS.length);
  history.replaceState(null, "", `#${state.at}`);
  const step = STEPS[state.at - 1];
  $("count").textContent = `Step ${state.at} of ${STEPS.length}`;
  $("heading").textContent = step.heading(state.model);
  $("back").disabled = state.at === 1;
  $("next").disabled = state.at === STEPS.length;
  [...$("steps").querySelectorAll("button")].forEach((button, i) => (i + 1 === state.at ? button.setAttribute("aria-current", "step") : button.removeAttribute("aria-current")));
  const stage = $("stage");
  stage.classList.toggle("still", !step.picks);
  if (step.picks) stage.tabIndex = 0;
  else stage.removeAttribute("tabindex");
  stage.setAttribute("role", step.picks ? "application" : "presentation");
  if (step.picks) stage.setAttribute("aria-label", `Choose a ${piece(state.model)} with the arrow keys`);
  else stage.removeAttribute("aria-label");
  again();
}

/** Words, formula, picture and more of this step; each line of the formula is an element of its own. */
function again() {
  const step = STEPS[state.at - 1], lines = step.formula?.(state).map((line) => Object.assign(document.createElement("span"), { textContent: line }));
  const formula = paragraph("", "formula");
  formula.append(...(lines ?? []));
  $("words").replaceChildren(...step.words(state).map((text) => paragraph(text)), ...(lines ? [formula] : []), ...(step.letters ? [paragraph(step.letters(state), "hint")] : []));
  $("more").replaceChildren(...(step.more?.(state) ?? []));
  paint();
}

function paint() {
  STEPS[state.at - 1].paint?.(state);
  caption();
}

function caption() {
  const step = STEPS[state.at - 1], text = typeof step.caption === "string" ? step.caption : step.caption(state);
  $("caption").textContent = text;
  canvas().setAttribute("aria-label", text);
}

async function pick(patch) {
  const step = STEPS[state.at - 1], mine = ++state.turn;
  if (!step.picks) return;
  state.patch = patch;
  const maps = await ask("/api/attention", { image: state.image, patch });
  if (mine !== state.turn) return;
  state.maps = maps;
  again();
}

async function take(image) {
  const { grid } = state.model;
  state.patch = Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  state.layer = Math.max(Math.ceil(state.model.depth / 2), 1);
  const { images } = await ask(asked(state.model), { image });
  const [bitmap, inside, maps, whole, stem] = await Promise.all([
    seen(image),
    ask("/api/tokens", { image }),
    ask("/api/attention", { image, patch: state.patch }),
    ask("/api/attention", { image }),
    isHybrid(state.model) ? ask("/api/stem", { image }) : { steps: [] },
  ]);
  Object.assign(state, { image, bitmap, answer: images[0], tokens: inside, maps, whole, stem: stem.steps });
  if (!who.isHere || state.examples.some((each) => each.image === image)) $("to-worksheet").href = `./worksheet.html?image=${encodeURIComponent(image)}`;
  for (const button of $("examples").children) button.setAttribute("aria-pressed", String(button.dataset.image === image));
  $("step").hidden = false;
  $("invite").hidden = $("message").hidden = true;
  turn(state.at);
}

async function takeFile(file) {
  const { images } = await send(asked(state.model), file, { photo: true });
  await take(images[0].image);
}

function complain(error) {
  if (!(error instanceof Refused)) console.error(error);
  $("message").textContent = error instanceof Refused ? error.message : "something went wrong on this page; load it again";
  $("message").hidden = false;
  $("step").hidden = state.bitmap === null;
}

/** The drawing of the whole model, below the steps. */
async function whole() {
  const svg = await drawing();
  $("whole-says").textContent = `${svg.getAttribute("aria-label")}. Numbers beside a part are its parameters, and the bar is its share of all.`;
  $("architecture").replaceChildren(svg);
  $("glossary").replaceChildren(...explained((await get("/api/worksheet")).words));
  $("whole").hidden = false;
}

async function begin() {
  try {
    const at = Number(location.hash.slice(1)) || 1;
    const [model, { examples }] = await Promise.all([get("/api/model"), get("/api/examples")]);
    Object.assign(state, { model, examples, at });
    if (model.exported?.closed) throw new Refused(`${model.exported.closed}; the lesson looks inside, too`);
    whole().catch(complain);
    if (!model.depth) throw new Refused("this model is a network of convolutions; the lesson is about Vision Transformers: serve one");
    if (!model.attention) throw new Refused("this model's pool does not say which tokens it reads, and the lesson shows them: serve another model");
    if (isEncoder(model)) $("title").textContent = "How a Vision Transformer sees";
    if (isHybrid(model)) {
      $("title").textContent = `How a hybrid ${isEncoder(model) ? "sees" : "answers"}: convolutions, then a Transformer`;
      document.title = "A lesson on a hybrid · vitreous";
    }
    STEPS.forEach((step, i) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = `${i + 1} ${step.name(model)}`;
      button.addEventListener("click", () => turn(i + 1));
      item.append(button);
      $("steps").append(item);
    });
    for (const { image, label, picture } of examples) {
      const button = document.createElement("button"), small = document.createElement("img");
      Object.assign(button, { type: "button" }).dataset.image = image;
      Object.assign(small, { src: picture, alt: "", className: picture.startsWith("data:image/png") ? "pixels" : "" });
      button.append(small, ...breakable(label));
      button.addEventListener("click", () => take(image).catch(complain));
      $("examples").append(button);
    }
    $("file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = ""; // the same file may be chosen again
      if (file) takeFile(file).catch((error) => {
        state.bitmap = null; // a refused file leaves no older picture behind
        complain(error);
      });
    });
    $("back").addEventListener("click", () => turn(state.at - 1));
    $("next").addEventListener("click", () => turn(state.at + 1));
    pickable($("stage"), layout(model), (patch) => pick(patch).catch(complain));
    addEventListener("hashchange", () => turn(Number(location.hash.slice(1)) || 1));
    addEventListener("keydown", (event) => {
      if (event.target.closest("#stage[tabindex], input") || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "ArrowRight") turn(state.at + 1);
      if (event.key === "ArrowLeft") turn(state.at - 1);
    });
    $("give").hidden = false;
    $("invite").hidden = Boolean(examples.length);
    $("examples").hidden = $("step").hidden = !examples.length;
    if (examples.length) await take(examples[0].image);
  } catch (error) {
    complain(error);
  }
}

/** What is on its way, in words; empty when it is here. */
addEventListener("loading", ({ detail }) => {
  $("loading").textContent = detail;
  $("loading").hidden = !detail;
});

begin();
