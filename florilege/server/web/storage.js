// What stays on this device: photos that wait for a network, and the field notebook. In IndexedDB;
// where the browser allows none or has no room, in memory as long as the page is open.

const NAME = "florilege";
const memory = new Map();
let opened = null;
let full = false;

/** Whether this browser keeps what is stored. */
export const isKept = async () => (await open()) !== null;

/** Whether there was no room for the last entry. */
export const isFull = () => full;

/** Store an entry under its id, or under a new one, which is the time; returns the id. */
export async function put(entry) {
  const whole = { ...entry, id: entry.id ?? Date.now() + Math.random() };
  try {
    const isStored = (await act("readwrite", (store) => store.put(whole))) !== null;
    full = false;
    if (isStored) memory.delete(whole.id);
    else memory.set(whole.id, whole);
  } catch {
    full = true;
    memory.set(whole.id, whole);
  }
  return whole.id;
}

/** All entries, the oldest first. */
export async function all() {
  const stored = await act("readonly", (store) => store.getAll()).catch(() => null);
  const rest = (stored ?? []).filter(({ id }) => !memory.has(id));
  return [...rest, ...memory.values()].sort((a, b) => a.id - b.id);
}

export async function remove(id) {
  memory.delete(id);
  await act("readwrite", (store) => store.delete(id)).catch(() => null);
  full = false;
}

export async function clear() {
  memory.clear();
  await act("readwrite", (store) => store.clear()).catch(() => null);
  full = false;
}

/** Null without a database. A lack of room ends the transaction, after its request has succeeded. */
async function act(mode, work) {
  const database = await open();
  if (!database) return null;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("entries", mode);
    const request = work(transaction.objectStore("entries"));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
  });
}

function open() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore("entries", { keyPath: "id" });
      request.onsuccess = () => {
        request.result.onclose = () => { opened = null; }; // phones may close it while the page rests
        resolve(request.result);
      };
      request.onerror = () => resolve(null); // private windows
    } catch {
      resolve(null);
    }
  });
  return opened;
}
