
// Attention maps to choose and point at, and heatmaps that say what a cell is. Nothing is fetched: all is in the page.

const read = (id) => { const e = document.getElementById(id); return e ? JSON.parse(e.textContent) : null; };
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Where each part of a model's bytes begins: maps, peaks (two bytes each), rollouts.
function unpack(model, bytes) {
  const images = model.images.length, keys = model.small[0] * model.small[1];
  const rows = images * model.layers * model.heads * model.queries;
  const peaks = new Uint16Array(bytes.slice(rows * keys, rows * (keys + 2)).buffer);
  const [h, w] = model.grid, maps = bytes.subarray(0, rows * keys);
  const rollouts = {};
  model.rollouts.forEach((name, i) => {
    const begin = rows * (keys + 2) + i * images * h * w;
    rollouts[name] = bytes.subarray(begin, begin + images * h * w);
  });
  return { maps, peaks, rollouts, keys };
}

// What a byte of a map is, of its query's largest: 256 steps are even, fewer go by the square root.
const decoded = (steps) => Float32Array.from({ length: steps }, (_, v) => (steps === 256 ? v / 255 : (v / (steps - 1)) ** 2));

// Weight that query q gives each patch (or that each patch gives q); head -1 is the mean of all.
function weights(model, state, own, head, isSeen) {
  const { maps, peaks, keys } = model.parts, { steps } = model;
  const heads = head < 0 ? [...Array(model.heads).keys()] : [head];
  const out = new Float32Array(keys), query = place(model, state.token);
  for (const one of heads) {
    const first = ((state.image * model.layers + own.layer) * model.heads + one) * model.queries;
    for (let k = 0; k < keys; k++) {
      const row = first + (isSeen ? model.front.length + k : query);
      const column = isSeen ? query - model.front.length : k;
      out[k] += steps[maps[row * keys + column]] * (peaks[row] / 65535) / heads.length;
    }
  }
  return out;
}

const WHOLE = [0, 0, 1, 1]; // left, top, right, bottom, in shares

// The number of a token among a model's queries. token: {front: 0} or {y, x} as shares of the image.
function place(model, token) {
  if ("front" in token && token.front < model.front.length) return token.front;
  const [rows, columns] = model.small, { y = 0.5, x = 0.5 } = token, [x0, y0, x1, y1] = model.cells;
  const within = (share, from, to, count) => Math.min(Math.max(Math.floor(((share - from) / (to - from)) * count), 0), count - 1);
  const r = within(y, y0, y1, rows), c = within(x, x0, x1, columns);
  return model.front.length + r * columns + c;
}

function looker(root, told, parts) {
  const steps = decoded(told.steps);
  const models = told.models.map((model, i) => ({ ...model, steps, parts: unpack(model, parts[i]) }));
  const scale = told.scale.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const colour = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (scale.length - 1), i = Math.min(Math.floor(at), scale.length - 2);
    return scale[i].map((low, c) => Math.round(low + (at - i) * (scale[i + 1][c] - low)));
  };
  const state = { image: 0, show: "looks", token: models[0].front.length ? { front: 0 } : { y: 0.5, x: 0.5 } };
  const owns = models.map((model, i) => ({
    layer: model.layers - 1, head: -1, root: root.querySelector(`[data-model="${i}"]`), pictures: [],
  }));

  const heat = (model, own, head) => {
    if (state.show in model.parts.rollouts) {
      const [h, w] = model.grid, all = model.parts.rollouts[state.show];
      return { values: all.subarray(state.image * h * w, (state.image + 1) * h * w), grid: model.grid };
    }
    const isFront = place(model, state.token) < model.front.length;
    return { values: weights(model, state, own, head, state.show === "seen" && !isFront), grid: model.small, isRoot: true };
  };

  const veil = (share) => `rgba(${colour(share)},${0.72 - 0.42 * share})`;

  // Colours go by the square root of a weight: one strong patch would hide all others. What the model does not see of
  // a photo is grey.  box: what it sees: left, top, right, bottom, in shares of the photo.
  // cells: where the grid lies in it; the first and last cells reach to its edges.
  function paint(canvas, { values, grid, isRoot }, picture = null, mark = null, box = WHOLE, cells = WHOLE) {
    const context = canvas.getContext("2d"), [rows, columns] = grid;
    const [left, top, right, bottom] = box.map((edge, i) => edge * (i % 2 ? canvas.height : canvas.width));
    const edge = (i, count, from, to) => (i === 0 ? 0 : i === count ? 1 : from + ((to - from) * i) / count);
    const across = (i) => Math.round(left + (right - left) * edge(i, columns, cells[0], cells[2]));
    const down = (i) => Math.round(top + (bottom - top) * edge(i, rows, cells[1], cells[3]));
    context.imageSmoothingEnabled = picture ? Math.max(picture.naturalWidth, picture.naturalHeight) > 64 : false;
    if (picture) {
      context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      context.fillStyle = "rgba(128,128,128,0.65)";
      context.beginPath();
      context.rect(0, 0, canvas.width, canvas.height);
      context.rect(left, top, right - left, bottom - top);
      context.fill("evenodd");
    }
    const low = Math.min(...values), high = Math.max(...values);
    for (let k = 0; k < rows * columns; k++) {
      const part = high > low ? (values[k] - low) / (high - low) : 0, share = isRoot ? Math.sqrt(part) : part;
      context.fillStyle = picture ? veil(share) : `rgb(${colour(share)})`;
      const r = Math.floor(k / columns), c = k % columns;
      context.fillRect(across(c), down(r), across(c + 1) - across(c), down(r + 1) - down(r));
    }
    if (mark !== null) {
      const r = Math.floor(mark / columns), c = mark % columns, x = across(c), y = down(r), wide = across(c + 1) - x, tall = down(r + 1) - y;
      for (const [hue, width] of [["#000", 5], ["#fff", 2.5]]) {
        context.strokeStyle = hue; context.lineWidth = width;
        context.strokeRect(x + 2, y + 2, wide - 4, tall - 4);
      }
    }
  }

  const at = (patch, columns) => `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;

  // The numbers at the ends of the colours: shares of a look; a rollout has a scale of its own.
  function ends(model, { values }) {
    const low = Math.min(...values), high = Math.max(...values);
    return state.show in model.parts.rollouts ? [`${percent(low / high)} of the most`, "the most"] : [percent(low), percent(high)];
  }

  function say(model, own, { values, grid }) {
    const most = values.indexOf(Math.max(...values)), columns = grid[1];
    const where = at(most, columns);
    const sum = values.reduce((a, b) => a + b, 0);
    if (state.show in model.parts.rollouts) return `Of all ${model.places}, ${where} gives the head most: ${percent(values[most] / sum)}; an even share is ${percent(1 / values.length)}.`;
    const query = place(model, state.token), patch = query - model.front.length;
    const token = patch < 0 ? `the ${model.front[query]}` : `the ${model.place} at ${at(patch, columns)}`;
    const whose = `Block ${own.layer + 1}, ${own.head < 0 ? "mean of heads" : `head ${own.head + 1}`}: `;
    if (state.show === "seen" && patch < 0) return `${whose}who looks at ${token} is not in the page; shown is where it looks.`;
    if (state.show === "seen") return `${whose}${token} is looked at most from ${where}, which gives it ${percent(values[most])}.`;
    const others = model.front.length ? `; ${percent(Math.min(sum, 1))} of its look goes to ${model.places}` : "";
    return `${whose}${token} looks most at ${where} (${percent(values[most])})${others}.`;
  }

  function draw() {
    models.forEach((model, i) => {
      const own = owns[i], isRollout = state.show in model.parts.rollouts;
      const find = (name) => own.root.querySelector(name);
      find("[data-layer]").disabled = find("[data-head]").disabled = find("[data-play]").disabled = isRollout;
      find("[data-layer-said]").textContent = isRollout ? "all blocks" : `${own.layer + 1} of ${model.layers}`;
      find("[data-head-said]").textContent = isRollout ? "all heads" : own.head < 0 ? "mean of all" : `${own.head + 1} of ${model.heads}`;
      find("[data-layer]").setAttribute("aria-valuetext", `block ${own.layer + 1}`);
      find("[data-head]").setAttribute("aria-valuetext", own.head < 0 ? "mean of heads" : `head ${own.head + 1}`);
      const shown = heat(model, own, own.head), query = place(model, state.token) - model.front.length;
      const photo = own.pictures[state.image], canvas = find("[data-photo]");
      canvas.height = Math.round(canvas.width * photo.naturalHeight / photo.naturalWidth) || canvas.width;
      paint(canvas, shown, photo, isRollout || query < 0 ? null : query, model.boxes[state.image], model.cells);
      [find("[data-low]").textContent, find("[data-high]").textContent] = ends(model, shown);
      find(".said").textContent = say(model, own, shown);
      find(".heads").hidden = isRollout;
      [...find(".heads").children].forEach((button, head) => {
        button.setAttribute("aria-pressed", String(own.head === head));
        if (!isRollout) paint(button.firstChild, heat(model, own, head));
      });
    });
    root.querySelectorAll("[data-images] button").forEach((b, i) => b.setAttribute("aria-pressed", String(i === state.image)));
    root.querySelectorAll("[data-front] button").forEach((b, i) => b.setAttribute("aria-pressed", String(state.token.front === i)));
  }

  function button(parent, label, act) {
    const made = Object.assign(document.createElement("button"), { type: "button" });
    made.append(label);
    made.addEventListener("click", () => { act(); draw(); });
    parent.append(made);
    return made;
  }

  // The blocks one after the other. For people who asked for less motion, each click shows the next.
  function player(model, own) {
    const made = own.root.querySelector("[data-play]"), slider = own.root.querySelector("[data-layer]");
    const less = matchMedia("(prefers-reduced-motion: reduce)");
    let timer = 0;
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      made.textContent = less.matches ? "next block" : "play the blocks";
      own.root.querySelector(".said").setAttribute("aria-live", "polite");
    };
    const step = () => {
      if (state.show in model.parts.rollouts) return stop();
      slider.value = own.layer = (own.layer + 1) % model.layers;
      draw();
    };
    made.addEventListener("click", () => {
      if (timer) return stop();
      step();
      if (less.matches) return;
      timer = setInterval(step, 900);
      made.textContent = "pause";
      own.root.querySelector(".said").setAttribute("aria-live", "off"); // a reader would never come to an end
    });
    slider.addEventListener("input", stop);
    less.addEventListener("change", stop);
    made.hidden = model.layers < 2;
    stop();
  }

  models[0].images.forEach((address, i) => {
    const thumb = Object.assign(new Image(), { src: address, alt: `image ${i + 1}` });
    button(root.querySelector("[data-images]"), thumb, () => { state.image = i; }).className = "thumb";
  });
  if (models[0].images.length < 2) root.querySelector("[data-images]").closest(".row").hidden = true;
  const fronts = models.map((model) => model.front).reduce((a, b) => (b.length > a.length ? b : a));
  fronts.forEach((name, i) => button(root.querySelector("[data-front]"), name, () => { state.token = { front: i }; }));
  if (!fronts.length) root.querySelector("[data-front]").closest(".row").hidden = true;
  root.querySelector("[data-show]").addEventListener("change", (e) => { state.show = e.target.value; draw(); });

  models.forEach((model, i) => {
    const own = owns[i], canvas = own.root.querySelector("[data-photo]"), [rows, columns] = model.small;
    const bar = own.root.querySelector("[data-scale]").getContext("2d");
    bar.fillStyle = "rgb(128,128,128)";
    bar.fillRect(0, 0, 256, 1);
    for (let x = 0; x < 256; x++) { bar.fillStyle = veil(x / 255); bar.fillRect(x, 0, 1, 1); }
    const sliders = [["[data-layer]", "layer", model.layers - 1], ["[data-head]", "head", model.heads - 1]];
    for (const [name, key, top] of sliders) {
      const slider = own.root.querySelector(name);
      slider.max = top; slider.value = own[key];
      slider.addEventListener("input", () => { own[key] = Number(slider.value); draw(); });
    }
    for (let head = 0; head < model.heads; head++) {
      const small = Object.assign(document.createElement("canvas"), { width: 8 * columns, height: 8 * rows });
      const made = button(own.root.querySelector(".heads"), small, () => {
        own.head = own.head === head ? -1 : head;
        own.root.querySelector("[data-head]").value = own.head;
      });
      made.append(`head ${head + 1}`);
    }
    player(model, own);
    canvas.addEventListener("click", (e) => {
      const frame = canvas.getBoundingClientRect(), [left, top, right, bottom] = model.boxes[state.image];
      const y = ((e.clientY - frame.top) / frame.height - top) / (bottom - top);
      const x = ((e.clientX - frame.left) / frame.width - left) / (right - left);
      state.token = { y: Math.min(Math.max(y, 0), 1), x: Math.min(Math.max(x, 0), 1) };
      if (state.show in model.parts.rollouts) root.querySelector("[data-show]").value = state.show = "looks";
      draw();
    });
    canvas.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (!step) return;
      e.preventDefault();
      const patch = Math.max(place(model, state.token) - model.front.length, 0);
      const r = Math.min(Math.max(Math.floor(patch / columns) + step[0], 0), rows - 1);
      const c = Math.min(Math.max(patch % columns + step[1], 0), columns - 1);
      const [x0, y0, x1, y1] = model.cells;
      state.token = { y: y0 + ((y1 - y0) * (r + 0.5)) / rows, x: x0 + ((x1 - x0) * (c + 0.5)) / columns };
      draw();
    });
    model.images.forEach((address, at) => {
      own.pictures[at] = new Image();
      own.pictures[at].src = address;
    });
  });
  const pooled = models.filter((m) => m.small.join() !== m.grid.join());
  const words = pooled.map((m) => `Maps of ${m.name} are pooled from ${m.grid.join("×")} to ${m.small.join("×")} ${m.places}; vitreous serve shows them whole.`);
  root.querySelector("[data-fine]").textContent = [`Weights are kept in ${told.steps} steps.`, ...words].join(" ");
  Promise.all(owns.flatMap((own) => own.pictures.map((picture) => picture.decode().catch(() => null)))).then(() => {
    draw();
    root.dataset.ready = "yes";
  });
}

function heatmap({ section, title, place: at, rows, columns, thousandths }) {
  const svg = document.querySelectorAll(`#${section} svg[aria-label="${title}"]`)[at];
  if (!svg) return;
  const cells = svg.querySelector("image"), said = document.createElement("p");
  said.className = "cell";
  said.setAttribute("role", "status");
  said.textContent = "Point at a cell, or focus the figure and use the arrow keys, to read its number.";
  svg.closest(".scroll").after(said);
  const get = (name) => Number(cells.getAttribute(name));
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  cursor.setAttribute("class", "cursor");
  let row = -1, column = -1;
  const show = () => {
    row = Math.min(Math.max(row, 0), rows.length - 1);
    column = Math.min(Math.max(column, 0), columns.length - 1);
    const value = thousandths[row * columns.length + column];
    said.textContent = `${rows[row]} and ${columns[column]}: ${value === null ? "constant, no number" : (value / 1000).toFixed(3)}`;
    const tall = get("height") / rows.length, wide = get("width") / columns.length;
    const box = { x: get("x") + column * wide - 1, y: get("y") + row * tall - 1, width: wide + 2, height: tall + 2 };
    for (const [name, number] of Object.entries(box)) cursor.setAttribute(name, number);
    svg.append(cursor);
  };
  cells.addEventListener("pointermove", (e) => {
    const box = cells.getBoundingClientRect();
    row = Math.floor(((e.clientY - box.top) / box.height) * rows.length);
    column = Math.floor(((e.clientX - box.left) / box.width) * columns.length);
    show();
  });
  svg.closest(".scroll").addEventListener("keydown", (e) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    [row, column] = [row + step[0], column + step[1]];
    show();
  });
}

for (const each of read("cells") ?? []) heatmap(each);
const told = read("attention"), root = document.getElementById("looker");
if (told && root) {
  const parts = await Promise.all(told.models.map((_, i) => inflate(read(`maps${i}`))));
  looker(root, told, parts);
}
