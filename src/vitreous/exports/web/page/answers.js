// From logits and score to the answer in words, as vitreous.predict gives it: the same temperature, threshold and ties.

const TIE = 2 ** -17; // scores of float32 that are closer than this share of the largest are equal

/** Calibrated probabilities, in float64. */
export function probabilities(logits, { answers, temperature }) {
  if (answers === "several") return Array.from(logits, (z) => 0.5 * (1 + Math.tanh((0.5 / temperature) * z)));
  const top = Math.max(...logits), shares = Array.from(logits, (z) => Math.exp((z - top) / temperature));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((share) => share / sum);
}

/** The best `count` classes; of equal ones the lowest is first. */
export function bestClasses(logits, count) {
  const near = TIE * Math.max(...Array.from(logits, Math.abs)), left = Array.from(logits), found = [];
  while (found.length < Math.min(count, logits.length)) {
    const most = Math.max(...left), best = left.findIndex((z) => z >= most - near);
    found.push(best);
    left[best] = -Infinity;
  }
  return found;
}

/** The row that /api/predict of `vitreous serve` answers with. */
export function answerOf(name, logits, score, about, top = 5) {
  const shares = probabilities(logits, about);
  const rows = bestClasses(logits, top).map((k) => ({ label: about.labels[k], class: k, probability: shares[k] }));
  const is_unlike = about.threshold !== null && score < about.threshold;
  const several = rows.filter(({ probability }) => probability >= 0.5);
  const said = is_unlike ? [] : (about.answers === "several" ? several : rows.slice(0, 1)).map(({ label }) => label);
  const is_unsure = !is_unlike && rows[0].probability < (about.record?.sure_from ?? 0);
  return { name, said, is_unlike, is_unsure, score, top: rows };
}
