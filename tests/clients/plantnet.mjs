// The web component of Pl@ntNet as published asks a server, and reads what it answers.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [url, key, photo] = process.argv.slice(2);
globalThis.navigator ??= { language: "fr-FR" }; // older versions of node have none
const module = pathToFileURL("node_modules/ai-taxonomist/dist/src/utils/identifyRequest.js");
const { identifyRequest } = await import(module);
const file = new File([await readFile(photo)], "photo.png", { type: "image/png" });
for (const project of ["all", "k-world-flora"]) {
  const found = await identifyRequest([file, file], `${url}/v2/identify/${project}`, key, "pn");
  const first = found.results?.[0];
  if (!(first?.score > 0 && first.taxonName && first.gbifUrl && first.images[0]?.url)) {
    throw new Error(`${project}: ${JSON.stringify(found)}`);
  }
}
const refused = await identifyRequest([file], `${url}/v2/identify/all`, "wrong", "pn");
if (typeof refused !== "string") throw new Error("a wrong key is answered");
