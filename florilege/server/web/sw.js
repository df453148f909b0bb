// Keeps the page for use without a network. FILES and LARGE stand above: what the page consists of.
// Each file is kept under its hash, so an update fetches only what has changed. It takes effect when
// no page of the old version is open, or when somebody asks for it: versions are never mixed.

const ROOT = self.registration.scope;
const CACHE = `florilege ${ROOT}`; // several folders may share a host
const ANSWERS = `florilege answers ${ROOT}`; // of a server: its model, and pictures of species
const MOST_ANSWERS = 500; // 7 kB each

const keyOf = (path) => new URL(`${path}?v=${FILES[path]}`, ROOT).href;

self.addEventListener("install", (event) => event.waitUntil(keepAll()));
self.addEventListener("activate", (event) => event.waitUntil(removeOld()));
self.addEventListener("message", ({ data }) => { if (data === "update") self.skipWaiting(); });

async function keepAll() {
  const store = await caches.open(CACHE);
  await Promise.all(Object.keys(FILES).map(async (path) => {
    if (await store.match(keyOf(path))) return;
    const usual = await fetched(path, "no-cache");
    // A host that counts in seconds may take a new file for the old one.
    const response = (await isCurrent(path, usual)) ? usual : await fetched(path, "reload");
    // Some hosts redirect index.html; a page must not be answered with a redirected response.
    await store.put(keyOf(path), response.redirected ? new Response(response.body, response) : response);
  }));
}

async function fetched(path, cache) {
  const response = await fetch(new URL(path, ROOT), { cache });
  if (!response.ok) throw new Error(`${path}: status ${response.status}`);
  return response;
}

async function isCurrent(path, response) {
  const digest = await crypto.subtle.digest("SHA-256", await response.clone().arrayBuffer());
  const text = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.startsWith(FILES[path]);
}

async function removeOld() {
  const store = await caches.open(CACHE);
  const current = new Set([...Object.keys(FILES).map(keyOf), ...LARGE.map((path) => new URL(path, ROOT).href)]);
  for (const { url } of await store.keys()) if (!current.has(url)) await store.delete(url);
  await self.clients.claim(); // the page that was opened first works without a network, too
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(ROOT)) return;
  const path = decodeURI(new URL(request.url).pathname.slice(new URL(ROOT).pathname.length)) || "index.html";
  const name = [path, `${path}.html`].find((one) => one in FILES); // some hosts leave the ending out
  if (name) event.respondWith(kept(name, request));
  else if (path.startsWith("v1/")) event.respondWith(asked(request));
});

async function kept(path, request) {
  const store = await caches.open(CACHE).catch(() => null);
  return (await store?.match(keyOf(path))) ?? fetch(request);
}

/** What the server answers now; without a network, what it answered last. */
async function asked(request) {
  const store = await caches.open(ANSWERS).catch(() => null);
  try {
    const response = await fetch(request);
    if (response.ok && store) await remember(store, request, response.clone()).catch(() => null); // no room
    return response;
  } catch (error) {
    const last = await store?.match(request);
    if (!last) throw error;
    return last;
  }
}

async function remember(store, request, response) {
  await store.put(request, response);
  const all = await store.keys(); // the oldest first
  for (const old of all.slice(0, -MOST_ANSWERS)) await store.delete(old);
}
