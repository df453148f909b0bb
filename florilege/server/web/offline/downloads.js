// The large files of the page: fetched once, checked, and kept by the browser.

const ROOT = new URL("..", import.meta.url);
const CACHE = `florilege ${ROOT.href}`; // shared with sw.js, which removes what is no longer listed
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);

/** Throw a problem if this browser cannot run the network; without SIMD its results are wrong. */
export function checkBrowser() {
  if (typeof WebAssembly !== "object" || !WebAssembly.validate(SIMD)) throw { code: "no_simd", retryable: false };
  if (typeof OffscreenCanvas === "undefined") throw { code: "no_simd", retryable: false }; // as old
}

/** The JSON content of a file of the page. */
export async function json(path) {
  const response = await fetch(new URL(path, ROOT)).catch(() => { throw { code: "download_incomplete" }; });
  if (!response.ok) throw { code: "download_incomplete", status: response.status };
  return response.json().catch(() => { throw { code: "download_incomplete" }; });
}

export const script = (path) => import(new URL(path, ROOT)).catch(() => { throw { code: "download_incomplete" }; });

/**
 * Files by name, each with path, bytes and sha256, and gzip_bytes if there is a PATH.gz too.
 *
 * Returns their contents by name, and whether all are kept for the next time without a network.
 * `onProgress` is called with the bytes that arrived and the bytes to fetch.
 */
export async function download(files, onProgress) {
  const store = await openStore();
  const contents = {};
  const missing = [];
  for (const [name, file] of Object.entries(files)) {
    contents[name] = await keptContent(store, file);
    if (!contents[name]) missing.push([name, file]);
  }
  const total = missing.reduce((sum, [, file]) => sum + transferred(file), 0);
  let [done, kept] = [0, store !== null];
  for (const [name, file] of missing) {
    const content = await fetched(file, (bytes) => onProgress(done + bytes, total));
    if (!(await intact(content, file))) throw { code: "download_incomplete" };
    done += transferred(file);
    contents[name] = content;
    const response = new Response(content, { headers: { "Content-Length": String(content.byteLength) } });
    kept &&= await store.put(new URL(file.path, ROOT), response).then(() => true, () => false); // no room
  }
  return { contents, kept };
}

/** The cache, or null if the browser has none for this page, or its user denies it. */
async function openStore() {
  try {
    return await caches.open(CACHE);
  } catch {
    return null;
  }
}

async function keptContent(store, file) {
  const response = await store?.match(new URL(file.path, ROOT)).catch(() => null);
  const content = await response?.arrayBuffer().catch(() => null);
  return content && (await intact(content, file)) ? content : null;
}

const unpacks = (file) => file.gzip_bytes && typeof DecompressionStream === "function";
const transferred = (file) => (unpacks(file) ? file.gzip_bytes : file.bytes);

async function fetched(file, onProgress) {
  if (!unpacks(file)) return received(file.path, onProgress);
  const content = await received(`${file.path}.gz`, onProgress);
  const [first, second] = new Uint8Array(content, 0, Math.min(2, content.byteLength));
  if (first !== 0x1f || second !== 0x8b) return content; // the host said it was encoded, so it is unpacked
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer().catch(() => { throw { code: "download_incomplete" }; });
}

const parts = new Map(); // of interrupted downloads by path, while the page is open

async function received(path, onProgress) {
  const part = parts.get(path) ?? { chunks: [], bytes: 0 };
  parts.set(path, part);
  try {
    const headers = part.bytes ? { Range: `bytes=${part.bytes}-` } : {};
    const response = await fetch(new URL(path, ROOT), { cache: "no-store", headers }); // kept here, and once
    if (response.status !== 206) Object.assign(part, { chunks: [], bytes: 0 });
    if (!response.ok) throw new Error(`status ${response.status}`);
    for (let reader = response.body.getReader(), chunk; !(chunk = await reader.read()).done;) {
      part.chunks.push(chunk.value);
      part.bytes += chunk.value.byteLength;
      onProgress(part.bytes);
    }
  } catch (error) {
    throw { code: "download_incomplete", detail: String(error.message ?? error) };
  }
  parts.delete(path);
  return new Blob(part.chunks).arrayBuffer();
}

async function intact(content, { bytes, sha256 }) {
  if (content.byteLength !== bytes) return false;
  if (!crypto.subtle) return true; // only with https
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
}
