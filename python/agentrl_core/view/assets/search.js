// Finds a text anywhere in the run: tasks first, then the tokens of every group, which are read while nobody waits.

import { value } from "./arrow.js";
import { h, number, show, visible } from "./dom.js";

const MOST = 60;
const AROUND = 36;

// The texts of the nodes of a block, one behind the other.
class Indexed {
  constructor(run, tables) {
    const { node_id: id, group_id: group, tokens } = tables.nodes.columns;
    const texts = [];
    this.starts = new Float64Array(tables.nodes.rows);
    this.nodes = id.values;
    this.groups = group.values;
    let at = 0;
    for (let row = 0; row < tables.nodes.rows; row++) {
      const text = run.text(value(tokens, row));
      this.starts[row] = at;
      at += text.length + 1;
      texts.push(text);
    }
    this.text = texts.join("\u0000");
    this.lower = this.text.toLowerCase();
    // Letters whose small form is longer would shift what is found.
    if (this.lower.length !== this.text.length) this.lower = this.text;
  }

  // Places of a text, one for each node.
  *find(wanted) {
    let at = this.lower.indexOf(wanted);
    while (at >= 0) {
      let [low, high] = [0, this.starts.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.starts[middle] <= at) low = middle;
        else high = middle - 1;
      }
      yield { node: this.nodes[low], group: this.groups[low], inside: at - this.starts[low], around: this.text.slice(Math.max(this.starts[low], at - AROUND), at + wanted.length + AROUND).split("\u0000")[0], before: Math.min(AROUND, at - this.starts[low]) };
      const next = low + 1 < this.starts.length ? this.starts[low + 1] : Infinity;
      if (next === Infinity) return;
      at = this.lower.indexOf(wanted, next);
    }
  }
}

export class Search {
  constructor(run) {
    this.run = run;
    this.indexed = [];
    this.blocks = [...new Set(run.groups.map((group) => group.block).filter((block) => block >= 0))];
    this.ready = this.read();
  }

  async read() {
    for (const block of this.blocks) {
      this.indexed.push(new Indexed(this.run, await this.run.block(block)));
      await new Promise((done) => setTimeout(done, 0));
    }
  }

  // What holds a text: places in tasks and in nodes, and how many nodes there are in all.
  find(text) {
    const wanted = text.toLowerCase();
    if (wanted === "") return { tasks: [], nodes: [], count: 0 };
    const tasks = this.run.groups.filter((group) => (group.task_id ?? "").toLowerCase().includes(wanted) || String(group.group_id) === wanted);
    const nodes = [];
    let count = 0;
    for (const each of this.indexed) {
      for (const place of each.find(wanted)) {
        count++;
        if (nodes.length < MOST) nodes.push(place);
      }
    }
    return { tasks: tasks.slice(0, 8), nodes, count };
  }
}

export function searchBox(search, go) {
  const list = h("ol", { class: "found", hidden: true });
  const input = h("input", { type: "search", placeholder: "Search tasks and texts", "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
  const look = () => {
    const began = performance.now();
    const found = search.find(input.value);
    list.hidden = input.value === "";
    const open = (to) => {
      list.hidden = true;
      input.blur();
      go(to);
    };
    const entry = (to, ...children) => h("li", { tabindex: 0, onclick: () => open(to), onkeydown: (event) => event.key === "Enter" && open(to) }, children);
    const missing = search.blocks.length - search.indexed.length;
    show(list,
      found.tasks.map((group) => entry({ group: group.group_id }, h("b", {}, `group ${group.group_id}`), ` ${visible(group.task_id ?? "")}`)),
      found.nodes.map((place) => entry({ group: place.group, node: place.node, inside: place.inside }, h("b", {}, `group ${place.group}`), " ",
        visible(place.around.slice(0, place.before)), h("mark", {}, visible(place.around.slice(place.before, place.before + input.value.length))), visible(place.around.slice(place.before + input.value.length)))),
      h("li", { class: "count" }, `${number(found.count)} places in texts${missing ? `, ${number(missing)} blocks are still being read` : ""}`));
    input.dataset.milliseconds = (performance.now() - began).toFixed(2);
  };
  input.addEventListener("input", look);
  input.addEventListener("focus", () => input.value && look());
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      list.hidden = true;
      input.blur();
    } else if (event.key === "Enter") list.querySelector("li[tabindex]")?.click();
    else if (event.key === "ArrowDown") list.querySelector("li[tabindex]")?.focus();
    else return;
    event.preventDefault();
  });
  list.addEventListener("keydown", (event) => {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (next) {
      document.activeElement[next]?.focus();
      event.preventDefault();
    }
  });
  document.addEventListener("click", (event) => !event.composedPath().includes(box) && (list.hidden = true));
  const box = h("div", { class: "search", role: "search" }, input, h("kbd", {}, "/"), list);
  return { box, input };
}
