// "Try to break it": what is taken away, and the answer before and after.

import { ask } from "./api.js";
import { alike, draw, first, list, pickable, spot, sure } from "./drawing.js";
import { isEncoder, layout, piece } from "./encoder.js";

const $ = (id) => document.getElementById(id);

export class Breaking {
  constructor(model, complain) {
    Object.assign(this, { model, complain, image: null, bitmap: null, found: null, hidden: new Set(), seed: 1, turn: 0, at: null });
    for (const part of document.querySelectorAll("#breaks [data-breaks]")) part.hidden = !model.breaks.includes(part.dataset.breaks);
    $("block").max = model.depth;
    $("block").value = Math.ceil(model.depth / 2);
    $("silent").max = model.heads;
    $("positions").disabled = model.positions === "none";
    $("breaks").addEventListener("input", (event) => {
      if (event.target.id === "shuffle" && event.target.checked) this.seed += 1; // another order each time
      this.run();
    });
    $("breaks").addEventListener("submit", (event) => event.preventDefault());
    $("uncover").addEventListener("click", () => this.cover(new Set()));
    $("hide-most").addEventListener("click", () => this.cover(this.strongest()));
    $("hide-any").addEventListener("click", () => this.cover(this.chance()));
    pickable($("before-stage"), layout(model), (patch) => this.toggle(patch), (patch) => this.walk(patch));
    this.say();
  }

  /** No picture, so nothing to break. */
  forget() {
    Object.assign(this, { image: null, bitmap: null, found: null });
    this.turn += 1;
    $("break").hidden = true;
  }

  /** Another picture: everything is whole again. */
  async see(image, bitmap) {
    Object.assign(this, { image, bitmap, hidden: new Set(), at: null });
    $("breaks").reset();
    $("block").value = Math.max(Math.ceil(this.model.depth / 2), 1);
    $("break").hidden = false;
    await this.run();
  }

  asked() {
    const on = (id) => $(id).checked, block = $("block").value - 1, head = Number($("silent").value);
    return {
      shuffle: on("shuffle") ? this.seed : null,
      positions: on("positions"),
      block: on("no-block") ? block : null,
      skip: [on("no-skip1") && `${block}.1`, on("no-skip2") && `${block}.2`].filter(Boolean),
      head: head ? `${block}.${head - 1}` : null,
      hide: [...this.hidden],
    };
  }

  async run() {
    this.say();
    if (!this.image) return;
    const turn = ++this.turn;
    try {
      const found = await ask("/api/break", { image: this.image, ...this.asked() });
      if (turn !== this.turn) return; // something else was asked meanwhile
      this.found = found;
      this.paint();
    } catch (error) {
      if (turn === this.turn) this.complain(error);
    }
  }

  paint() {
    const { before, after, order, broken } = this.found, cut = layout(this.model), hidden = [...this.hidden];
    draw($("before"), this.bitmap, { map: before.rollout, ...cut, patch: this.at });
    draw($("after"), this.bitmap, { map: after.rollout, ...cut, order, hidden: order ? order.flatMap((from, to) => (this.hidden.has(from) ? [to] : [])) : hidden });
    if (isEncoder(this.model)) return this.compare();
    list($("before-top"), before);
    list($("after-top"), after, before);
    const same = alike(before, after), note = $("broken-says");
    note.className = broken.length ? `note ${same ? "good" : "bad"}` : "note";
    const intact = order && piece(this.model) === "place" ? " The convolutions saw the whole picture; then its places changed their order." : "";
    note.textContent = broken.length ? `With ${broken.join(", ")}: ${same ? "it still says" : `no longer ${first(before)}, but`} ${sure(after)}.${intact}` : "Nothing is broken yet.";
  }

  /** What is left of an encoder's features. */
  compare() {
    const { broken, likeness } = this.found, note = $("broken-says");
    note.className = "note";
    note.textContent = broken.length ? `With ${broken.join(", ")}: the features have a similarity of ${likeness.toFixed(3)} with those before (1: the same direction).` : "Nothing is broken yet.";
  }

  cover(hidden) {
    this.hidden = hidden;
    this.run();
  }

  toggle(patch) {
    this.at = patch;
    if (!this.hidden.delete(patch)) this.hidden.add(patch);
    this.run();
  }

  walk(patch) {
    this.at = patch;
    $("before-stage").setAttribute("aria-label", `Squares to cover; at ${spot(patch, this.model.grid)}`);
    if (this.found) this.paint();
  }

  /** A quarter of the squares: those from which most came; without attention, the middle. */
  strongest() {
    const [rows, columns] = this.model.grid, map = this.found?.before.rollout;
    const middle = (i) => -Math.hypot(Math.floor(i / columns) - (rows - 1) / 2, (i % columns) - (columns - 1) / 2);
    return this.quarter((i) => (map ? map[i] : middle(i)));
  }

  /** As many, drawn at random: what any cover does. */
  chance() {
    const drawn = this.squares().map(Math.random);
    return this.quarter((i) => drawn[i]);
  }

  quarter(value) {
    const order = this.squares().sort((a, b) => value(b) - value(a));
    return new Set(order.slice(0, Math.max(Math.round(order.length / 4), 1)));
  }

  squares() {
    return [...Array(this.model.grid[0] * this.model.grid[1]).keys()];
  }

  say() {
    $("block-says").textContent = $("block").value;
    $("silent-says").textContent = Number($("silent").value) || "–";
  }
}
