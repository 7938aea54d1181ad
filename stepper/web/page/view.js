// The page of `stepper view`. Whatever comes of a notebook is put in as text, never as markup.
"use strict";
const $ = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search).get("notebook") || "";
const S = { project: { notebooks: [] }, status: null, cells: [], runs: [], live: null, day: "", follow: true, said: "" };
const cards = new Map();
const SIGNS = { stale: "~", done: "✓", failed: "✗", doubted: "?", skipped: "–", running: "▶", pending: "·", interrupted: "■", changed: "≠",
  ok: "✓", error: "✗", stopped: "■", complete: "✓", failing: "✗", ready: "·" };
const WORDS = { error: "failed", timeout: "over its deadline", memory: "out of memory", kernel_died: "kernel died", cancelled: "interrupted" };
let shift = 0; // what the server's clock is ahead of ours, in milliseconds

// --- small tools
function h(tag, given = {}, ...inner) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inner.filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}
function s(tag, given = {}, ...inner) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...inner);
  return made;
}
const sign = (status) => h("span", { class: `sign ${status}`, "aria-hidden": "true" }, SIGNS[status] || "·");
const took = (sec) => sec < 10 ? `${sec.toFixed(2)} s` : sec < 600 ? `${sec.toFixed(0)} s` : sec < 36000 ? `${(sec / 60).toFixed(0)} min` : `${(sec / 3600).toFixed(1)} h`;
const span = (sec) => sec >= 7200 && sec % 3600 === 0 ? `${sec / 3600} h` : sec >= 120 && sec % 60 === 0 ? `${sec / 60} min` : `${+sec.toFixed(1)} s`;
const clock = (at, more) => new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...more });
const dayOf = (at) => new Date(at).toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" });
const now = () => Date.now() + shift;
function age(ms) {
  const sec = Math.max(0, ms / 1000);
  return sec < 60 ? "just now" : sec < 3600 ? `${Math.floor(sec / 60)} min ago` : sec < 86400 ? `${Math.floor(sec / 3600)} h ago` : `${Math.floor(sec / 86400)} d ago`;
}
function link(path, more) {
  return `${path}?${new URLSearchParams({ notebook: S.status ? S.status.notebook : "", ...more })}`;
}
async function fetched(path, more) {
  const answer = await fetch(link(path, more));
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
function put(box, ...inner) { box.replaceChildren(...inner.filter((each) => each !== null && each !== "")); }
function same(box, told) { // whether a box shows that already
  const mark = JSON.stringify(told);
  if (box.shown === mark) return true;
  box.shown = mark;
  return false;
}
function copies(text, from) { // what it says, or what another box does
  return h("button", { type: "button", class: from ? "copy" : null, "aria-label": from ? text : null, onclick: async (event) => {
    const button = event.currentTarget, told = from ? from.textContent : text;
    try { await navigator.clipboard.writeText(told); } catch { getSelection().selectAllChildren(from || button); return; }
    button.classList.add("copied");
    say(from ? "Copied" : `Copied: ${text}`);
    setTimeout(() => button.classList.remove("copied"), 1600);
  } }, from ? null : text);
}
function say(text) { if (text !== S.said) { S.said = text; $("announce").textContent = text; } }

// --- texts: a terminal's colours, Python's words, plain Markdown
function ansi(text) {
  const found = [], state = { f: "", b: false, i: false, u: false };
  const parts = text.split(/\x1b\[([\d;:]*)m/);
  parts.forEach((part, place) => {
    if (place % 2 === 0) {
      const plain = part.replace(/\x1b\[[\d;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b.|[\x00-\x08\x0b-\x1f\x7f]/g, "");
      if (!plain) return;
      const names = [state.f, state.b && "b", state.i && "i", state.u && "u"].filter(Boolean).join(" ");
      found.push(names ? h("span", { class: names }, plain) : plain);
      return;
    }
    const codes = part.split(/[;:]/).map(Number);
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at];
      if (code === 0) Object.assign(state, { f: "", b: false, i: false, u: false });
      else if (code === 1) state.b = true;
      else if (code === 3) state.i = true;
      else if (code === 4) state.u = true;
      else if (code === 22) state.b = false;
      else if (code === 23) state.i = false;
      else if (code === 24) state.u = false;
      else if (code >= 30 && code <= 37) state.f = code === 37 ? "" : `f${code - 30}`;
      else if (code >= 90 && code <= 97) state.f = code === 97 ? "" : `f${code === 90 ? 8 : code - 90}`;
      else if (code === 39) state.f = "";
      else if (code === 38 || code === 48) {
        const few = codes[at + 1] === 5, value = few ? codes[at + 2] : 0;
        if (code === 38) state.f = few ? hue(value) : nearest(codes.slice(at + 2, at + 5));
        at += few ? 2 : 4;
      }
    }
  });
  return found;
}
function hue(value) {
  if (value < 16) return value % 8 === 7 ? "" : `f${value === 8 ? 8 : value % 8}`;
  if (value > 231) return value > 250 ? "" : "f8";
  const rest = value - 16;
  return nearest([Math.floor(rest / 36), Math.floor(rest / 6) % 6, rest % 6].map((part) => part * 51));
}
function nearest(rgb) {
  const most = Math.max(...rgb), bits = rgb.map((part) => (part > most * 0.6 && most > 60 ? 1 : 0));
  const code = bits[0] + 2 * bits[1] + 4 * bits[2];
  return code === 7 || code === 0 ? "" : `f${code}`;
}
const TOKENS = /(#[^\n]*)|((?:\b[rRbBfFuU]{1,2})?(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\w.]*)/g;
function coloured(source) {
  const found = [];
  let from = 0;
  for (const token of source.matchAll(TOKENS)) {
    found.push(source.slice(from, token.index), h("span", { class: token[1] ? "c" : token[2] ? "s" : token[3] ? "k" : "n" }, token[0]));
    from = token.index + token[0].length;
  }
  return [...found, source.slice(from)];
}
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) =>
    part.startsWith("`") && part.length > 2 ? h("code", {}, part.slice(1, -1)) : part.startsWith("**") && part.length > 4 ? h("strong", {}, part.slice(2, -2)) : part);
}
function prose(text) {
  return text.split(/(```[\s\S]*?(?:```|$))|\n{2,}/).filter(Boolean).flatMap((block) => {
    if (block.startsWith("```")) return [h("pre", {}, h("code", {}, block.replace(/^```[^\n]*\n?|```$/g, "")))];
    const lines = block.trim().split("\n"), head = /^(#{1,6})\s+(.*)/.exec(lines[0]);
    const rest = head ? lines.slice(1) : lines, made = head ? [h(head[1].length > 2 ? "h3" : "h2", { class: head[1].length === 1 ? "top" : null }, ...inline(head[2]))] : [];
    if (!rest.join("").trim()) return made;
    const items = rest.every((line) => /^\s*([-*+]|\d+\.)\s/.test(line));
    return [...made, items ? h("ul", {}, ...rest.map((line) => h("li", {}, ...inline(line.replace(/^\s*([-*+]|\d+\.)\s+/, ""))))) : h("p", {}, ...inline(rest.join("\n")))];
  });
}

// --- a cell's outputs
function output(told, cell) {
  const where = link("output", { cell, n: told.n, v: told.v || "" });
  if (told.kind === "text") {
    const box = h("pre", { class: told.name, tabindex: "0" }, ...ansi(told.text));
    if (told.tail === undefined) return box;
    box.append(h("a", { href: where, target: "_blank", rel: "noopener" }, `\n… ${told.left.toLocaleString()} more characters in the notebook …\n`), ...ansi(told.tail));
    return box;
  }
  if (told.kind === "picture") return h("img", { src: where, alt: told.alt, loading: "lazy", decoding: "async", width: told.width || null, height: told.height || null });
  if (told.kind === "html") return h("iframe", { src: where, sandbox: "", loading: "lazy", title: "What the cell shows as HTML", height: told.lines * 26 + 20 });
  if (told.kind === "markdown") return h("div", { class: "prose" }, ...prose(told.text));
  if (told.kind === "table") return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, ...told.tables.map((each) => table(each, where)));
  if (told.kind === "widget") return h("div", {}, ...told.rows.map((row) => h("div", { class: "widget" }, row.label ? h("span", { class: "soft" }, row.label) : null,
    row.part !== undefined ? h("progress", { max: 1, value: Math.min(1, Math.max(0, row.part)), "aria-label": row.label || "progress" }) : null, h("span", { class: "num" }, row.text))));
  return h("div", { class: "words" }, told.text);
}
function table(told, where) {
  const line = (row) => h("tr", {}, ...row.map((each) => h(each.head ? "th" : "td", { colspan: each.colspan, rowspan: each.rowspan }, each.text)));
  return h("div", {}, h("table", {}, h("thead", {}, ...told.head.map(line)), h("tbody", {}, ...told.body.map(line))), told.left ? h("a", { class: "soft", href: where, target: "_blank", rel: "noopener" }, `… ${told.left.toLocaleString()} more rows in the notebook`) : null, told.foot.trim() ? h("div", { class: "soft" }, told.foot.trim()) : null);
}

// --- a cell
class Card {
  constructor(id, type) {
    Object.assign(this, { id, type, row: {}, near: false, mark: "", loading: false, tall: 0 });
    this.box = type === "code"
      ? h("article", { class: "cell", id: `cell-${id}`, tabindex: "-1" }, this.head = h("header"), this.source = h("pre", { class: "source", tabindex: "0" }), this.outputs = h("div", { class: "outputs" }), this.foot = h("div", { class: "foot" }))
      : h("div", { class: "prose", id: `cell-${id}` });
    this.box.card = this;
    nearby.observe(this.box);
  }
  update(row) {
    this.row = row;
    if (this.type === "code") this.about();
    if (row.mark !== this.mark) this.load();
  }
  look(near) {
    this.near = near;
    if (near) { this.load(); return; }
    if (this.type !== "code" || !this.mark) return;
    this.tall = this.outputs.offsetHeight; // far away it holds its place, and nothing else
    this.outputs.style.minHeight = `${this.tall}px`;
    this.mark = "";
    put(this.outputs);
  }
  async load() {
    if (!this.near || document.hidden || this.loading || this.mark === this.row.mark) return;
    this.loading = true;
    const mark = this.row.mark;
    try {
      const told = await fetched("cell", { cell: this.id });
      if (this.near) { this.show(told); this.mark = mark; }
    } catch { setTimeout(() => this.load(), 1000); return; } finally { this.loading = false; }
    if (this.row.mark !== this.mark) setTimeout(() => this.load(), 100);
  }
  show(told) {
    if (this.type !== "code") {
      if (!same(this.box, told.source)) put(this.box, ...prose(told.source));
      this.box.classList.toggle("said", this.box === $("cells").firstChild && this.box.textContent === $("title").textContent); // the page says it already
      return;
    }
    if (!same(this.source, told.source)) {
      put(this.source, h("code", {}, ...coloured(told.source)));
      this.source.classList.toggle("long", told.source.split("\n").length > 16);
    }
    const box = this.outputs, ended = [...box.querySelectorAll("pre")].map((each) => each.scrollHeight - each.scrollTop - each.clientHeight < 30);
    told.outputs.forEach((each, place) => {
      const mark = JSON.stringify(each), before = box.children[place];
      if (before && before.shown === mark) return;
      const made = output(each, this.id);
      made.shown = mark;
      if (before) before.replaceWith(made); else box.append(made);
    });
    while (box.children.length > told.outputs.length) box.lastChild.remove();
    box.style.minHeight = "";
    if (this.running) [...box.querySelectorAll("pre")].forEach((each, place) => { if (ended[place] !== false) each.scrollTop = each.scrollHeight; });
  }
  get running() { return Boolean(S.live && S.live.running && S.live.running.cell === this.id); }
  about() {
    const status = S.status, runs = S.runs.filter((run) => run.cell === this.id), last = runs[runs.length - 1];
    const step = status.steps.find((each) => each.cell === this.id), stale = status.marks[this.id], stop = status.stop;
    const stands = this.running ? "running" : step && step.status !== "pending" ? step.status : last ? (last.fine ? "done" : last.outcome === "cancelled" ? "interrupted" : "failed") : "pending";
    const told = [stands, step, last, runs.length, stale, this.row.doubts, stop && stop.cell === this.id, this.row.number];
    if (same(this.head, told)) return;
    this.box.className = `cell ${stands}${stop && stop.cell === this.id ? " stopped" : ""}`;
    const failed = runs.filter((run) => !run.fine).length;
    put(this.head, sign(stands), h("h3", {}, step ? `${step.id}. ${step.title}` : `Cell ${this.row.number}`),
      h("span", { class: "told" }, step ? h("span", {}, `cell ${this.row.number}`) : null, runs.length > 1 ? h("span", {}, `run ${runs.length} times${failed ? `, ${failed} failed` : ""}`) : null,
        this.running ? h("span", { class: "clock num" }) : last ? h("span", { title: `run ${last.run}, ${new Date(last.at).toLocaleString()}` }, last.held ? "did not run (preflight check)" : took(last.took)) : h("span", {}, "not run"),
        !this.running && last && !last.fine ? h("span", {}, WORDS[last.outcome] || last.outcome) : null), copies("Copy the source", this.source));
    put(this.foot, ...this.below(runs, last, step, stale));
  }
  below(runs, last, step, stale) {
    const found = [];
    if (step && step.status === "doubted" && step.reason) found.push(h("p", { class: "doubt" }, `? its criterion ${step.reason}`));
    for (const doubt of this.row.doubts || []) found.push(h("p", { class: "doubt" }, `? ${doubt}`));
    if (stale) found.push(h("p", { class: "stale" }, `≠ ${stale}`));
    if (last && !this.running) {
      const report = h("details", { ontoggle: (event) => event.target.open && this.report(event.target, last.run) }, h("summary", {}, "Report"));
      if (!last.fine && S.status.last === last.run) report.open = true;
      found.push(report);
    }
    if (runs.length > 1) {
      const rows = runs.slice(-50).reverse().map((run) => h("li", {}, sign(run.fine ? "ok" : "error"), h("button", { type: "button", onclick: (event) => this.attempt(event.currentTarget, run) },
        `run ${run.run} · ${dayOf(run.at)} ${clock(run.at, { second: "2-digit" })} · ${run.held ? "did not run (preflight check)" : took(run.took)}${run.why ? ` · ${run.why}` : ""}`)));
      found.push(h("details", {}, h("summary", {}, `Attempts: ${runs.length}`), h("ol", {}, ...rows)));
    }
    return found;
  }
  async report(box, run) {
    if (box.children.length > 1) return;
    const told = await fetched("run", { run });
    if (box.children.length < 2) box.append(h("pre", { tabindex: "0" }, told.report || "No report of this run is in the journal."));
  }
  async attempt(button, run) {
    if (button.nextSibling) { while (button.nextSibling) button.nextSibling.remove(); return; }
    const told = await fetched("run", { run: run.run });
    button.after(h("pre", { tabindex: "0" }, h("code", {}, ...coloured(told.source || "what ran then is not in the journal"))), h("pre", { tabindex: "0" }, told.report || "no report"));
  }
}
const nearby = new IntersectionObserver((seen) => seen.forEach((each) => each.target.card.look(each.isIntersecting)), { rootMargin: "900px 0px" });
document.addEventListener("visibilitychange", () => { if (!document.hidden) cards.forEach((card) => card.load()); });

function drawCells() {
  const box = $("cells"), there = new Set(S.cells.map((row) => row.id));
  for (const [id, card] of cards) if (!there.has(id)) { nearby.unobserve(card.box); card.box.remove(); cards.delete(id); }
  S.cells.forEach((row, place) => {
    let card = cards.get(row.id);
    if (card && card.type !== row.type) { nearby.unobserve(card.box); card.box.remove(); card = null; }
    if (!card) cards.set(row.id, card = new Card(row.id, row.type));
    if (box.children[place] !== card.box) box.insertBefore(card.box, box.children[place] || null);
    card.update(row);
  });
}

// --- the side, the head, the notices
function drawSide() {
  const { project, status } = S;
  if (status && !same($("plan"), [status.steps, status.marks, status.off_plan])) {
    const over = status.steps.filter((each) => each.status === "done").length;
    const skipped = status.steps.filter((each) => each.status === "skipped").length;
    $("far").textContent = status.steps.length ? `${over} of ${status.steps.length}${skipped ? `, ${skipped} skipped` : ""}` : "";
    put($("plan"), ...status.steps.map((step) => h("li", {}, h("a", { href: step.cell ? `#cell-${step.cell}` : null, "aria-current": step.status === "running" ? "step" : null, title: step.criterion || null },
      sign(step.status), h("span", {}, step.title, h("span", { class: "unseen" }, `: ${step.status}`)), notes(step) ? h("small", {}, notes(step)) : null))),
      ...status.off_plan.map((cell) => h("li", {}, h("a", { href: `#cell-${cell.cell}` },
        sign(cell.status), h("span", {}, `cell ${cell.number}`, h("span", { class: "unseen" }, `: ${cell.status}`)), h("small", {}, `outside the plan · ${cell.status === "pending" ? "not run" : cell.status}`)))));
    $("planned").parentNode.hidden = !status.steps.length;
  }
  const here = status && status.notebook;
  if (!same($("shelf"), [project.notebooks, here])) {
    put($("shelf"), ...project.notebooks.map((row) => h("li", {}, h("a", { href: `/?${new URLSearchParams({ notebook: row.notebook })}`, "aria-current": row.notebook === here ? "page" : null, title: row.notebook },
      sign(row.running ? "running" : row.state), h("span", {}, row.notebook.replace(/^.*\//, "").replace(/\.ipynb$/, "")),
      h("small", {}, [row.of ? `${row.done} of ${row.of}${row.skipped ? `, ${row.skipped} skipped` : ""}` : row.runs ? `${row.runs} runs` : "not run", row.state !== "ready" ? row.state : "", row.notebook === project.current ? "current" : "", age(now() - row.changed * 1000)].filter(Boolean).join(" · "))))));
  }
}
function notes(step) {
  const found = [];
  if (step.retries) found.push(`${step.retries} ${step.retries === 1 ? "retry" : "retries"}`);
  if (["doubted", "changed", "interrupted", "skipped"].includes(step.status)) found.push({ doubted: "its criterion is false", changed: "changed since it ran" }[step.status] || step.status);
  if (step.cell && S.status.marks[step.cell]) found.push("stale");
  if (step.criterion && step.status !== "done") found.push(step.criterion);
  if (step.reason && step.status === "skipped") found.push(step.reason);
  return found.join(" · ");
}
function drawHead() {
  const { status, live } = S;
  const name = status.notebook, state = live && live.running ? "running" : status.state;
  $("title").textContent = status.title || name.replace(/^.*\//, "").replace(/\.ipynb$/, "");
  $("state").textContent = state === "gone" ? "the file is gone" : state;
  $("state").className = `pill ${state}`;
  const over = status.steps.filter((each) => each.status === "done").length;
    const skipped = status.steps.filter((each) => each.status === "skipped").length;
  document.title = `${SIGNS[state] || "·"} ${status.steps.length ? `${over}/${status.steps.length}${skipped ? `, ${skipped} skipped` : ""} ` : ""}${$("title").textContent} – stepper`;
  const facts = [["file", name]];
  if (live) {
    facts.push(["kernel", [live.waits ? `waits: ${live.waits}` : live.state === "none" ? "none" : live.state, live.pid ? `pid ${live.pid}` : "", live.where].filter(Boolean).join(", ")]);
    if (live.memory) facts.push(["memory", `${live.memory.toLocaleString()} MB`]);
    if (status.started && live.state !== "none") facts.push(["age", `${age(now() - new Date(status.started)).replace(" ago", "")}, since ${dayOf(status.started) === dayOf(now()) ? "" : `${dayOf(status.started)}, `}${clock(status.started)}`]);
    if (live.left) facts.push(["walltime left", took(live.left)]);
  }
  const last = status.verified;
  if (last) facts.push(["verified", `${age(now() - new Date(last.at))}: ${last.reproduces ? "reproduces" : "does not reproduce"} (${last.text})${last.holds ? "" : "; changed since"}`]);
  if (!same($("facts"), facts)) put($("facts"), ...facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}
function drawNotices() {
  const { status, live, project } = S, stop = status.stop, found = [];
  const stale = Object.keys(status.marks).length;
  const told = [stop, status.trouble, status.daemon, status.lost, live && live.trouble, stale, project.trouble, S.broken];
  if (same($("notices"), told)) return;
  if (S.broken) found.push(h("p", { class: "note warn" }, S.broken));
  if (stop) {
    const lines = stop.block.split("\n").slice(1).map((line) => line.split(/: (.*)/)).filter((parts) => parts.length > 1 && parts[0] !== "The agent asks");
    found.push(h("div", { class: "stop" }, h("h2", {}, stop.block.split("\n")[0].replace("❌", "✗")), stop.question ? h("p", { class: "asks" }, `The agent asks: ${stop.question}`) : null,
      h("dl", {}, ...lines.flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
      h("ul", { class: "ways" }, ...stop.ways.map((way) => h("li", {}, copies(way.command), h("span", { class: "soft" }, way.argument ? `${way.argument}: ${way.about}` : way.about))))));
  }
  if (stale) found.push(h("div", { class: "note warn ways" }, h("li", {}, copies(status.run_stale), h("span", {}, `${stale} ${stale === 1 ? "cell no longer follows" : "cells no longer follow"} from what stands above`))));
  for (const text of [status.state === "gone" ? "The notebook's file is gone; what ran is shown from the journal." : status.trouble, project.trouble, status.daemon && live && live.running ? `${status.daemon}; the kernel may go on by itself` : status.daemon && status.daemon.startsWith("the daemon") ? status.daemon : "", status.lost && `The kernel's state is lost: ${status.lost}`, live && live.trouble])
    if (text) found.push(h("p", { class: "note warn" }, text));
  put($("notices"), ...found);
}
function drawNow() {
  const live = S.live, run = live && live.running, box = $("now");
  box.hidden = !run;
  if (!run) return;
  const step = S.status.steps.find((each) => each.cell === run.cell);
  if (!same(box, [run.cell, run.timeout, step])) put(box, h("div", { class: "what" }, h("span", { class: "dot", "aria-hidden": "true" }), h("a", { href: run.cell ? `#cell-${run.cell}` : null }, step ? `Step ${step.id} of ${S.status.steps.length}: ${step.title}` : run.name),
    h("span", { class: "clock num" })), h("div", { class: "last mono" }), h("div", { class: "to" }));
  box.querySelector(".last").textContent = run.line.replace(/\x1b\[[\d;?]*[A-Za-z]/g, "");
  tick();
}
function tick() {
  const run = S.live && S.live.running;
  if (!run || !$("now").firstChild) return;
  const seconds = Math.max(0, (now() - run.at) / 1000), box = $("now");
  const told = seconds < 60 ? `${seconds.toFixed(1)} s` : seconds < 3600 ? `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")} min` : `${(seconds / 3600).toFixed(2)} h`;
  put(box.querySelector(".clock"), told, h("small", {}, run.timeout > 0 && run.timeout < 1e8 ? ` of ${span(run.timeout)}` : "", run.left ? `, about ${took(run.left)} left` : ""));
  box.querySelector(".to").style.width = `${Math.min(100, run.timeout > 0 ? (100 * seconds) / run.timeout : 0)}%`;
  const card = cards.get(run.cell), mine = card && card.head && card.head.querySelector(".clock");
  if (mine) mine.textContent = told;
}
setInterval(() => { if (!document.hidden) tick(); }, 100);

// --- the runs in time
function drawRuns() {
  const days = new Map();
  for (const run of S.runs) { const day = dayOf(run.at); days.set(day, [...(days.get(day) || []), run]); }
  const names = [...days.keys()], today = names[names.length - 1] || "";
  const day = days.has(S.day) ? S.day : today, live = S.live && S.live.running;
  $("line").hidden = !S.runs.length;
  if (!same($("days"), [names, day])) put($("days"), ...(names.length > 1 ? names.slice(-8).reverse().map((each) => h("button", { type: "button", "aria-pressed": String(each === day), onclick: () => { S.day = each; drawRuns(); } }, each)) : []));
  const runs = days.get(day) || [], status = S.status;
  if (same($("lanes"), [day, runs.length, runs.length && runs[0].run, status.steps.map((each) => [each.id, each.title, each.cell]), live && live.cell])) return;
  const numbers = new Map(S.cells.map((row) => [row.id, row.number]));
  const keys = status.steps.map((step) => [`s${step.id}`, `${step.id}. ${step.title}`]), known = new Set(keys.map(([key]) => key));
  const keyOf = (run) => (run.step && known.has(`s${run.step}`) ? `s${run.step}` : run.cell);
  const loose = [...new Set(runs.map(keyOf).filter((key) => !known.has(key)))].sort((a, b) => (numbers.get(a) || 1e9) - (numbers.get(b) || 1e9));
  for (const key of loose) keys.push([key, numbers.has(key) ? `cell ${numbers.get(key)}` : "a cell that is gone"]);
  const row = new Map(keys.map(([key], place) => [key, place])), bars = [], before = new Map();
  const wide = (run) => 5 + 9 * Math.log2(1 + run.took), all = runs.reduce((sum, run) => sum + wide(run) + 3, 60);
  const scale = Math.max(1, Math.min(3, ($("lanes").clientWidth - 200) / all));
  let x = 8, end = 0, labelled = -99, label = "";
  const axis = (at, place) => {
    const told = clock(at);
    if (place > labelled + 62 && told !== label) { bars.push(s("text", { x: place, y: 13 }, told)); labelled = place; label = told; }
  };
  for (const run of runs) {
    const at = +new Date(run.at), width = Math.min(160, scale * wide(run)), y = 20 + 20 * row.get(keyOf(run));
    if (end && at - end > 600000) { bars.push(s("line", { class: "gap", x1: x + 8, x2: x + 8, y1: 18, y2: 20 + 20 * keys.length })); x += 16; labelled = -99; }
    axis(at, x);
    const last = before.get(keyOf(run));
    if (last && !last.fine) bars.push(s("path", { class: "again", d: `M${last.x} ${y + 10} L${x} ${y + 10}` }));
    const bar = s("g", { class: `run ${run.fine ? "" : run.outcome === "cancelled" ? "stoppedby" : "bad"}` }, s("title", {}, document.createTextNode(`run ${run.run}, ${clock(run.at, { second: "2-digit" })}: ${run.held ? "did not run (preflight check)" : took(run.took)}, ${run.fine ? "ok" : run.why || run.outcome}`)), s("rect", { x, y: y + (run.held ? 7 : 4), width, height: run.held ? 6 : 12, rx: 2.5 }));
    bar.addEventListener("click", () => go(run.cell));
    bars.push(bar);
    before.set(keyOf(run), { x: x + width, fine: run.fine });
    x += width + 3 * scale;
    end = at + run.took * 1000;
  }
  if (live && day === today) {
    const step = status.steps.find((each) => each.cell === live.cell), place = row.get(step ? `s${step.id}` : live.cell);
    if (place !== undefined) bars.push(s("g", { class: "run now" }, s("rect", { x, y: 24 + 20 * place, width: 26, height: 12, rx: 2.5 })));
    x += 30;
  }
  const tall = 24 + 20 * keys.length, total = Math.max(x + 12, $("lanes").clientWidth - 175), svg = s("svg", { width: total, height: tall, role: "img", "aria-label": `${runs.length} runs on ${day}, ${runs.filter((run) => !run.fine).length} of them failed; the list below has them all` });
  keys.forEach((_, place) => svg.append(s("line", { class: "lane", x1: 0, x2: total, y1: 30 + 20 * place, y2: 30 + 20 * place })));
  svg.append(...bars);
  const strip = h("div", { class: "strip", tabindex: "0", role: "region", "aria-label": "Timeline of runs" }, svg);
  put($("lanes"), h("div", { class: "names", "aria-hidden": "true" }, ...keys.map(([, name]) => h("div", { title: name }, name))), strip);
  strip.scrollLeft = strip.scrollWidth;
  drawHistory();
}
function drawHistory() {
  if (!$("history").open) return;
  const rows = S.runs.slice(-200).reverse(), left = S.runs.length - rows.length, numbers = new Map(S.cells.map((row) => [row.id, row.number]));
  put($("ran"), h("thead", {}, h("tr", {}, ...["run", "started", "cell", "step", "took", "by", "outcome"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map((run) => h("tr", {}, ...[run.run, new Date(run.at).toLocaleString(), numbers.get(run.cell) || "–", run.step || "–", took(run.took), run.by || "–", run.why || run.outcome].map((each) => h("td", {}, String(each)))))), left ? h("caption", {}, `The last 200; ${left} earlier: stepper history`) : null);
}
$("history").addEventListener("toggle", drawHistory);

// --- going there, following
let spies = 0;
function spy() { // the step that is read, in the plan
  spies = 0;
  const tops = S.status ? S.status.steps.map((step) => [step.cell, cards.has(step.cell) ? cards.get(step.cell).box.getBoundingClientRect().top : Infinity]) : [];
  const read = tops.filter(([, top]) => top < innerHeight * 0.4).pop();
  for (const each of $("plan").querySelectorAll("a")) each.classList.toggle("here", Boolean(read) && each.hash === `#cell-${read[0]}`);
}
addEventListener("scroll", () => { spies = spies || requestAnimationFrame(spy); }, { passive: true });
function go(id) {
  const box = document.getElementById(`cell-${id}`);
  if (box) { box.scrollIntoView({ block: "start" }); box.focus({ preventScroll: true }); }
}
document.addEventListener("click", (event) => {
  const to = event.target.closest("a[href^='#cell-']");
  if (to) { event.preventDefault(); following(false); go(to.getAttribute("href").slice(6)); }
});
function following(on) {
  S.follow = on;
  $("follow").setAttribute("aria-pressed", String(on));
  $("follow").textContent = on ? "Following" : "Follow";
  if (on) follow();
}
function follow() {
  const run = (S.live && S.live.running) || S.runs[S.runs.length - 1], card = run && cards.get(run.cell);
  if (!S.follow || !card) return;
  card.box.scrollIntoView({ block: "nearest" });
  led = true;
}
let led = false; // what it shows, and what stands above that, grows: it stays in sight, until the person does something
new ResizeObserver(() => led && follow()).observe($("cells"));
for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"]) addEventListener(kind, () => { led = false; }, { passive: true });
$("follow").addEventListener("click", () => following(!S.follow));
for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => S.follow && following(false), { passive: true });
addEventListener("keydown", (event) => { if (["PageUp", "PageDown", "Home", "End"].includes(event.key)) following(false); });

// --- colours
function themed(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  $("theme").textContent = { light: "Light", dark: "Dark" }[name] || "Auto";
  $("theme").setAttribute("aria-label", `Colours: ${name || "as the system"}`);
  try { localStorage.setItem("theme", name); } catch { /* it holds for this page */ }
}
$("theme").addEventListener("click", () => themed({ "": "light", light: "dark", dark: "" }[document.documentElement.dataset.theme || ""]));
try { themed(localStorage.getItem("theme") || ""); } catch { themed(""); }

// --- what the server tells
let waits = 0;
function draw() { // once a frame, however much was told; of a page that is hidden, for its title
  if (!waits) waits = setTimeout(drawn, document.hidden ? 300 : 16);
}
function drawn() {
  waits = 0;
  drawSide();
  $("head").hidden = !S.status;
  if (!S.status) { if (S.told) empty(); return; }
  $("cells").classList.remove("none");
  drawHead(); drawNotices(); drawNow(); drawCells(); drawRuns(); announce(); spy();
  if (!S.cells.length) none("This notebook has no cells yet", "They appear here as the agent writes them, each run the moment it is written.");
}
function empty() {
  const there = S.project.notebooks.length;
  for (const id of ["notices", "now", "line"]) $(id).hidden = id !== "notices";
  put($("notices"), S.project.trouble ? h("p", { class: "note warn" }, S.project.trouble) : null);
  $("notices").shown = "";
  const lead = there ? "Choose one of the list, or begin another." : "Ask Claude Code for an analysis, or begin one yourself:";
  $("planned").parentNode.hidden = true;
  none(S.project.missing ? `There is no notebook ${S.project.missing}` : there ? "No notebook is current" : "No notebook is here yet", lead, S.project.new, S.project.notebooks.map((row) => row.notebook));
  document.title = "stepper";
}
function none(title, text, command, names = []) {
  if (same($("cells"), [title, text, names])) return;
  cards.clear();
  put($("cells"), h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), ...names.map((name) => h("p", {}, h("a", { href: `/?${new URLSearchParams({ notebook: name })}` }, name))), command ? h("ul", { class: "ways" }, h("li", {}, copies(command))) : null));
}
let before = null;
function announce() {
  const run = S.live && S.live.running, stop = S.status.stop, last = S.runs[S.runs.length - 1];
  const told = stop ? `Stopped: ${stop.error}` : run ? `${run.name} runs` : last ? `Run ${last.run} ${last.fine ? "ended well" : `failed: ${last.why}`}` : "";
  if (before !== null && told !== before) say(told);
  if (told !== before && (run || before !== null)) follow();
  before = told;
}
function connect() {
  const source = new EventSource(`events?${new URLSearchParams(asked ? { notebook: asked } : {})}`);
  const on = (name, work) => source.addEventListener(name, (event) => { work(JSON.parse(event.data)); draw(); });
  on("hello", (told) => { shift = told.now - Date.now(); S.broken = ""; $("project").textContent = told.project.replace(/^.*\//, ""); $("project").title = told.project; });
  on("project", (told) => { S.project = told; });
  on("status", (told) => {
    if (!told || !S.status || told.notebook !== S.status.notebook) { cards.forEach((card) => card.box.remove()); cards.clear(); put($("cells")); $("cells").shown = ""; S.cells = []; S.live = null; before = null; }
    S.status = told;
    S.told = true;
  });
  on("cells", (told) => { if ($("cells").querySelector(".empty")) { put($("cells")); $("cells").shown = ""; } S.cells = told; });
  on("live", (told) => { S.live = told; });
  on("runs", (told) => { S.runs = [...S.runs.slice(0, told.from), ...told.runs]; });
  source.onerror = () => {
    S.broken = "The view does not answer: it was ended, or is started again. `stepper view` opens it anew.";
    if (S.status) draw(); else put($("notices"), h("p", { class: "note warn" }, S.broken));
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}
following(true);
connect();
