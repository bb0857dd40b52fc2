// The parity gate, in a real browser: pictures come from the export, and what the page makes of each goes back.

import { probabilities } from "./answers.js";

const post = (path, body) => fetch(path, { method: "POST", body });
const waiting = new Map();
let sent = 0;

async function begin() {
  const [facts, gate] = await Promise.all(["./model.json", "./gate.json"].map(async (file) => (await fetch(file)).json()));
  const about = { ...facts, ...gate }, worker = new Worker("./worker.js", { type: "module" });
  worker.addEventListener("message", ({ data }) => {
    if (data.number === undefined) return;
    const [done, failed] = waiting.get(data.number);
    if (data.line === undefined) done(data.found);
    else failed(new Error(data.line));
  });
  worker.addEventListener("error", (event) => post("./gate/failed", event.message || "worker.js cannot be run"));
  const ordered = (kind, given) =>
    new Promise((done, failed) => {
      waiting.set(++sent, [done, failed]);
      worker.postMessage({ number: sent, kind, given });
    });
  const opened = await ordered("open", about);
  await post("./gate/opened", JSON.stringify({ ...opened, agent: navigator.userAgent }));
  for (let id = 1; ; id++) {
    const next = await fetch("./gate/next");
    if (next.status !== 200) return;
    const start = performance.now();
    const { logits, score } = await ordered("answer", { id, blob: await next.blob(), name: `image ${id}` });
    const milliseconds = performance.now() - start;
    const seen = await ordered("seen", { id });
    const head = new TextEncoder().encode(`${JSON.stringify({ probabilities: probabilities(logits, about), logits, score, milliseconds })}\n`);
    await post("./gate/answer", new Blob([head, seen]));
  }
}

begin().catch((error) => post("./gate/failed", String(error.message ?? error)));
