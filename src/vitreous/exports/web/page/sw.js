// Keeps the page for times without a network, and asks the browser for threads (they need two headers that few hosts send).

const OWN = `vitreous ${self.registration.scope} `; // a host may have several such pages
const KEPT = `${OWN}{{version}}`;
const PAGE = {{page}};
const HEADERS = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin" };

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll(PAGE.map((file) => new Request(file, { cache: "reload" })))));
});

self.addEventListener("activate", (event) => {
  const old = (name) => name.startsWith(OWN) && name !== KEPT;
  event.waitUntil(caches.keys().then((names) => Promise.all(names.filter(old).map((name) => caches.delete(name)))).then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(self.registration.scope)) event.respondWith(answer(request));
});

async function answer(request) {
  const cache = await caches.open(KEPT), kept = await cache.match(request, { ignoreSearch: true, ignoreVary: true });
  if (kept) return isolated(kept);
  const found = await fetch(request);
  if (found.ok && found.type === "basic") cache.put(request, found.clone()).catch(() => {}); // a full disk keeps nothing
  return isolated(found);
}

function isolated(found) {
  if (found.type === "opaqueredirect" || found.status === 304) return found;
  const headers = new Headers(found.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}
