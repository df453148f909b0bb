// The `retrying` of docs/clients.md against a server that answers as it is told.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { retrying } from "./retrying.js";

type Told = { status: number; after?: string; hangs?: boolean; breaks?: boolean };
let told: Told[] = [];
const bodies: string[] = [];
const server = createServer((request, response) => {
  const { status, after, hangs, breaks } = told.shift()!;
  let body = "";
  request.on("data", (piece) => (body += piece));
  request.on("end", () => {
    bodies.push(body);
    if (breaks) return request.socket.destroy();
    if (hangs) return;
    response.writeHead(status, after === undefined ? {} : { "Retry-After": after });
    response.end("told");
  });
});
await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
const post = () => new Request(url, { method: "POST", body: "a photo" });
const asked = async (patience: object, ...answers: Told[]) => {
  told = answers;
  bodies.length = 0;
  const started = Date.now();
  const response = await retrying({ firstMs: 1, ...patience })(post());
  assert.equal(await response.text(), "told");
  return { status: response.status, tries: bodies.length, ms: Date.now() - started };
};

let got = await asked({}, { status: 503 }, { status: 429 }, { status: 0, breaks: true }, { status: 200 });
assert.deepEqual([got.status, got.tries], [200, 4]);
assert.deepEqual(bodies, Array(4).fill("a photo"));
got = await asked({ tries: 2 }, { status: 503 }, { status: 503 });
assert.deepEqual([got.status, got.tries], [503, 2]);
for (const status of [400, 408, 500, 502]) assert.equal((await asked({}, { status })).tries, 1);
got = await asked({}, { status: 503, after: "1" }, { status: 200 });
assert.ok(got.tries === 2 && got.ms >= 1_000 && got.ms < 5_000, `${got.ms}`);
const soon = new Date(Date.now() + 2_000).toUTCString(); // cut to whole seconds: one or two from now
got = await asked({}, { status: 503, after: soon }, { status: 200 });
assert.ok(got.tries === 2 && got.ms >= 800 && got.ms < 5_000, `${got.ms}`);
got = await asked({ totalMs: 5_000 }, { status: 429, after: "3600" });
assert.deepEqual([got.status, got.tries], [429, 1]);
const silence = { status: 0, hangs: true }; // a timer may fire a moment early: then a last try is made
await assert.rejects(asked({ totalMs: 300 }, silence, silence), /no answer in time/);
const leaving = AbortSignal.abort(new Error("left"));
await assert.rejects(retrying()(new Request(post(), { signal: leaving })), /left/);
server.closeAllConnections();
server.close();
