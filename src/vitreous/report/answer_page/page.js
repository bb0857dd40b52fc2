// The page: a picture comes, the answer and where it came from are shown, and people look closer.

import { ask, get, photo, Refused, seen, send, who } from "./api.js";
import { Breaking } from "./breaking.js";
import { Camera } from "./camera.js";
import { breakable, draw, few, list, mosaic, percent, phrase, pickable, spot, told } from "./drawing.js";
import { asked, isEncoder, layout, outcome, piece, pieces } from "./encoder.js";

const $ = (id) => document.getElementById(id);
const EMPTY = { image: null, photo: null, seen: null, answer: null, maps: null, patch: null };
const TALLEST = 36; // rem of a portrait
const SHOWS_PIXELS = 64; // pixels wide, at most
const state = { model: null, turn: 0, ...EMPTY };
let breaking = null, camera = null;

function complain(error) {
  if (!(error instanceof Refused)) console.error(error);
  $("message").textContent = error instanceof Refused ? error.message : "something went wrong on this page; load it again";
  $("message").hidden = false;
}

async function begin() {
  try {
    const [model, { examples, learned }] = await Promise.all([get("/api/model"), get("/api/examples")]);
    state.model = model;
    introduce(model);
    examples.forEach(addExample);
    $("examples").hidden = !examples.length;
    $("learned").hidden = !examples.length || !learned;
    camera = new Camera((file) => show({ file }), glance, complain);
    listen();
    if (model.breaks.length) breaking = new Breaking(model, complain);
    const asked = new URLSearchParams(location.search).get("image"), first = examples.find((each) => each.image === asked) ?? examples[0];
    if (first && state.image === null && !state.turn) await show({ image: first.image });
    if (location.hash === "#break") $("break").scrollIntoView(); // it was not there when the page was opened
  } catch (error) {
    complain(error);
  }
}

function introduce(model) {
  $("privacy").textContent = who.privacy;
  $("foot").textContent = who.foot;
  $("to-api").hidden = !who.hasApi;
  $("to-lesson").hidden = $("to-worksheet").hidden = Boolean(model.exported?.closed);
  $("title").textContent = `What does ${model.name} see?`;
  document.title = `${model.name} · vitreous`;
  const size = `${model.image_size[0]} × ${model.image_size[1]} pixels`;
  const inside = model.depth ? `${model.depth} layers of ${model.heads} heads` : "a network of convolutions";
  const whole = model.parameters ? `${inside}, ${model.parameters.toLocaleString("en")} learned numbers.` : "";
  const rest = [whole, model.exported ? fromFile(model) : ""].filter(Boolean).join(" ");
  $("about").textContent = `${gives(model)} ${size}, ${rest}${model.record ? ` ${right(model.record)}` : ""}`;
  if (isEncoder(model)) unnamed();
  if (piece(model) === "place") placed();
  $("terms").textContent = `Terms of what the weights have learned from: ${model.terms}`;
  $("terms").hidden = !model.terms;
  if (model.exported?.agrees === false) {
    $("disagrees").textContent = `Beware: this export does not answer as its model does (${model.exported.faults.join("; ")}).`;
    $("disagrees").hidden = false;
  }
  $("record").textContent = model.record ? `The model is ${model.record.about_right}.` : "";
  $("record").hidden = !model.record;
  $("layer").max = $("layer").value = model.depth;
  $("head").max = model.heads;
  $("layer-says").textContent = model.depth;
  $("controls").hidden = !model.attention;
  $("no-attention").hidden = model.attention;
  $("no-attention").textContent = model.exported?.closed ? sentence(model.exported.closed) : model.depth ? "This model's pool does not say which tokens it reads, so where the answer came from cannot be shown." : "A network of convolutions has no attention to show.";
  if (!model.attention) $("stage").tabIndex = -1;
}

/** What the model gives for an image. */
function gives(model) {
  const first = model.labels.slice(0, 3).join(", ");
  if (!isEncoder(model)) return `It tells ${model.classes.toLocaleString("en")} classes apart${first ? ` (${first} …)` : ""}.`;
  return `An encoder without a head: it names nothing, and makes ${model.features.toLocaleString("en")} numbers of a picture, its features.`;
}

/** The page of a hybrid speaks of places. */
function placed() {
  for (const word of document.querySelectorAll(".piece")) word.textContent = "place";
  for (const word of document.querySelectorAll(".pieces")) word.textContent = "places";
  const name = Object.assign(document.createElement("b"), { textContent: "Places" });
  $("pieces-are").replaceChildren(name, " are what its convolutions make of the image: each stands for a square and what lies around it.");
  $("shuffled-after").hidden = false;
}

/** The page of an encoder speaks of features. */
function unnamed() {
  $("result-title").textContent = "Where it looks";
  $("light").textContent = "Light shows where the features came from";
  $("whole").textContent = "back to the features";
  $("similar-title").textContent = "The most similar images";
  $("break-says").textContent = "Take something away and see whether the features stand.";
  $("live-wish").hidden = $("live-says").hidden = true;
}

const fromFile = ({ parameters, runtime, exported: { precision } }) => `${parameters ? "An" : "an"} exported file (${precision}, ${runtime}).`;

/** How often the model is right; the interval stands below an answer. */
const right = ({ about_right }) => `The model is ${about_right.replace(/ \(.*/, "")}.`;

const sentence = (line) => `${line[0].toUpperCase()}${line.slice(1)}.`;

function addExample({ image, label, picture }) {
  const button = document.createElement("button"), small = document.createElement("img");
  button.type = "button";
  button.dataset.image = image;
  button.setAttribute("aria-pressed", "false");
  small.src = picture;
  small.alt = "";
  small.addEventListener("load", () => small.classList.toggle("pixels", small.naturalWidth <= SHOWS_PIXELS));
  button.append(small, ...breakable(label));
  button.addEventListener("click", () => show({ image }));
  $("examples").append(button);
}

/** An example or a file: its answer first, then where it came from. A refused file leaves no older answer behind. */
async function show({ image = null, file = null }) {
  const turn = ++state.turn;
  let next = EMPTY;
  camera.close();
  $("message").hidden = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    next = await answer(image, file);
    if (turn !== state.turn) return; // another picture came meanwhile
    begun(next);
    await look(null); // first: it is what people wait for
    if (turn !== state.turn) return;
    await Promise.all([similar(), breaking && cut(state.photo, state.answer.box).then((part) => turn === state.turn && breaking.see(state.image, part))]);
  } catch (error) {
    if (turn !== state.turn) return;
    if (next === EMPTY) begun(EMPTY);
    complain(error);
  } finally {
    if (turn === state.turn) document.body.removeAttribute("aria-busy");
  }
}

/** The answer to a picture, the picture itself, and the picture as the model gets it. */
async function answer(image, file) {
  if (file) fits(file);
  if (!file && !image) throw new Refused("that was no file; save the picture first, or copy and paste it");
  const { images: [row] } = await (file ? send(asked(state.model), file, { photo: true }) : ask(asked(state.model), { image }));
  const [whole, small] = await Promise.all([photo(row.image), seen(row.image)]);
  return { ...EMPTY, image: row.image, answer: row, photo: whole, seen: small };
}

/** The answer to one moment of the camera, in words. */
async function glance(file) {
  if (isEncoder(state.model)) return "";
  const { images: [row] } = await send("/api/predict", file);
  return row.said.length ? `${phrase(row)}, ${percent(row.top[0].probability)}${row.is_unsure ? ", unsure" : ""}` : phrase(row);
}

/** Another picture, or none. */
function begun(next) {
  Object.assign(state, next);
  for (const button of $("examples").children) button.setAttribute("aria-pressed", String(button.dataset.image === state.image));
  $("result").hidden = !state.answer;
  if (state.answer) return showAnswer();
  $("similar").hidden = true;
  breaking?.forget();
}

/** The part of a photo that the model sees, sharp. */
function cut(whole, [left, top, right, bottom]) {
  const { width, height } = whole, pixels = (share, side) => Math.max(Math.round(share * side), 1);
  return createImageBitmap(whole, Math.round(left * width), Math.round(top * height), pixels(right - left, width), pixels(bottom - top, height));
}

function fits(file) {
  const most = state.model.limits.upload;
  if (file.size > most * 0.99) throw new Refused(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${Math.floor(most / 2 ** 20)} are taken here: shrink it`);
}

function showAnswer() {
  const { answer } = state;
  if (isEncoder(state.model)) showFeatures(answer.features);
  else showNames(answer);
  $("image-note").textContent = answer.note ?? "";
  $("image-note").hidden = !answer.note;
  $("whole").hidden = true;
  repaint();
}

function showFeatures(features) {
  const words = document.createElement("p"), how = document.createElement("p"), count = features.length.toLocaleString("en");
  words.textContent = `Its ${count} features: ${few(features)}`;
  how.textContent = "Each square is one number, row by row; light is much. Pictures that are alike get features that point the same way. To name things, fit a head on them.";
  how.className = "hint";
  $("features").replaceChildren(words, mosaic(features, `${count} features: ${few(features)}`), how);
  $("features").hidden = false;
}

function showNames(answer) {
  const said = document.createElement("span"), why = document.createElement("small");
  said.textContent = `${phrase(answer)}${answer.said.length && answer.is_unsure ? " (unsure)" : ""}`;
  why.textContent = answer.is_unsure ? sentence(state.model.record.about_unsure) : answer.said.length ? "" : answer.is_unlike ? "It resembles nothing that the model learned." : "None of the classes reaches one half.";
  $("said").replaceChildren(said, why);
  list($("top"), answer);
  $("top").hidden = answer.is_unlike;
}

/** Where the answer, or a patch, looks. */
async function look(patch) {
  if (!state.model.attention) return;
  const turn = state.turn;
  const maps = await ask("/api/attention", { image: state.image, patch });
  if (turn !== state.turn) return;
  state.maps = maps;
  state.patch = patch;
  $("whole").hidden = patch === null;
  repaint();
}

function chosen() {
  const { maps } = state, kind = $("controls").elements.show.value;
  if (kind === "seen") return { map: null, words: `What the model gets: ${state.seen.height} × ${state.seen.width} pixels.` };
  if (!maps || kind === "plain") return { map: null, words: "The photo as it is." };
  const query = state.patch === null ? outcome(state.model) : `the ${piece(state.model)} at ${spot(state.patch, state.model.grid)}`;
  if (kind === "rollout") return { map: maps.rollout, words: `What came into ${query} through all layers` };
  const layer = maps.maps[$("layer").value - 1], head = Number($("head").value);
  const map = head ? layer[head - 1] : layer[0].map((_, i) => layer.reduce((sum, each) => sum + each[i], 0) / layer.length);
  return { map, words: `${state.patch === null && isEncoder(state.model) ? "Where the features come from" : `Where ${query} looks`} in layer ${$("layer").value}, ${head ? `head ${head}` : "mean of all heads"}` };
}

const isSeen = () => $("controls").elements.show.value === "seen";
const area = () => (isSeen() || !state.answer ? [0, 0, 1, 1] : state.answer.box);

/** The note for a photo of which the model sees only the middle. */
function margin() {
  const [left, top, right, bottom] = area();
  return Math.max(left, top, 1 - right, 1 - bottom) > 0.005 ? " The grey margin is cut off before the model looks." : "";
}

function repaint() {
  if (!state.photo) return;
  const { map, words } = chosen(), { grid } = state.model, image = isSeen() ? state.seen : state.photo;
  draw($("view"), image, { map, ...layout(state.model), patch: state.patch, area: area(), pixels: isSeen() });
  $("stage").style.maxWidth = `min(28rem, ${((TALLEST * image.width) / image.height).toFixed(2)}rem)`;
  $("scale").hidden = !map;
  $("stage-says").textContent = map ? `${words}; ${told(map, grid, pieces(state.model))}.${margin()}` : words;
  $("layer-says").textContent = $("layer").value;
  $("head-says").textContent = Number($("head").value) || "all";
}

async function similar() {
  $("similar").hidden = !state.model.similar;
  if (!state.model.similar) return;
  const turn = state.turn;
  if (!state.model.similar.is_ready) {
    state.model.similar = (await get("/api/model")).similar;
    const { is_ready, read, images } = state.model.similar;
    if (turn !== state.turn) return;
    if (!is_ready) {
      $("similar-says").textContent = `${isEncoder(state.model) ? "The images" : "The training images"} are being read: ${read.toLocaleString("en")} of ${images.toLocaleString("en")}.`;
      setTimeout(() => turn === state.turn && similar().catch(complain), 2000);
      return;
    }
  }
  const found = await ask("/api/similar", { image: state.image });
  if (turn !== state.turn) return;
  $("neighbours").replaceChildren(...found.similar.map(neighbour));
  $("similar-says").textContent = `Of ${found.of.toLocaleString("en")} images. Similarity is the cosine between ${isEncoder(state.model) ? "the features" : "what the head reads"} of both: 1 for the same image. It is not a chance.`;
}

function neighbour({ label, likeness, picture, name }) {
  const figure = document.createElement("figure"), image = document.createElement("img"), below = document.createElement("figcaption"), how = document.createElement("small");
  figure.className = "shot neighbour";
  image.src = picture;
  image.alt = label || name;
  if (picture.startsWith("data:image/png")) image.className = "small";
  how.textContent = `similarity ${likeness.toFixed(3)}`;
  below.append(label || name, how);
  figure.append(image, below);
  return figure;
}

function saved(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${(state.answer.name || "image").replace(/\.\w+$/, "").replace(/[^\w-]+/g, "-")}-${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function listen() {
  for (const id of ["file", "camera"])
    $(id).addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = ""; // the same file may be chosen again
      if (file) show({ file });
    });
  const drop = $("drop");
  for (const [type, is] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]])
    addEventListener(type, (event) => {
      event.preventDefault();
      drop.classList.toggle("over-it", is);
    });
  addEventListener("drop", (event) => {
    show({ file: event.dataTransfer.files[0] });
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) show({ file });
  });
  $("controls").addEventListener("input", (event) => {
    if (["layer", "head"].includes(event.target.id)) $("controls").elements.show.value = "head";
    repaint();
  });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  if (state.model.grid) pickable($("stage"), layout(state.model), (patch) => state.image && look(patch === state.patch ? null : patch).catch(complain), (patch) => state.image && look(patch).catch(complain), area);
  $("whole").addEventListener("click", () => look(null).catch(complain));
  $("save").addEventListener("click", () => $("view").toBlob((blob) => saved(blob, "attention.png")));
  $("numbers").addEventListener("click", () =>
    saved(new Blob([JSON.stringify({ answer: state.answer, attention: state.maps }, null, 1)], { type: "application/json" }), "attention.json"));
}

$("unopened").remove();
addEventListener("failed", ({ detail }) => complain(detail));

/** What is on its way, in words; empty when it is here. */
addEventListener("loading", ({ detail }) => {
  $("loading").textContent = detail;
  $("loading").hidden = !detail;
});

begin();
