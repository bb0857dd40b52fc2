// The parity gate, in a real browser: pictures come from the export, and what the page makes of each goes back.

import { probabilities } from "./answers.js";
import { orders } from "./orders.js";

const post = (path, body) => fetch(path, { method: "POST", body });

async function begin() {
  const [facts, gate] = await Promise.all(["./model.json", "./gate.json"].map(async (file) => (await fetch(file)).json()));
  const about = { ...facts, ...gate }, worker = new Worker("./worker.js", { type: "module" });
  worker.addEventListener("error", (event) => post("./gate/failed", event.message || "worker.js cannot be run"));
  const ordered = orders(worker);
  const opened = await ordered("open", about);
  await post("./gate/opened", JSON.stringify({ ...opened, agent: navigator.userAgent }));
  for (let id = 1; ; id++) {
    const next = await fetch("./gate/next");
    if (next.status !== 200) return;
    const start = performance.now();
    const { features, logits, score = 0 } = await ordered("answer", { id, blob: await next.blob(), name: `image ${id}` });
    const milliseconds = performance.now() - start;
    const seen = await ordered("seen", { id });
    const head = new TextEncoder().encode(`${JSON.stringify({ probabilities: features ?? probabilities(logits, about), score, milliseconds })}\n`);
    await post("./gate/answer", new Blob([head, seen]));
  }
}

begin().catch((error) => post("./gate/failed", String(error.message ?? error)));
