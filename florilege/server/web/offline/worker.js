// Answers photos beside the page, so that it stays responsive: network, decoding and thresholds.
import { load } from "./decoding.js";
import { checkBrowser, download, json, script } from "./downloads.js";
import { predict } from "./prediction.js";

const MAX_PIXELS = 50e6;
const FEATURES = "features";
const FILES = ["network", "runtime", "reference", "occurrences"];
const INPUT = "image";

let opening = null; // of the model; a failure may be tried again

self.onmessage = async ({ data: { id, photos, query } }) => {
  try {
    opening ??= open();
    const model = await opening.catch((problem) => { opening = null; throw problem; });
    if (!photos) return;
    const outputs = [];
    for (const photo of photos) {
      outputs.push(await run(model, await load(photo, model.pack.preprocess, MAX_PIXELS)));
      self.postMessage({ id, progress: outputs.length / photos.length });
    }
    self.postMessage({ id, answer: predict(outputs, query, model.pack) });
  } catch (error) {
    const problem = typeof error?.code === "string" ? error : { code: "unknown", detail: String(error?.message ?? error) };
    self.postMessage({ id, problem });
  }
};

/** Fetch what is missing and load the network; tells the page how far it is. */
async function open() {
  checkBrowser();
  const pack = await json("pack.json");
  const files = Object.fromEntries(FILES.filter((name) => pack[name]).map((name) => [name, pack[name]]));
  const { contents, kept } = await download(files, (loaded, total) => self.postMessage({ loading: { loaded, total } }));
  const ort = await script("ort.mjs");
  // More threads need headers that most static hosts do not let people set.
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = contents.runtime;
  const session = await openSession(ort, contents.network);
  const model = {
    ort, session,
    pack: {
      ...pack,
      reference: pack.reference && unpackReference(pack.reference, contents.reference),
      occurrences: pack.occurrences && unpackOccurrences(pack.occurrences, contents.occurrences),
    },
  };
  self.postMessage({ ready: { kept } });
  return model;
}

async function openSession(ort, network) {
  try {
    return await ort.InferenceSession.create(network, { executionProviders: ["wasm"] });
  } catch (error) {
    throw { code: "model_unusable", detail: String(error.message ?? error), retryable: false };
  }
}

async function run({ ort, session, pack }, pixels) {
  const side = pack.preprocess.image_size;
  const wanted = [pack.output, ...(pack.reference ? [FEATURES] : [])];
  const feeds = { [INPUT]: new ort.Tensor("uint8", pixels, [1, side, side, 3]) };
  const outputs = await session.run(feeds, wanted).catch((error) => {
    throw { code: "model_unusable", detail: String(error.message ?? error) };
  });
  return { logits: outputs[pack.output].data, features: outputs[FEATURES]?.data ?? null };
}

// Arrays -------------------------------------------------------------------------------------------

function unpackReference({ axes: [count, dimensions], photos }, content) {
  const axes = new Float32Array(content, 0, count * dimensions);
  const halves = new Uint16Array(content, 4 * count * dimensions, photos * count);
  const directions = Float32Array.from(halves, fromHalf);
  return { axes: rowsOf(axes, dimensions), directions: rowsOf(directions, count) };
}

const rowsOf = (array, width) =>
  Array.from({ length: array.length / width }, (_, row) => array.subarray(row * width, (row + 1) * width));

/** A number from the bits of its half-precision form. */
function fromHalf(bits) {
  const [exponent, fraction] = [(bits >> 10) & 0x1f, bits & 0x3ff];
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
  return bits & 0x8000 ? -size : size;
}

function unpackOccurrences({ regions, classes, entries, cell_degrees }, content) {
  let at = 0;
  const next = (Type, length) => {
    const array = new Type(content, at, length);
    at += array.byteLength;
    return array;
  };
  return {
    regions, classes, cell_degrees,
    weights: next(Float64Array, entries),
    bounds: next(Int32Array, regions.length + 1),
    class_indices: next(Int32Array, entries),
    months: next(Int8Array, entries),
  };
}
