// What the page holds: a table of contents that is read at once, and blocks of groups that are read when they are
// looked at. A block is a gzip of several Arrow streams, each behind its name.

import { readStream, records, value } from "./arrow.js";

// The whole document: its blocks come after the script that paints what is above them.
const whole = new Promise((done) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", done);
  else done();
});

async function bytesOf(id) {
  // An element that is there may still be growing: only what stands above this script is whole before all is.
  if (id !== "contents") await whole;
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function tablesOf(id) {
  const buffer = await bytesOf(id);
  const view = new DataView(buffer);
  const tables = {};
  for (let at = 0; at < buffer.byteLength; ) {
    const name = new TextDecoder().decode(new Uint8Array(buffer, at + 8, view.getUint32(at, true)));
    const begin = at + 8 + view.getUint32(at, true);
    const end = begin + view.getUint32(at + 4, true);
    tables[name] = readStream(buffer.slice(begin, end));
    at = end;
  }
  return tables;
}

export class Run {
  static async open() {
    const run = new Run();
    run.about = JSON.parse(document.getElementById("about").textContent);
    const tables = await tablesOf("contents");
    run.iterations = records(tables.iterations);
    run.metrics = records(tables.metrics);
    run.groups = records(tables.groups);
    run.group = new Map(run.groups.map((group) => [group.group_id, group]));
    run.vocabulary = new Map();
    run.special = new Set();
    const { token, text, special } = tables.vocabulary.columns;
    for (let row = 0; row < tables.vocabulary.rows; row++) {
      run.vocabulary.set(token.values[row], value(text, row));
      if (special.values[row]) run.special.add(token.values[row]);
    }
    run.blocks = new Map();
    return run;
  }

  // The tables of a block, read once.
  block(number) {
    if (!this.blocks.has(number)) this.blocks.set(number, tablesOf(`block-${number}`));
    return this.blocks.get(number);
  }

  // The text of each token. Bytes of a letter that several tokens make stand with the last of them.
  pieces(tokens) {
    if (this.vocabulary.size === 0) return Array.from(tokens, (token) => `${token} `);
    const decoder = new TextDecoder();
    const made = new Array(tokens.length);
    for (let row = 0; row < tokens.length; row++) {
      const bytes = this.vocabulary.get(tokens[row]);
      made[row] = bytes === undefined || bytes === null ? `⟨${tokens[row]}⟩` : decoder.decode(bytes, { stream: true });
    }
    const rest = decoder.decode();
    if (tokens.length) made[tokens.length - 1] += rest;
    return made;
  }

  text(tokens) {
    return this.pieces(tokens).join("");
  }

  word(column, code) {
    return this.about.codes[column]?.[code] ?? "unknown";
  }

  recipe(iteration) {
    return this.about.recipes[this.about.recipe_of[String(iteration)]] ?? null;
  }
}

// Rows of a column of ids as a map from an id to its rows.
export function rowsBy(column) {
  const found = new Map();
  column.values.forEach((id, row) => {
    if (!found.has(id)) found.set(id, []);
    found.get(id).push(row);
  });
  return found;
}
