// Keeps the page for use without a network. FILES and LARGE stand above: what the page consists of.
// Each file is kept under its hash, so an update fetches only what has changed. It takes effect when
// no page of the old version is open: versions are never mixed.

const ROOT = self.registration.scope;
const CACHE = `florilege ${ROOT}`; // several folders may share a host

const keyOf = (path) => new URL(`${path}?v=${FILES[path]}`, ROOT).href;

self.addEventListener("install", (event) => event.waitUntil(keepAll()));
self.addEventListener("activate", (event) => event.waitUntil(removeOld()));

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
});

async function kept(path, request) {
  const store = await caches.open(CACHE).catch(() => null);
  return (await store?.match(keyOf(path))) ?? fetch(request);
}
