// What stays on this device: photos that wait for a network, and past answers. In IndexedDB; where
// the browser allows none, in memory as long as the page is open.

const NAME = "florilege";
const memory = new Map();
let opened = null;

/** Whether this browser keeps what is stored. */
export const isKept = async () => (await open()) !== null;

export async function put(entry) {
  const id = entry.id ?? Date.now() + Math.random();
  const whole = { ...entry, id };
  const stored = await act("readwrite", (store) => store.put(whole)).catch(() => null);
  if (stored === null) memory.set(id, whole); // no storage, or no room in it
  return id;
}

export async function all() {
  const stored = await act("readonly", (store) => store.getAll()).catch(() => null);
  return [...(stored ?? []), ...memory.values()].sort((a, b) => a.id - b.id);
}

export async function remove(id) {
  memory.delete(id);
  await act("readwrite", (store) => store.delete(id)).catch(() => null);
}

export async function clear() {
  memory.clear();
  await act("readwrite", (store) => store.clear()).catch(() => null);
}

async function act(mode, work) {
  const database = await open();
  if (!database) return null;
  return result(work(database.transaction("entries", mode).objectStore("entries")));
}

function open() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore("entries", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null); // private windows
    } catch {
      resolve(null);
    }
  });
  return opened;
}

const result = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
