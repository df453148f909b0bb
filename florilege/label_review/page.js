// Answers are kept in this browser by photo; a CSV takes them elsewhere.
"use strict";
const { key, data, classes, photos } = JSON.parse(document.getElementById("review").textContent);
const COLUMNS = ["photo", "label", "answer", "corrected", "by", "split", "order"];
const MOST_CHOICES = 50;
const by = (id) => document.getElementById(id);
const classOf = new Map(classes.map((one) => [one.id, one]));
const rowOf = new Map(photos.map((one, row) => [one.photo, row]));
const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const searched = classes.map((one) => plain([one.id, one.name, ...one.common].join(" ")));
let answers = {}; // by photo: { answer, corrected, by }
let at = 0; // the photo that is shown
let [choices, chosen] = [[], 0]; // classes that the search shows, and which of them Enter takes

const say = (text) => { by("said").textContent = text; };
const element = (tag, text, ...children) => {
  const node = document.createElement(tag);
  node.append(...[text].filter((one) => one !== ""), ...children);
  return node;
};

function remembered(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    say("This browser keeps nothing: save the answers before you close the page.");
  }
}

/** A class as people read it: its scientific name, then other names and its id. */
function described(one) {
  const also = [...one.common, ...(one.id === one.name ? [] : [one.id])];
  return [element("i", one.name), ...(also.length ? [element("small", also.join(", "))] : [])];
}

function show(row) {
  at = Math.min(Math.max(row, 0), photos.length - 1);
  const { photo, label, split, src, fault, set, others } = photos[at];
  by("place").textContent = `Photo ${at + 1} of ${photos.length}`;
  by("path").textContent = `${photo} (${split})`;
  by("photo").hidden = !src;
  if (src) by("photo").src = src;
  by("photo").alt = `Photo ${at + 1}`;
  by("unseen").hidden = Boolean(src);
  by("unseen").textContent = fault ?? "";
  const one = classOf.get(label);
  const lines = { called: one.common[0], scientific: one.name, also: one.id === one.name ? "" : one.id };
  by("label").replaceChildren(...Object.entries(lines).filter(([, text]) => text).map(([name, text]) => {
    const line = element("p", text);
    line.className = name;
    return line;
  }));
  by("others").hidden = !others.length;
  by("others").textContent = `Answers so far: ${others.join("; ")}`;
  by("set").hidden = !set.length;
  by("members").replaceChildren(...set.map((id, place) => {
    const member = classOf.get(id);
    const node = element("button", "", ...described(member));
    node.type = "button";
    node.disabled = member.outside; // a class of the network that the data lack
    node.addEventListener("click", () => choose(id));
    const digit = element("kbd", `${place + 1}`);
    digit.ariaHidden = "true";
    if (place < 9) node.querySelector("i").after(digit);
    return element("li", "", node);
  }));
  correcting(false);
  mark();
}

/** Show which answer the photo has, and how many photos have one. */
function mark() {
  const { answer, corrected } = answers[photos[at].photo] ?? {};
  const pressed = { right: answer === "confirmed", wrong: answer === "corrected", undecided: answer === "undecided" };
  for (const [id, on] of Object.entries(pressed)) by(id).setAttribute("aria-pressed", on);
  const shows = answer === "confirmed" ? photos[at].label : corrected;
  [...by("members").querySelectorAll("button")].forEach((node, place) => {
    node.setAttribute("aria-pressed", photos[at].set[place] === shows);
  });
  if (answer === "corrected" && by("correction").hidden) say(`Your answer: ${classOf.get(corrected)?.name}.`);
  const count = photos.filter((one) => one.photo in answers).length;
  by("count").textContent = `${count} of ${photos.length} photos answered`;
}

function give(answer, corrected = "") {
  answers[photos[at].photo] = { answer, corrected, by: by("by").value.trim() };
  remember(key, answers);
  const words = { confirmed: "Right", undecided: "Undecided", corrected: `Corrected to ${classOf.get(corrected)?.name}` };
  advance(`Photo ${at + 1}: ${words[answer]}.`, at + 1);
}

/** Go to the next photo without an answer. */
function advance(text, from) {
  const rows = photos.map((_, step) => (from + step) % photos.length);
  const next = rows.find((row) => !(photos[row].photo in answers));
  show(next ?? at);
  say(next === undefined ? `${text} Every photo has an answer: save them.` : `${text} Now photo ${next + 1}: ${classOf.get(photos[next].label).name}.`);
}

const choose = (id) => (id === photos[at].label ? give("confirmed") : give("corrected", id));

/** Open or close the search for the right class. */
function correcting(open) {
  const within = by("correction").contains(document.activeElement);
  by("correction").hidden = !open;
  by("wrong").setAttribute("aria-expanded", open);
  by("search").value = "";
  if (!open && within) by("wrong").focus(); // not lost with what had it
  if (!open) return;
  by("search").focus();
  filter();
}

function filter() {
  const words = plain(by("search").value).split(/\s+/);
  const hits = classes.filter((one, place) => !one.outside && words.every((word) => searched[place].includes(word)));
  choices = hits.slice(0, MOST_CHOICES);
  by("choices").replaceChildren(...choices.map((one, place) => {
    const node = element("li", "", ...described(one));
    node.id = `choice-${place}`;
    node.role = "option";
    node.addEventListener("click", () => choose(one.id));
    return node;
  }));
  const more = hits.length - choices.length ? `and ${hits.length - choices.length} more: type on` : "";
  by("more").textContent = hits.length ? more : "No class is called so.";
  highlight(0);
}

function highlight(place) {
  chosen = Math.min(Math.max(place, 0), choices.length - 1);
  [...by("choices").children].forEach((node, row) => node.setAttribute("aria-selected", row === chosen));
  by("choices").children[chosen]?.scrollIntoView({ block: "nearest" });
  by("search").setAttribute("aria-activedescendant", choices.length ? `choice-${chosen}` : "");
}

// Spreadsheets run a cell that begins so; a quote before it makes it text.
const RUNS = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
function cell(text) {
  const safe = RUNS.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",;\t\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save() {
  const name = by("by").value.trim();
  if (!name) {
    by("by").focus();
    return say("Enter your name or initials first: the file says who answered.");
  }
  const rows = photos.filter((one) => one.photo in answers).map((one) => {
    const answer = answers[one.photo];
    return [one.photo, one.label, answer.answer, answer.corrected, answer.by || name, one.split, one.order];
  });
  const text = [COLUMNS, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `review-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return say(`Saved ${rows.length} answers as ${link.download}.`);
}

/** The cells of a CSV; Excel saves semicolons where a comma is the decimal sign. */
function parse(text) {
  const [head] = text.split("\n", 1);
  const mark = [",", ";", "\t"].reduce((a, b) => (head.split(b).length > head.split(a).length ? b : a));
  const rows = [[]];
  const cells = new RegExp(`(?:"((?:[^"]|"")*)"|([^"${mark}\\n]*))(${mark}|\\n|$)`, "g");
  for (const [, quoted, bare, end] of text.replace(/^\ufeff/, "").replaceAll("\r\n", "\n").matchAll(cells)) {
    rows.at(-1).push(quoted === undefined ? bare : quoted.replaceAll('""', '"'));
    if (end !== mark) rows.push([]);
  }
  const plainText = (text) => (text.startsWith("'") && RUNS.test(text) ? text.slice(1) : text);
  return rows.filter((row) => row.length > 1).map((row) => row.map(plainText));
}

function take(text) {
  const [head = [], ...rows] = parse(text);
  if (COLUMNS.slice(0, -1).some((name) => !head.includes(name))) return say(`This is no file of answers: it needs the columns ${COLUMNS.slice(0, -1).join(", ")}.`);
  let count = 0;
  for (const row of rows) {
    const { photo, label, answer, corrected, by } = Object.fromEntries(head.map((name, place) => [name, row[place] ?? ""]));
    const place = rowOf.get(photo);
    const right = answer === "corrected" ? classOf.get(corrected)?.outside === false : corrected === "";
    if (place === undefined || photos[place].label !== label || !right || !["confirmed", "corrected", "undecided"].includes(answer)) continue;
    answers[photo] = { answer, corrected, by };
    count += 1;
  }
  remember(key, answers);
  return advance(`${count} of ${rows.length} answers loaded, which are of these photos and labels.`, 0);
}

const ACTIONS = {
  y: () => give("confirmed"),
  n: () => correcting(true),
  u: () => give("undecided"),
  o: () => advance("", at + 1),
  ArrowLeft: () => { say(""); show(at - 1); },
  ArrowRight: () => { say(""); show(at + 1); },
};
const BUTTONS = { right: "y", undecided: "u", open: "o", previous: "ArrowLeft", next: "ArrowRight" };
for (const [id, name] of Object.entries(BUTTONS)) by(id).addEventListener("click", ACTIONS[name]);
by("wrong").addEventListener("click", () => correcting(by("correction").hidden));

document.addEventListener("keydown", (event) => {
  if (event.target === by("search")) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) highlight(chosen + moves[event.key]);
    else if (event.key === "Enter" && choices.length) choose(choices[chosen].id);
    else if (event.key === "Escape") correcting(false);
    else return;
    event.preventDefault();
  } else if (by("keys").checked && !event.target.matches("input[type=text]") && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const member = /^[1-9]$/.test(event.key) ? by("members").querySelectorAll("button")[event.key - 1] : null;
    const action = member ? () => member.click() : ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
});

by("search").addEventListener("input", filter);
by("save").addEventListener("click", save);
by("load").addEventListener("click", () => by("file").click());
by("file").addEventListener("change", async () => {
  const [file] = by("file").files;
  if (file) take(await file.text());
  by("file").value = ""; // so that the same file may be loaded again
});
by("by").addEventListener("change", () => remember("florilege-review-by", by("by").value));
by("keys").addEventListener("change", () => {
  remember("florilege-review-keys", by("keys").checked);
  document.body.classList.toggle("no-keys", !by("keys").checked);
});

by("data").textContent = data;
by("by").value = remembered("florilege-review-by", "");
by("keys").checked = remembered("florilege-review-keys", true);
document.body.classList.toggle("no-keys", !by("keys").checked);
answers = remembered(key, {});
show(Math.max(photos.findIndex((one) => !(one.photo in answers)), 0));
