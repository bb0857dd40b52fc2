// The lesson: one picture on its way through the model, in six steps.

import { ask, get, Refused, seen, send } from "./api.js";
import { colour, draw, list, percent, pickable, stretched, told } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const NAMES = ["image", "patches", "tokens", "attention", "layers", "answer"];
const state = { model: null, image: null, bitmap: null, answer: null, tokens: null, maps: null, patch: 0, layer: 1, at: 1, turn: 0 };

const paragraph = (text, kind = "") => Object.assign(document.createElement("p"), { textContent: text, className: kind });
const canvas = () => $("view");

const STEPS = [
  {
    heading: "An image is a table of numbers",
    words: ({ model: m }) => [
      `The model takes every picture at ${m.image_size[0]} × ${m.image_size[1]} pixels. Each pixel is ${m.channels === 1 ? "one number" : `${m.channels} numbers`} from 0 to 255, so it is given ${(m.image_size[0] * m.image_size[1] * m.channels).toLocaleString("en")} numbers, and nothing else: no name, no place, no time.`,
      "A person sees a thing at once. The model must find out which of these numbers belong together.",
    ],
    paint: (s) => draw(canvas(), s.bitmap, {}),
    caption: "What the model gets.",
  },
  {
    heading: "The image is cut into patches",
    words: ({ model: m }) => [
      `${m.grid[0]} rows of ${m.grid[1]} patches: ${m.grid[0] * m.grid[1]} pieces. From here on the model reads them like the words of a sentence.`,
      "That is the idea of the paper: an image is worth 16 × 16 words.",
      "Click a patch; we follow it through the next steps.",
    ],
    paint: (s) => draw(canvas(), s.bitmap, { grid: s.model.grid, lines: true, patch: s.patch }),
    caption: (s) => `Patch ${s.patch + 1} is chosen.`,
    picks: true,
  },
  {
    heading: "Every patch becomes a token",
    words: ({ model: m }) => [
      `One learned table turns each patch into ${m.width} numbers. Another adds where it stood, since a Transformer does not know the order of its tokens${m.positions === "none" ? " (this model goes without)" : ""}.`,
      m.tokens_in_front ? `In front ${m.tokens_in_front === 1 ? "stands a class token, which is no patch: it" : `stand ${m.tokens_in_front} tokens that are no patches: they`} will collect what the answer needs.` : "The answer will be read from the mean of all of them.",
    ],
    formula: "z₀ = [class; x₁E; x₂E; …] + positions",
    paint: (s) => draw(canvas(), s.bitmap, { grid: s.model.grid, lines: true, patch: s.patch }),
    more: tokens,
    caption: (s) => `Patch ${s.patch + 1}, and beside it its numbers.`,
    picks: true,
  },
  {
    heading: "Tokens look at each other",
    words: ({ model: m }) => [
      "Each token asks a question (query), and each offers a key and a value. Where a question fits a key, the value flows. The shares of one token sum to 1: that is attention.",
      `In every layer ${m.heads} heads ask different questions at once.`,
    ],
    formula: "softmax(q kᵀ / √d) v",
    paint: (s) => draw(canvas(), s.bitmap, { grid: s.model.grid, map: mean(s), patch: s.patch }),
    more: layers,
    caption: (s) => `Where patch ${s.patch + 1} looks in layer ${s.layer}, mean of its heads; ${told(mean(s), s.model.grid)}.`,
    picks: true,
  },
  {
    heading: "Layer upon layer",
    words: ({ model: m }) => [
      `The ${m.depth} layers are alike: look around, think for yourself, and keep what you had (the skip connection).`,
      "Following the shares through all layers (rollout) tells which patches are in the answer at the end.",
    ],
    formula: "z′ = attention(norm(z)) + z      z = mlp(norm(z′)) + z′",
    paint: (s) => draw(canvas(), s.bitmap, { grid: s.model.grid, map: s.whole.rollout }),
    caption: (s) => `What came into the answer; ${told(s.whole.rollout, s.model.grid)}.`,
  },
  {
    heading: "The answer",
    words: ({ model: m, answer: a }) => [
      `One more table turns what was collected into a score for each of the ${m.classes.toLocaleString("en")} classes, and the scores into shares that sum to 1.`,
      a.said.length ? `It says ${a.said.join(", ")}, at ${percent(a.top[0].probability)}: of all the times it is that sure, it should be right in so many.` : "It says: none of these. The image resembles no class that it learned.",
    ],
    paint: (s) => draw(canvas(), s.bitmap, { grid: s.model.grid, map: s.whole.rollout }),
    more: (s) => {
      const top = document.createElement("ol");
      top.className = "top";
      list(top, s.answer.top);
      const link = Object.assign(document.createElement("a"), { href: "/", textContent: "Now try to break it." });
      return [top, link];
    },
    caption: "The same picture, with light on what counted.",
  },
];

function tokens({ tokens: t, model, patch }) {
  const rows = [["this patch", model.tokens_in_front + patch], ...(model.tokens_in_front ? [["class token", 0]] : []), ["its neighbour", model.tokens_in_front + ((patch + 1) % (model.grid[0] * model.grid[1]))]];
  const list = document.createElement("div");
  for (const [name, row] of rows) {
    const bars = document.createElement("canvas"), numbers = t.tokens[row];
    bars.width = numbers.length * 6;
    bars.height = 22;
    bars.style.width = "100%";
    bars.style.height = "1.4rem";
    bars.setAttribute("role", "img");
    bars.setAttribute("aria-label", `${name}: ${numbers.slice(0, 5).map((n) => n.toFixed(2)).join(", ")} …`);
    const paint = bars.getContext("2d"), shares = stretched(numbers);
    shares.forEach((share, i) => {
      paint.fillStyle = `rgb(${colour(share).join(",")})`;
      paint.fillRect(6 * i, 0, 6, 22);
    });
    list.append(paragraph(`${name}: ${numbers.slice(0, 4).map((n) => n.toFixed(2)).join(", ")} …`, "hint"), bars);
  }
  return [list];
}

function mean({ maps, layer }) {
  const heads = maps.maps[layer - 1];
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
  return [label, paragraph("Click another patch: each looks elsewhere.", "hint")];
}

function turn(to) {
  if (!state.bitmap) return; // no picture yet
  state.at = Math.min(Math.max(to, 1), STEPS.length);
  history.replaceState(null, "", `#${state.at}`);
  const step = STEPS[state.at - 1];
  $("count").textContent = `Step ${state.at} of ${STEPS.length}`;
  $("heading").textContent = step.heading;
  $("words").replaceChildren(...step.words(state).map((text) => paragraph(text)), ...(step.formula ? [paragraph(step.formula, "formula")] : []));
  $("back").disabled = state.at === 1;
  $("next").disabled = state.at === STEPS.length;
  [...$("steps").querySelectorAll("button")].forEach((button, i) => (i + 1 === state.at ? button.setAttribute("aria-current", "step") : button.removeAttribute("aria-current")));
  const stage = $("stage");
  stage.classList.toggle("still", !step.picks);
  if (step.picks) stage.tabIndex = 0;
  else stage.removeAttribute("tabindex");
  stage.setAttribute("role", step.picks ? "application" : "presentation");
  if (step.picks) stage.setAttribute("aria-label", "Choose a patch with the arrow keys");
  else stage.removeAttribute("aria-label");
  $("more").replaceChildren(...(step.more?.(state) ?? []));
  paint();
}

function paint() {
  const step = STEPS[state.at - 1], caption = typeof step.caption === "string" ? step.caption : step.caption(state);
  step.paint(state);
  $("caption").textContent = caption;
  canvas().setAttribute("aria-label", caption);
}

async function pick(patch) {
  const step = STEPS[state.at - 1], mine = ++state.turn;
  if (!step.picks) return;
  state.patch = patch;
  const maps = await ask("/api/attention", { image: state.image, patch });
  if (mine !== state.turn) return;
  state.maps = maps;
  if (step.more === tokens) $("more").replaceChildren(...tokens(state));
  paint();
}

async function take(image) {
  const { grid } = state.model;
  state.patch = Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  state.layer = Math.max(Math.ceil(state.model.depth / 2), 1);
  const [{ images }, bitmap, inside, maps, whole] = await Promise.all([
    ask("/api/predict", { image }),
    seen(image),
    ask("/api/tokens", { image }),
    ask("/api/attention", { image, patch: state.patch }),
    ask("/api/attention", { image }),
  ]);
  Object.assign(state, { image, bitmap, answer: images[0], tokens: inside, maps, whole });
  for (const button of $("examples").children) button.setAttribute("aria-pressed", String(button.dataset.image === image));
  $("step").hidden = false;
  $("invite").hidden = $("message").hidden = true;
  turn(state.at);
}

async function takeFile(file) {
  const { images } = await send("/api/predict", file);
  await take(images[0].image);
}

function complain(error) {
  if (!(error instanceof Refused)) console.error(error);
  $("message").textContent = error instanceof Refused ? error.message : "something went wrong on this page; load it again";
  $("message").hidden = false;
  $("step").hidden = state.bitmap === null;
}

async function begin() {
  try {
    const asked = Number(location.hash.slice(1)) || 1;
    const [model, { examples }] = await Promise.all([get("/api/model"), get("/api/examples")]);
    Object.assign(state, { model, at: asked });
    if (model.exported) throw new Refused(`${model.exported.closed}; the lesson looks inside, too`);
    if (!model.depth) throw new Refused("this model is a network of convolutions; the lesson is about Vision Transformers: serve one");
    if (!model.attention) throw new Refused("this model's pool does not say which tokens it reads, and the lesson shows them: serve another model");
    NAMES.forEach((name, i) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = `${i + 1} ${name}`;
      button.addEventListener("click", () => turn(i + 1));
      item.append(button);
      $("steps").append(item);
    });
    for (const { image, label, picture } of examples) {
      const button = document.createElement("button"), small = document.createElement("img");
      Object.assign(button, { type: "button" }).dataset.image = image;
      Object.assign(small, { src: picture, alt: "", className: picture.startsWith("data:image/png") ? "pixels" : "" });
      button.append(small, label);
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
    pickable($("stage"), () => model.grid, (patch) => pick(patch).catch(complain));
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

begin();
