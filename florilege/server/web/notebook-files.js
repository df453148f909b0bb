// The notebook as a file: a table for spreadsheets and a Darwin Core Archive, with the pictures.
import { NOT_AN_ORGANISM, NOT_LISTED, UNDECIDED, confirmedName } from "./notebook.js";
import { positionIn } from "./place.js";
import { commonGroup } from "./sets.js";
import { pack, unpack } from "./zip.js";

const OWN = "notebook.json"; // what `readNotebook` reads; the other files are for other programs
const TERMS = "http://rs.tdwg.org/dwc/terms/"; // names, never fetched
const CORE = ["occurrenceID", "basisOfRecord", "eventDate", "decimalLatitude", "decimalLongitude", "verbatimLocality",
  "scientificName", "genus", "family", "vernacularName", "taxonID", "identificationRemarks", "occurrenceRemarks", "associatedMedia"];

/** Save all entries as an archive. */
export async function exportNotebook(entries) {
  const files = {};
  const rows = entries.map((entry) => ({ entry, ...described(entry) }));
  files["notebook.csv"] = `\uFEFF${csv(TABLE, rows.map(tableRow))}`; // for spreadsheets, which else guess the encoding
  files["occurrence.csv"] = csv(CORE, rows.filter(({ entry }) => entry.confirmed !== NOT_AN_ORGANISM).map(coreRow));
  files["meta.xml"] = meta();
  for (const { entry, picture } of rows) if (picture) files[picture] = entry.photo ?? entry.picture;
  files[OWN] = JSON.stringify(rows.map(({ entry: { photo, picture, photos, ...rest }, picture: path }) => ({ ...rest, path })));
  save(await pack(files), `florilege-${new Date().toLocaleDateString("sv")}.zip`);
}

/** Give a file to the person who uses the page. */
export function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser reads it meanwhile
}

/** The entries of an archive that `exportNotebook` made. Throws if it is another file. */
export async function readNotebook(file) {
  const files = await unpack(file);
  const entries = JSON.parse(await files[OWN].text());
  return entries.filter((entry) => entry.id && entry.answer?.results).map(({ path, ...entry }) => {
    const picture = files[path]?.slice(0, files[path].size, "image/jpeg");
    return { ...entry, photo: picture, picture };
  });
}

/** What an entry says: the species, if there is one, all of the set, and the path of its picture. */
function described(entry) {
  const { answer, confirmed } = entry;
  const members = answer.results.filter((result) => result.in_set);
  const taxon = answer.results.find((result) => result.class_id === confirmed)?.taxon;
  const group = confirmed === UNDECIDED ? commonGroup(members) : null;
  const path = `pictures/${answer.id.replace(/[^\w-]/g, "")}.jpg`;
  return { members, taxon, group, picture: entry.photo ?? entry.picture ? path : "" };
}

const TABLE = ["date", "place", "name", "scientific_name", "decision", "set", "note", "picture", "model", "asked_at"];

function tableRow({ entry, members, taxon, picture }) {
  const { answer, confirmed } = entry;
  const kind = !confirmed ? "" : [NOT_LISTED, NOT_AN_ORGANISM, UNDECIDED].includes(confirmed) ? confirmed : "species";
  return [
    entry.date, entry.place, confirmed ? confirmedName(answer, confirmed) : "", taxon?.scientific_name, kind,
    members.map((member) => member.taxon.scientific_name).join("; "), entry.note, picture,
    `${answer.model.name} ${answer.model.version}`, new Date(entry.id).toISOString(),
  ];
}

function coreRow({ entry, members, taxon, group, picture }) {
  const { answer, date, place, note } = entry;
  const position = positionIn(place ?? "");
  const set = members.map((member) => member.taxon.scientific_name).join(" | ");
  const remarks = `set of ${answer.model.name} ${answer.model.version}: ${set}`;
  const gbif = taxon?.ids.gbif;
  return [
    answer.id, "HumanObservation", date, position?.latitude, position?.longitude, place,
    taxon?.scientific_name ?? group?.name, taxon?.genus ?? members.find((one) => one.taxon.genus === group?.name)?.taxon.genus,
    taxon?.family ?? (group && members[0].taxon.family), taxon?.common_names[0]?.name, gbif && `gbif:${gbif}`, remarks, note, picture,
  ];
}

const csv = (head, rows) => [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

/** A cell; a text that a spreadsheet would run as a formula is given to it as text. */
function cell(value) {
  const text = String(value ?? "");
  const plain = typeof value === "string" && /^'*[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** What the columns of occurrence.csv mean, as a Darwin Core Archive says it. */
function meta() {
  const fields = CORE.map((name, at) => `    <field index="${at}" term="${TERMS}${name}"/>`);
  return `<?xml version="1.0" encoding="UTF-8"?>
<archive xmlns="http://rs.tdwg.org/dwc/text/">
  <core encoding="UTF-8" fieldsTerminatedBy="," linesTerminatedBy="\\r\\n" fieldsEnclosedBy="&quot;" ignoreHeaderLines="1" rowType="${TERMS}Occurrence">
    <files><location>occurrence.csv</location></files>
    <id index="0"/>
${fields.join("\n")}
  </core>
</archive>
`;
}
