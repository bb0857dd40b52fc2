// Calls to the server that this page came from.

const HASH = /^#token=(.+)$/.exec(location.hash);
if (HASH) {
  sessionStorage.setItem("token", HASH[1]);
  history.replaceState(null, "", location.pathname); // not in the history, nor in a copied address
}

/** Who answers, for the page.  isHere: no photo leaves this machine. */
export const who = {
  privacy: "It goes to this server alone. The last pictures stay in its memory until it ends; none is written to disk.",
  foot: "Nothing is loaded from elsewhere.",
  hasApi: true,
  isHere: false,
};

/** A refusal, in the server's own words. */
export class Refused extends Error {}

async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem("token");
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  let line = `the server said ${answer.status}`;
  try { line = (await answer.json()).error ?? line; } catch { /* not in our words */ }
  if (answer.status === 401) line = "this server wants its token; open the address that it printed, with #token=…";
  const refused = new Refused(line);
  refused.status = answer.status;
  throw refused;
}

const words = (given) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(given))
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== false) query.append(name, one);
  return query.toString();
};

export const get = async (path, given = {}) => (await call(`${path}?${words(given)}`)).json();

export const ask = async (path, given = {}, options = {}) =>
  (await call(`${path}?${words(given)}`, { method: "POST", ...options })).json();

export function send(path, file, given = {}) {
  const form = new FormData();
  form.append("images", file, file.name || "pasted.png");
  return ask(path, given, { body: form });
}

/** The drawing of the whole model, as an element of the page: it takes the page's colours. */
export async function drawing() {
  const text = await (await call("/api/architecture")).text();
  return document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
}

const bitmap = async (path, image) => createImageBitmap(await (await call(`${path}?${words({ image })}`)).blob());

/** The image as the model sees it, ready to draw. */
export const seen = (image) => bitmap("/api/seen", image);

/** The whole image, sharp; predict must have been asked with photo: true. */
export const photo = (image) => bitmap("/api/photo", image);
