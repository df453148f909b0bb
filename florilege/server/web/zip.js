// ZIP archives: written without compression, since pictures do not shrink; read either way.

const [LOCAL, CENTRAL, END] = [0x04034b50, 0x02014b50, 0x06054b50];
const [LOCAL_BYTES, CENTRAL_BYTES, END_BYTES] = [30, 46, 22];
const UTF_8 = 0x0800;
const DEFLATED = 8;
const LONGEST_COMMENT = 65535;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

const checksum = (bytes) =>
  (bytes.reduce((sum, byte) => TABLE[(sum ^ byte) & 255] ^ (sum >>> 8), 0xffffffff) ^ 0xffffffff) >>> 0;

/** An archive of files by path, each a text or a Blob. */
export async function pack(files) {
  const [parts, directory] = [[], []];
  let at = 0;
  for (const [path, content] of Object.entries(files)) {
    const [name, body] = [new TextEncoder().encode(path), new Uint8Array(await new Blob([content]).arrayBuffer())];
    // version, flags, no compression, 1 January 1980: the same files give the same archive
    const about = [[2, 20], [2, UTF_8], [2, 0], [2, 0], [2, 33], [4, checksum(body)], [4, body.length], [4, body.length], [2, name.length], [2, 0]];
    parts.push(record([[4, LOCAL], ...about]), name, body);
    directory.push(record([[4, CENTRAL], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), name);
    at += LOCAL_BYTES + name.length + body.length;
  }
  const count = directory.length / 2;
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = record([[4, END], [2, 0], [2, 0], [2, count], [2, count], [4, size], [4, at], [2, 0]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

/** Bytes of little-endian numbers, each [bytes, value]. */
function record(numbers) {
  const bytes = numbers.flatMap(([width, value]) => Array.from({ length: width }, (_, place) => (value >>> (8 * place)) & 255));
  return Uint8Array.from(bytes);
}

/** The files of an archive by path, each a Blob. Throws if it is none. */
export async function unpack(archive) {
  const bytes = await archive.arrayBuffer();
  const view = new DataView(bytes);
  const short = (at) => view.getUint16(at, true);
  const long = (at) => view.getUint32(at, true);
  let end = view.byteLength - END_BYTES;
  while (long(end) !== END) if ((end -= 1) < view.byteLength - END_BYTES - LONGEST_COMMENT) throw new RangeError("no archive");
  const files = {};
  let at = long(end + 16);
  for (let left = short(end + 10); left; left -= 1) {
    if (long(at) !== CENTRAL) throw new RangeError("damaged archive");
    const [method, size, name, start] = [short(at + 10), long(at + 20), short(at + 28), long(at + 42)];
    const path = new TextDecoder().decode(new Uint8Array(bytes, at + CENTRAL_BYTES, name));
    const body = start + LOCAL_BYTES + short(start + 26) + short(start + 28);
    const content = new Blob([bytes.slice(body, body + size)]);
    files[path] = method === DEFLATED ? await inflated(content) : content;
    at += CENTRAL_BYTES + name + short(at + 30) + short(at + 32);
  }
  return files;
}

const inflated = (content) =>
  new Response(content.stream().pipeThrough(new DecompressionStream("deflate-raw"))).blob();
