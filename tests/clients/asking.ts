// Ask a server as an app would, with types generated from its description: `asking.js URL KEY PHOTO`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import { identify } from "./app.js";
import { retrying } from "./retrying.js";
import type { components, paths } from "./schema.js";

type Problem = components["schemas"]["ProblemDocument"];

const [url, key, photo] = process.argv.slice(2) as [string, string, string];
const headers = { Authorization: `Bearer ${key}` };
const client = createClient<paths>({ baseUrl: url, headers, fetch: retrying() });
const picture = new Blob([readFileSync(photo)], { type: "image/png" });
const asIs = <T>(body: T): BodyInit => body as unknown as BodyInit; // bytes are typed as strings

const card = (await client.GET("/v1/model")).data!;
assert.equal(card.feedback, true);
assert.equal(card.default_k, 3);
const listed = await client.GET("/v1/classes", { params: { query: { q: "viola", limit: 1 } } });
assert.equal(listed.data!.classes.length, 1);

const form = await client.POST("/v1/identify", {
  body: { images: [] as string[] },
  bodySerializer: () => {
    const sent = new FormData();
    for (const name of ["a.png", "b.png"]) sent.append("images", picture, name);
    return sent;
  },
});
assert.equal(form.data!.query.images, 2);

const raw = (content: Blob, k?: number) => client.POST("/v1/identify", {
  params: { query: { k, include: ["scores", "rollup"] } },
  body: content as unknown as string,
  bodySerializer: asIs,
  headers: { "Content-Type": "application/octet-stream" },
});
const answer = (await raw(picture, 2)).data!;
assert.equal(answer.results.length, card.classes);
assert.equal(answer.set.k, 2);
assert.ok(answer.set.hit_rate!.value > 0.5);

const body = {
  body: picture as unknown as string,
  bodySerializer: asIs,
  headers: { "Content-Type": "application/octet-stream" },
};
const plot = (await client.POST("/v1/survey", { ...body, params: { query: { tile_size: 48 } } })).data!;
assert.equal(plot.results[0]!.tiles, plot.tiles.total);
assert.equal(plot.set.calibrated, false);
const features = (await client.POST("/v1/embeddings", body)).data!;
assert.equal(features.embeddings![0]!.length, features.dimensions);

const receipt = await client.POST("/v1/feedback", {
  body: { request_id: answer.id, class_id: answer.results[0]!.class_id, consent: true },
});
assert.deepEqual([receipt.data!.in_set, receipt.data!.photos], [true, 0]);

const refused = async (asked: Promise<{ error?: Problem; response: Response }>) => {
  const { error, response } = await asked;
  assert.equal(error!.status, response.status);
  return error!;
};
const wrong = await refused(raw(new Blob(["<html>"])));
assert.deepEqual([wrong.status, wrong.code, wrong.limit], [415, "unsupported_image_type", undefined]);
const uncalibrated = await refused(raw(picture, 2.71828));
assert.equal(uncalibrated.status, 422);
assert.ok(uncalibrated.allowed!.includes(3));
const nobody = createClient<paths>({ baseUrl: url });
assert.equal((await refused(nobody.GET("/v1/model"))).code, "key_missing");
const stranger = createClient<paths>({ baseUrl: url, headers: { "X-API-Key": "x" } });
assert.equal((await refused(stranger.GET("/v1/model"))).code, "key_unknown");

const shown = await identify(url, key, [picture, picture], "fr");
assert.equal(shown.query.images, 2);
assert.equal(shown.query.lang, "fr");
await assert.rejects(identify(url, "x", [picture], "fr"), /^Error: key_unknown: /);
