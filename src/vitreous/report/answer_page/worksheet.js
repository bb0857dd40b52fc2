// A sheet of questions about this model, and its answers on pages of their own.

import { ask, drawing, get, Refused, seen } from "./api.js";
import { draw, explained, spot, sure } from "./drawing.js";
import { asked, isEncoder, layout } from "./encoder.js";

const $ = (id) => document.getElementById(id);
const MARKED = 4; // patches to colour

function item(list, text, ...more) {
  const row = document.createElement("li"), words = document.createElement("p");
  words.textContent = text;
  row.append(words, ...more);
  list.append(row);
}

function blank() {
  const lines = document.createElement("div");
  lines.className = "blank";
  return lines;
}

function picture(bitmap, says, what) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 480, height: 480 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", says);
  draw(canvas, bitmap, what);
  return canvas;
}

/** One question that needs eyes and a pencil: where would you look, and where did the model? */
async function look(model, image) {
  const { images: [answer] } = await ask(asked(model), { image });
  const [bitmap, { rollout }] = await Promise.all([seen(image), ask("/api/attention", { image })]);
  const { grid } = model, few = Math.min(MARKED, rollout.length);
  const best = [...rollout.keys()].sort((a, b) => rollout[b] - rollout[a]).slice(0, few);
  const where = best.map((i) => spot(i, grid)).join("; ");
  item($("questions"), `Mark the ${few} squares where you would look to tell what this is (rows count from the top, columns from the left). What is it?`, picture(bitmap, "The image, cut by a grid", { ...layout(model), lines: true }));
  const says = isEncoder(model) ? "The model names nothing. Most came into its features from" : `The model's answer is ${sure(answer)}. Most came into it from`;
  item($("results"), `${says} ${where}. Yours may be better.`, picture(bitmap, "The image, with light where most came from", { ...layout(model), lines: true, map: rollout }));
}

async function begin() {
  try {
    const [model, { questions, words, name }, { examples }] = await Promise.all([get("/api/model"), get("/api/worksheet"), get("/api/examples")]);
    $("title").textContent = `Inside ${name}`;
    document.title = `A worksheet on ${name} · vitreous`;
    const image = new URLSearchParams(location.search).get("image") ?? examples[0]?.image;
    addEventListener("loading", ({ detail }) => {
      $("loading").textContent = detail;
      $("loading").hidden = !detail;
    });
    for (const { question, answer } of questions) {
      item($("questions"), question, blank());
      item($("results"), answer);
    }
    const asked = questions.map(({ question }) => question.toLowerCase()).join(" ");
    const used = Object.entries(words).filter(([word]) => word.toLowerCase().split(", ").some((each) => asked.includes(each)));
    $("words").replaceChildren(...explained(Object.fromEntries(used)));
    if (image && model.attention) await look(model, image);
    $("architecture").append(await drawing());
    $("print").addEventListener("click", () => print());
    $("with-answers").addEventListener("input", (event) => ($("answers").hidden = !event.target.checked));
    $("tools").hidden = false;
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    $("message").textContent = error instanceof Refused ? error.message : "something went wrong on this page; load it again";
    $("message").hidden = false;
  }
}

begin();
