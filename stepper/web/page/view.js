// The page of `stepper view`. The contents of a notebook are added as text, never as
// HTML.
//
// The server sends events with the parts of the page (`connect`). Each event updates
// `state`, and `draw` updates the elements with changed data.
"use strict";

const NO_DAEMON = "No daemon is running"; // the start of a text of the server
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const LONG_SOURCE_LINES = 16;
const NO_REPORT = "The journal contains no report of this run.";
const FOLLOW_MARGIN = 30; // pixels from the end of an output
const MAX_ATTEMPTS = 50; // in the list of a cell's attempts
const MAX_RUNS = 200; // in the list of runs
const MAX_DAYS = 8; // in the timeline
const COPIED_MS = 1600;
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

const requestedNotebook = new URLSearchParams(location.search).get("notebook") || "";
const state = {
  project: { notebooks: [] },
  // Tables from the server, by status or outcome.
  marks: {},
  stepNotes: {},
  cellNotes: {},
  outcomeNames: {},
  status: null,
  cells: [],
  runs: [],
  live: null,
  day: "", // the day that the timeline shows
  isFollowing: true,
  isConnected: false, // a status has arrived
  connectionError: "",
  announcement: "",
};
const cards = new Map(); // cell id → Card
let clockOffset = 0; // the server's time minus the browser's time, in milliseconds

// --- elements

function $(id) {
  return document.getElementById(id);
}

/** Create an HTML element. Attributes that start with "on" are event listeners. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(isPresent));
  return element;
}

/** Create an SVG element. */
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function isPresent(child) {
  return child !== null && child !== undefined && child !== "";
}

function replaceChildren(element, ...children) {
  element.replaceChildren(...children.filter(isPresent));
}

/** Record the data of an element. Return whether the element already shows the data. */
function recordShown(element, data) {
  const version = JSON.stringify(data);
  if (element.shownVersion === version) return true;
  element.shownVersion = version;
  return false;
}

/** Return the mark of a status. The default is the mark of `pending`. */
function getMark(status) {
  return state.marks[status] || state.marks.pending;
}

function markOf(status) {
  const attributes = { class: `sign ${status}`, "aria-hidden": "true" };
  return h("span", attributes, getMark(status));
}

function textLink(href, text) {
  return h("a", { href, target: "_blank", rel: "noopener" }, text);
}

/** Return a button that copies its own text, or the text of `source`. */
function copyButton(text, source) {
  const attributes = { type: "button", onclick: (event) => copy(event, text, source) };
  if (source) {
    return h("button", { ...attributes, class: "copy", "aria-label": text });
  }
  return h("button", attributes, text);
}

async function copy(event, text, source) {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(source ? source.textContent : text);
  } catch {
    getSelection().selectAllChildren(source || button);
    return;
  }
  button.classList.add("copied");
  announce(source ? "Copied" : `Copied: ${text}`);
  setTimeout(() => button.classList.remove("copied"), COPIED_MS);
}

/** Announce a text to users of screen readers. */
function announce(text) {
  if (text === state.announcement) return;
  state.announcement = text;
  $("announce").textContent = text;
}

// --- numbers and times

function formatDuration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 10 * MINUTE) return `${seconds.toFixed(0)} s`;
  if (seconds < 10 * HOUR) return `${(seconds / MINUTE).toFixed(0)} min`;
  return `${(seconds / HOUR).toFixed(1)} h`;
}

function formatElapsed(seconds) {
  if (seconds < MINUTE) return `${seconds.toFixed(1)} s`;
  if (seconds >= HOUR) return `${(seconds / HOUR).toFixed(2)} h`;
  const rest = String(Math.floor(seconds % MINUTE)).padStart(2, "0");
  return `${Math.floor(seconds / MINUTE)}:${rest} min`;
}

function formatTimeout(seconds) {
  if (seconds >= 2 * HOUR && seconds % HOUR === 0) return `${seconds / HOUR} h`;
  if (seconds >= 2 * MINUTE && seconds % MINUTE === 0) {
    return `${seconds / MINUTE} min`;
  }
  return `${+seconds.toFixed(1)} s`;
}

function formatTime(time, options) {
  return new Date(time).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
    ...options,
  });
}

function formatTimeWithSeconds(time) {
  return formatTime(time, { second: "2-digit" });
}

function formatDay(time) {
  const options = { year: "numeric", month: "short", day: "numeric" };
  return new Date(time).toLocaleDateString([], options);
}

/** Return the server's time in milliseconds. */
function getServerTime() {
  return Date.now() + clockOffset;
}

function formatAge(milliseconds) {
  const seconds = Math.max(0, milliseconds / 1000);
  if (seconds < MINUTE) return "just now";
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ago`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h ago`;
  return `${Math.floor(seconds / DAY)} d ago`;
}

function count(number, singular, plural) {
  return `${number} ${number === 1 ? singular : plural}`;
}

function formatProgress(done, total, skipped) {
  const text = `${done} of ${total}`;
  return skipped ? `${text}, ${skipped} skipped` : text;
}

function removeFolderAndSuffix(path) {
  return path.replace(/^.*\//, "").replace(/\.ipynb$/, "");
}

// --- requests

function makeAddress(path, parameters) {
  const notebook = state.status ? state.status.notebook : "";
  return `${path}?${new URLSearchParams({ notebook, ...parameters })}`;
}

async function fetchJson(path, parameters) {
  const response = await fetch(makeAddress(path, parameters));
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

// --- terminal colors, Python source, Markdown

const COLOR_CODES = /\x1b\[([\d;:]*)m/;
const OTHER_ESCAPES = new RegExp(
  [
    /\x1b\[[\d;?]*[A-Za-z]/.source,
    /\x1b\][^\x07\x1b]*(\x07|\x1b\\)?/.source,
    /\x1b[ -/]*[0-~]/.source,
    /[\x00-\x08\x0b-\x1f\x7f]/.source,
  ].join("|"),
  "g",
);
const PLAIN_STYLE = { color: "", bold: false, italic: false, underline: false };

/** Return a text with terminal escapes as text nodes and colored elements. */
function renderAnsi(text) {
  const nodes = [];
  const style = { ...PLAIN_STYLE };
  text.split(COLOR_CODES).forEach((part, index) => {
    if (index % 2 === 1) {
      applyColorCodes(style, part.split(/[;:]/).map(Number));
      return;
    }
    const plain = part.replace(OTHER_ESCAPES, "");
    if (!plain) return;
    const classes = getStyleClasses(style);
    nodes.push(classes ? h("span", { class: classes }, plain) : plain);
  });
  return nodes;
}

function getStyleClasses(style) {
  const classes = [
    style.color,
    style.bold && "b",
    style.italic && "i",
    style.underline && "u",
  ];
  return classes.filter(Boolean).join(" ");
}

function applyColorCodes(style, codes) {
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index];
    if (code === 38 || code === 48) {
      const isPalette = codes[index + 1] === 5;
      if (code === 38) {
        style.color = isPalette
          ? getPaletteColor(codes[index + 2])
          : getNearestColor(codes.slice(index + 2, index + 5));
      }
      index += isPalette ? 2 : 4;
    } else {
      applySimpleCode(style, code);
    }
  }
}

function applySimpleCode(style, code) {
  if (code === 0) Object.assign(style, PLAIN_STYLE);
  else if (code === 1) style.bold = true;
  else if (code === 3) style.italic = true;
  else if (code === 4) style.underline = true;
  else if (code === 22) style.bold = false;
  else if (code === 23) style.italic = false;
  else if (code === 24) style.underline = false;
  else if (code === 39) style.color = "";
  else if (code >= 30 && code <= 37) style.color = getPaletteColor(code - 30);
  else if (code >= 90 && code <= 97) style.color = getPaletteColor(code - 82);
}

/** Return the class of one of 256 colors. White is the default color. */
function getPaletteColor(value) {
  if (value < 16) {
    if (value % 8 === 7) return "";
    return value === 8 ? "f8" : `f${value % 8}`;
  }
  if (value > 231) return value > 250 ? "" : "f8";
  const index = value - 16;
  const levels = [Math.floor(index / 36), Math.floor(index / 6) % 6, index % 6];
  return getNearestColor(levels.map((level) => level * 51));
}

/** Return the class of the terminal color that is nearest to red, green and blue. */
function getNearestColor(rgb) {
  const brightest = Math.max(...rgb);
  const isOn = (part) => part > brightest * 0.6 && brightest > 60;
  const [red, green, blue] = rgb.map((part) => (isOn(part) ? 1 : 0));
  const code = red + 2 * green + 4 * blue;
  return code === 7 || code === 0 ? "" : `f${code}`;
}

const KEYWORDS = [
  "False None True and as assert async await break class continue def del elif else",
  "except finally for from global if import in is lambda match nonlocal not or pass",
  "raise return try while with yield",
].join(" ");
const TOKENS = new RegExp(
  [
    /(#[^\n]*)/.source,
    "((?:\\b[rRbBfFuU]{1,2})?(?:" +
      [
        /"""[\s\S]*?(?:"""|$)/.source,
        /'''[\s\S]*?(?:'''|$)/.source,
        /"(?:\\.|[^"\\\n])*"?/.source,
        /'(?:\\.|[^'\\\n])*'?/.source,
      ].join("|") +
      "))",
    `\\b(${KEYWORDS.replaceAll(" ", "|")})\\b`,
    /\b(\d[\w.]*)/.source,
  ].join("|"),
  "g",
);
// The classes of the groups of TOKENS: comments, strings, keywords, numbers.
const TOKEN_CLASSES = ["c", "s", "k", "n"];

/** Return Python source as text nodes and colored elements. */
function renderSource(source) {
  const nodes = [];
  let position = 0;
  for (const match of source.matchAll(TOKENS)) {
    const [token, ...groups] = match;
    const group = groups.findIndex(Boolean);
    const element = h("span", { class: TOKEN_CLASSES[group] }, token);
    nodes.push(source.slice(position, match.index), element);
    position = match.index + token.length;
  }
  nodes.push(source.slice(position));
  return nodes;
}

const INLINE_MARKUP = /(`[^`]+`|\*\*[^*]+\*\*)/;
const MARKDOWN_BLOCKS = /(```[\s\S]*?(?:```|$))|\n{2,}/;
const CODE_FENCE = /^```[^\n]*\n?|```$/g;
const HEADING = /^(#{1,6})\s+(.*)/;
const LIST_ITEM = /^\s*([-*+]|\d+\.)\s+/;
const NUMBERED_ITEM = /^\s*(\d+)\./;

/** Return a line of Markdown with its code and bold text. */
function renderInline(text) {
  return text.split(INLINE_MARKUP).map((part) => {
    if (part.startsWith("`") && part.length > 2) {
      return h("code", {}, part.slice(1, -1));
    }
    if (part.startsWith("**") && part.length > 4) {
      return h("strong", {}, part.slice(2, -2));
    }
    return part;
  });
}

/** Return simple Markdown as elements: headings, lists, code and paragraphs. */
function renderMarkdown(text) {
  const blocks = text.split(MARKDOWN_BLOCKS).filter(Boolean);
  return blocks.flatMap(renderMarkdownBlock);
}

function renderMarkdownBlock(block) {
  if (block.startsWith("```")) {
    const code = h("code", {}, block.replace(CODE_FENCE, ""));
    return [h("pre", {}, code)];
  }
  const elements = [];
  let lines = block.trim().split("\n");
  const heading = HEADING.exec(lines[0]);
  if (heading) {
    const [, { length: level }, title] = heading;
    const tag = level > 2 ? "h3" : "h2";
    const attributes = { class: level === 1 ? "top" : null };
    elements.push(h(tag, attributes, ...renderInline(title)));
    lines = lines.slice(1);
  }
  if (!lines.join("").trim()) return elements;
  if (lines.every((line) => LIST_ITEM.test(line))) {
    const items = lines.map((line) => {
      return h("li", {}, ...renderInline(line.replace(LIST_ITEM, "")));
    });
    const [, start] = NUMBERED_ITEM.exec(lines[0]) || [];
    elements.push(start ? h("ol", { start }, ...items) : h("ul", {}, ...items));
  } else {
    elements.push(h("p", {}, ...renderInline(lines.join("\n"))));
  }
  return elements;
}

// --- outputs

const OUTPUT_RENDERERS = {
  text: renderTextOutput,
  picture: renderImage,
  html: renderFrame,
  markdown: (output) => h("div", { class: "prose" }, ...renderMarkdown(output.text)),
  table: renderTables,
  widget: (output) => h("div", {}, ...output.rows.map(renderWidgetRow)),
};

/** Return the element for an output of a cell. */
function renderOutput(output, cell) {
  const address = makeAddress("output", { cell, n: output.n, v: output.v || "" });
  const renderer = OUTPUT_RENDERERS[output.kind];
  return renderer
    ? renderer(output, address)
    : h("div", { class: "words" }, output.text);
}

function renderTextOutput(output, address) {
  const attributes = { class: output.name, tabindex: "0" };
  const box = h("pre", attributes, ...renderAnsi(output.text));
  if (output.tail === undefined) return box;
  const omitted = `${output.left.toLocaleString()} more characters in the notebook`;
  box.append(textLink(address, `\n… ${omitted} …\n`), ...renderAnsi(output.tail));
  return box;
}

function renderImage(output, address) {
  return h("img", {
    src: address,
    alt: output.alt,
    loading: "lazy",
    decoding: "async",
    width: output.width || null,
    height: output.height || null,
  });
}

function renderFrame(output, address) {
  return h("iframe", {
    src: address,
    sandbox: "",
    loading: "lazy",
    title: "HTML output of the cell",
    height: output.lines * 26 + 20,
  });
}

function renderTables(output, address) {
  const attributes = {
    class: "wide",
    tabindex: "0",
    role: "region",
    "aria-label": "Table",
  };
  const tables = output.tables.map((table) => renderTable(table, address));
  return h("div", attributes, ...tables);
}

function renderTable(table, address) {
  const box = h(
    "div",
    {},
    h(
      "table",
      {},
      h("thead", {}, ...table.head.map(renderTableRow)),
      h("tbody", {}, ...table.body.map(renderTableRow)),
    ),
  );
  if (table.left) {
    const noun = table.left === 1 ? "more row" : "more rows";
    const omitted = `${table.left.toLocaleString()} ${noun} in the notebook`;
    const link = textLink(address, `… ${omitted}`);
    link.className = "soft";
    box.append(link);
  }
  const foot = table.foot.trim();
  if (foot) box.append(h("div", { class: "soft" }, foot));
  return box;
}

function renderTableRow(row) {
  const cells = row.map((cell) => {
    const attributes = { colspan: cell.colspan, rowspan: cell.rowspan };
    return h(cell.head ? "th" : "td", attributes, cell.text);
  });
  return h("tr", {}, ...cells);
}

function renderWidgetRow(row) {
  const box = h("div", { class: "widget" });
  if (row.label) box.append(h("span", { class: "soft" }, row.label));
  if (row.part !== undefined) {
    const value = Math.min(1, Math.max(0, row.part));
    const label = row.label || "progress";
    box.append(h("progress", { max: 1, value, "aria-label": label }));
  }
  box.append(h("span", { class: "num" }, row.text));
  return box;
}

// --- cells

/** A cell on the page. Contents are loaded only while the cell is near the screen. */
class Card {
  constructor(id, type) {
    this.id = id;
    this.type = type;
    this.row = {};
    this.isNear = false;
    this.isLoading = false;
    this.loadedMark = ""; // the mark of the contents that are shown
    this.reportedRun = null; // the latest run with a report in the journal
    this.box = type === "code" ? this.createCodeBox() : this.createTextBox();
    this.box.card = this;
    nearObserver.observe(this.box);
  }

  createCodeBox() {
    this.head = h("header");
    this.source = h("pre", { class: "source", tabindex: "0" });
    this.outputs = h("div", { class: "outputs" });
    this.foot = h("div", { class: "foot" });
    return h(
      "article",
      { class: "cell", id: `cell-${this.id}`, tabindex: "-1" },
      this.head,
      this.source,
      this.outputs,
      this.foot,
    );
  }

  createTextBox() {
    return h("div", { class: "prose", id: `cell-${this.id}` });
  }

  remove() {
    nearObserver.unobserve(this.box);
    this.box.remove();
  }

  update(row) {
    this.row = row;
    if (this.type === "code") this.drawHead();
    if (row.mark !== this.loadedMark) this.load();
  }

  /** Load the contents of a cell near the screen; otherwise, keep only the height. */
  setNear(isNear) {
    this.isNear = isNear;
    if (isNear) {
      this.load();
      return;
    }
    if (this.type !== "code" || !this.loadedMark) return;
    this.outputs.style.minHeight = `${this.outputs.offsetHeight}px`;
    this.loadedMark = "";
    replaceChildren(this.outputs);
  }

  async load() {
    const isCurrent = this.loadedMark === this.row.mark;
    if (!this.isNear || document.hidden || this.isLoading || isCurrent) return;
    this.isLoading = true;
    const mark = this.row.mark;
    try {
      const contents = await fetchJson("cell", { cell: this.id });
      if (this.isNear) {
        this.show(contents);
        this.loadedMark = mark;
      }
    } catch {
      setTimeout(() => this.load(), 1000);
      return;
    } finally {
      this.isLoading = false;
    }
    if (this.row.mark !== this.loadedMark) setTimeout(() => this.load(), 100);
  }

  show(contents) {
    if (this.type !== "code") {
      this.showText(contents.source);
      return;
    }
    if (!recordShown(this.source, contents.source)) {
      replaceChildren(this.source, h("code", {}, ...renderSource(contents.source)));
      const lineCount = contents.source.split("\n").length;
      this.source.classList.toggle("long", lineCount > LONG_SOURCE_LINES);
    }
    this.showOutputs(contents.outputs);
  }

  showText(source) {
    if (!recordShown(this.box, source)) {
      replaceChildren(this.box, ...renderMarkdown(source));
    }
    // The page shows the title of the notebook above the cells.
    const isFirst = this.box === $("cells").firstChild;
    const isTitle = this.box.textContent === $("title").textContent;
    this.box.classList.toggle("repeated", isFirst && isTitle);
  }

  showOutputs(outputs) {
    const box = this.outputs;
    const wasAtEnd = [...box.querySelectorAll("pre")].map((text) => {
      return text.scrollHeight - text.scrollTop - text.clientHeight < FOLLOW_MARGIN;
    });
    outputs.forEach((output, index) => {
      const version = JSON.stringify(output);
      const shown = box.children[index];
      if (shown && shown.shownVersion === version) return;
      const element = renderOutput(output, this.id);
      element.shownVersion = version;
      if (shown) shown.replaceWith(element);
      else box.append(element);
    });
    while (box.children.length > outputs.length) box.lastChild.remove();
    box.style.minHeight = "";
    if (!this.isRunning) return;
    box.querySelectorAll("pre").forEach((text, index) => {
      if (wasAtEnd[index] !== false) text.scrollTop = text.scrollHeight;
    });
  }

  get isRunning() {
    const running = getRunningCell();
    return Boolean(running) && running.cell === this.id;
  }

  getStatus(step, lastRun) {
    if (this.isRunning) return "running";
    if (step && step.status !== "pending") return step.status;
    if (!lastRun) return "pending";
    if (lastRun.fine) return "done";
    return lastRun.outcome === "cancelled" ? "interrupted" : "failed";
  }

  /** Draw the header, and the notes below the outputs. */
  drawHead() {
    const { steps, marks, indirect, stop } = state.status;
    const runs = state.runs.filter((run) => run.cell === this.id);
    const lastRun = runs[runs.length - 1];
    const step = steps.find((each) => each.cell === this.id);
    const staleReason = marks[this.id] || indirect[this.id];
    const isStopped = Boolean(stop) && stop.cell === this.id;
    const status = this.getStatus(step, lastRun);
    const { number, doubts } = this.row;
    // A run can finish before its report is in the journal.
    if (lastRun && state.status.last === lastRun.run) this.reportedRun = lastRun.run;
    const data = [status, step, lastRun, runs.length, staleReason, doubts];
    if (recordShown(this.head, [...data, isStopped, number, this.reportedRun])) return;
    this.box.className = `cell ${status}${isStopped ? " stopped" : ""}`;
    replaceChildren(
      this.head,
      markOf(status),
      h("h3", {}, step ? `${step.id}. ${step.title}` : `Cell ${number}`),
      h("span", { class: "details" }, ...this.listDetails(step, runs, lastRun)),
      copyButton("Copy the source", this.source),
    );
    replaceChildren(this.foot, ...this.listNotes(runs, lastRun, step, staleReason));
  }

  listDetails(step, runs, lastRun) {
    const details = [];
    if (step) details.push(h("span", {}, `cell ${this.row.number}`));
    if (runs.length > 1) {
      const failedCount = runs.filter((run) => !run.fine).length;
      const failed = failedCount ? `, ${failedCount} failed` : "";
      details.push(h("span", {}, `run ${runs.length} times${failed}`));
    }
    if (this.isRunning) {
      details.push(h("span", { class: "clock num" }));
    } else if (lastRun) {
      const started = new Date(lastRun.at).toLocaleString();
      const title = `run ${lastRun.run}, ${started}`;
      details.push(h("span", { title }, formatRunDuration(lastRun)));
    } else {
      details.push(h("span", {}, "not run"));
    }
    if (!this.isRunning && lastRun && !lastRun.fine) {
      const outcome = state.outcomeNames[lastRun.outcome] || lastRun.outcome;
      details.push(h("span", {}, outcome));
    }
    return details;
  }

  listNotes(runs, lastRun, step, staleReason) {
    const notes = [];
    const warnings = [...(this.row.doubts || [])];
    if (step && step.status === "doubted" && step.reason) {
      warnings.unshift(`its criterion ${step.reason}`);
    }
    for (const warning of warnings) {
      notes.push(h("p", { class: "doubt" }, `${getMark("doubted")} ${warning}`));
    }
    if (staleReason) {
      notes.push(h("p", { class: "stale" }, `${getMark("stale")} ${staleReason}`));
    }
    if (lastRun && !this.isRunning) notes.push(this.createReport(lastRun));
    if (runs.length > 1) notes.push(this.createAttempts(runs));
    return notes;
  }

  createReport(run) {
    const load = (event) => event.target.open && this.loadReport(event.target, run.run);
    const report = h("details", { ontoggle: load }, h("summary", {}, "Report"));
    if (!run.fine && this.reportedRun === run.run) report.open = true;
    return report;
  }

  createAttempts(runs) {
    const items = runs
      .slice(-MAX_ATTEMPTS)
      .reverse()
      .map((run) => {
        const time = `${formatDay(run.at)} ${formatTimeWithSeconds(run.at)}`;
        const parts = [`run ${run.run}`, time, formatRunDuration(run), run.why];
        const button = h(
          "button",
          { type: "button", onclick: (event) => toggleRun(event.currentTarget, run) },
          parts.filter(Boolean).join(" · "),
        );
        return h("li", {}, markOf(run.fine ? "done" : "failed"), button);
      });
    const summary = h("summary", {}, `Attempts: ${runs.length}`);
    return h("details", {}, summary, h("ol", {}, ...items));
  }

  async loadReport(box, run) {
    if (box.children.length > 1) return;
    const { report } = await fetchJson("run", { run });
    if (box.children.length > 1) return;
    const text = report || NO_REPORT;
    box.append(h("pre", { tabindex: "0" }, text));
  }
}

function formatRunDuration(run) {
  return run.held ? "did not run (preflight check)" : formatDuration(run.took);
}

/** Show or hide the source and the report of a run, below its button. */
async function toggleRun(button, run) {
  if (button.nextSibling) {
    while (button.nextSibling) button.nextSibling.remove();
    return;
  }
  const { source, report } = await fetchJson("run", { run: run.run });
  const code = renderSource(
    source || "The journal does not contain the source of this run.",
  );
  button.after(
    h("pre", { tabindex: "0" }, h("code", {}, ...code)),
    h("pre", { tabindex: "0" }, report || NO_REPORT),
  );
}

const nearObserver = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) entry.target.card.setNear(entry.isIntersecting);
  },
  { rootMargin: "900px 0px" },
);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) cards.forEach((card) => card.load());
});

function getRunningCell() {
  return state.live && state.live.running;
}

function drawCells() {
  const box = $("cells");
  const ids = new Set(state.cells.map((row) => row.id));
  for (const [id, card] of cards) {
    if (!ids.has(id)) {
      card.remove();
      cards.delete(id);
    }
  }
  state.cells.forEach((row, index) => {
    let card = cards.get(row.id);
    if (card && card.type !== row.type) {
      card.remove();
      card = null;
    }
    if (!card) {
      card = new Card(row.id, row.type);
      cards.set(row.id, card);
    }
    const shown = box.children[index];
    if (shown !== card.box) box.insertBefore(card.box, shown || null);
    card.update(row);
  });
}

// --- sidebar

function drawSidebar() {
  const { project, status } = state;
  const planData = status && [status.steps, status.marks, status.off_plan];
  if (status && !recordShown($("plan"), planData)) {
    drawPlan(status);
  }
  const current = status && status.notebook;
  if (!recordShown($("shelf"), [project.notebooks, current])) {
    const items = project.notebooks.map((row) => createNotebookItem(row, current));
    replaceChildren($("shelf"), ...items);
  }
}

function drawPlan(status) {
  const steps = status.steps;
  const skipped = countSteps(steps, "skipped");
  $("far").textContent = steps.length
    ? formatProgress(countSteps(steps, "done"), steps.length, skipped)
    : "";
  replaceChildren(
    $("plan"),
    ...steps.map(createStepItem),
    ...status.off_plan.map(createOffPlanItem),
  );
  $("planned").parentNode.hidden = !steps.length;
}

function countSteps(steps, status) {
  return steps.filter((step) => step.status === status).length;
}

function createStepItem(step) {
  const notes = formatStepNotes(step);
  const attributes = {
    href: step.cell ? `#cell-${step.cell}` : null,
    "aria-current": step.status === "running" ? "step" : null,
    title: step.criterion || null,
  };
  const link = h(
    "a",
    attributes,
    markOf(step.status),
    h("span", {}, step.title, createHiddenStatus(step.status)),
    notes ? h("small", {}, notes) : null,
  );
  return h("li", {}, link);
}

function createOffPlanItem(cell) {
  const status = state.cellNotes[cell.status] || cell.status;
  const link = h(
    "a",
    { href: `#cell-${cell.cell}` },
    markOf(cell.status),
    h("span", {}, `cell ${cell.number}`, createHiddenStatus(cell.status)),
    h("small", {}, `outside the plan · ${status}`),
  );
  return h("li", {}, link);
}

/** Return a status as text for screen readers, which do not read the marks. */
function createHiddenStatus(status) {
  return h("span", { class: "visually-hidden" }, `: ${status}`);
}

function formatStepNotes(step) {
  const notes = [];
  if (step.retries) notes.push(count(step.retries, "retry", "retries"));
  if (state.stepNotes[step.status]) notes.push(state.stepNotes[step.status]);
  if (step.cell && state.status.marks[step.cell]) notes.push("stale");
  if (step.criterion && step.status !== "done") notes.push(step.criterion);
  if (step.reason && step.status === "skipped") notes.push(step.reason);
  return notes.join(" · ");
}

function createNotebookItem(row, current) {
  const attributes = {
    href: makeNotebookAddress(row.notebook),
    "aria-current": row.notebook === current ? "page" : null,
    title: row.notebook,
  };
  const link = h(
    "a",
    attributes,
    markOf(row.running ? "running" : row.state),
    h("span", {}, removeFolderAndSuffix(row.notebook)),
    h("small", {}, formatNotebookNotes(row)),
  );
  return h("li", {}, link);
}

function makeNotebookAddress(notebook) {
  return `/?${new URLSearchParams({ notebook })}`;
}

function formatNotebookNotes(row) {
  const notes = [formatNotebookProgress(row)];
  if (row.state !== "ready") notes.push(row.state);
  if (row.notebook === state.project.current) notes.push("current");
  notes.push(formatAge(getServerTime() - row.changed * 1000));
  return notes.join(" · ");
}

function formatNotebookProgress(row) {
  if (row.of) return formatProgress(row.done, row.of, row.skipped);
  return row.runs ? count(row.runs, "run", "runs") : "not run";
}

// --- head and notices

function drawHead() {
  const { status, live } = state;
  const name = status.notebook;
  const notebookState = getRunningCell() ? "running" : status.state;
  $("title").textContent = status.title || removeFolderAndSuffix(name);
  $("state").textContent =
    notebookState === "gone" ? "the file is missing" : notebookState;
  $("state").className = `pill ${notebookState}`;
  document.title = formatPageTitle(status, notebookState);
  const facts = [["file", name]];
  if (live) facts.push(...listKernelFacts(status, live));
  if (status.verified) facts.push(["verified", formatVerification(status.verified)]);
  if (recordShown($("facts"), facts)) return;
  const rows = facts.map(([term, value]) => {
    return h("div", {}, h("dt", {}, term), h("dd", {}, value));
  });
  replaceChildren($("facts"), ...rows);
}

function formatPageTitle(status, notebookState) {
  const parts = [getMark(notebookState)];
  const steps = status.steps;
  if (steps.length) {
    const skipped = countSteps(steps, "skipped");
    const progress = `${countSteps(steps, "done")}/${steps.length}`;
    parts.push(skipped ? `${progress}, ${skipped} skipped` : progress);
  }
  return `${parts.join(" ")} ${$("title").textContent} – stepper`;
}

function listKernelFacts(status, live) {
  const kernel = [
    live.waits ? `waiting: ${live.waits}` : live.state,
    live.pid ? `pid ${live.pid}` : "",
    live.where,
  ];
  const facts = [["kernel", kernel.filter(Boolean).join(", ")]];
  if (live.memory) facts.push(["memory", `${live.memory.toLocaleString()} MB`]);
  if (status.started && live.state !== "none") {
    facts.push(["age", formatKernelAge(status.started)]);
  }
  if (live.left) facts.push(["walltime left", formatDuration(live.left)]);
  if (live.undo) facts.push(["undo", live.undo]);
  return facts;
}

function formatKernelAge(started) {
  const age = formatAge(getServerTime() - new Date(started)).replace(" ago", "");
  const day = formatDay(started);
  const prefix = day === formatDay(getServerTime()) ? "" : `${day}, `;
  return `${age}, since ${prefix}${formatTime(started)}`;
}

function formatVerification(verification) {
  const age = formatAge(getServerTime() - new Date(verification.at));
  const verdict = verification.reproduces ? "reproduces" : "does not reproduce";
  const note = verification.holds ? "" : "; cells have changed since then";
  return `${age}: ${verdict} (${verification.text})${note}`;
}

function drawNotices() {
  const { status, connectionError } = state;
  const staleCount = Object.keys(status.marks).length;
  const texts = listNotices();
  const indirectCount = Object.keys(status.indirect).length;
  const counts = [staleCount, indirectCount];
  const data = [status.stop, counts, status.run_stale, texts, connectionError];
  if (recordShown($("notices"), data)) return;
  const notices = [];
  if (connectionError) notices.push(createNotice(connectionError));
  if (status.stop) notices.push(createStop(status.stop));
  if (staleCount) notices.push(createStaleNotice(counts, status.run_stale));
  notices.push(...texts.map(createNotice));
  replaceChildren($("notices"), ...notices);
}

function createNotice(text) {
  return h("p", { class: "note warn" }, text);
}

function listNotices() {
  const { status, live, project } = state;
  const notices = [status.trouble, project.trouble];
  if (status.state === "gone") {
    notices[0] = "The notebook's file is missing. This page shows the journal instead.";
  }
  if (status.daemon && getRunningCell()) {
    notices.push(`${status.daemon} The kernel may still be running.`);
  } else if (status.daemon && !status.daemon.startsWith(NO_DAEMON)) {
    notices.push(status.daemon);
  }
  if (status.lost) notices.push(`The kernel's state is lost: ${status.lost}`);
  if (live) notices.push(live.trouble);
  return notices.filter(Boolean);
}

function createStop(stop) {
  const [headline, ...lines] = stop.block.split("\n");
  const pairs = lines
    .map((line) => line.split(/: (.*)/))
    .filter((parts) => parts.length > 1 && parts[0] !== "The agent asks");
  const facts = pairs.flatMap(([term, value]) => [
    h("dt", {}, term),
    h("dd", {}, value),
  ]);
  const question = stop.question ? `The agent asks: ${stop.question}` : null;
  const ways = stop.ways.map((way) => {
    const text = way.argument ? `${way.argument}: ${way.effect}` : way.effect;
    return h("li", {}, copyButton(way.command), h("span", { class: "soft" }, text));
  });
  return h(
    "div",
    { class: "stop" },
    h("h2", {}, headline.replace(/^\S+/, getMark("failed"))),
    question ? h("p", { class: "asks" }, question) : null,
    h("dl", {}, ...facts),
    h("ul", { class: "ways" }, ...ways),
  );
}

function createStaleNotice([staleCount, indirectCount], command) {
  const indirect = indirectCount ? `, ${indirectCount} more indirectly` : "";
  const text = `${count(staleCount, "cell is", "cells are")} stale${indirect}`;
  const item = h("li", {}, copyButton(command), h("span", {}, text));
  return h("div", { class: "note warn ways" }, item);
}

// --- the running cell

function drawRunningCell() {
  const running = getRunningCell();
  const box = $("now");
  box.hidden = !running;
  if (!running) return;
  const steps = state.status.steps;
  const step = steps.find((each) => each.cell === running.cell);
  if (!recordShown(box, [running.cell, running.timeout, step])) {
    const title = step
      ? `Step ${step.id} of ${steps.length}: ${step.title}`
      : running.name;
    const link = h("a", { href: running.cell ? `#cell-${running.cell}` : null }, title);
    const dot = h("span", { class: "dot", "aria-hidden": "true" });
    replaceChildren(
      box,
      h("div", { class: "what" }, dot, link, h("span", { class: "clock num" })),
      h("div", { class: "last mono" }),
      h("div", { class: "to" }),
    );
  }
  box.querySelector(".last").textContent = running.line.replace(OTHER_ESCAPES, "");
  drawClocks();
}

/** Update the duration of the running cell, in its notice and in its card. */
function drawClocks() {
  const running = getRunningCell();
  const box = $("now");
  if (!running || !box.firstChild) return;
  const seconds = Math.max(0, (getServerTime() - running.at) / 1000);
  const elapsed = formatElapsed(seconds);
  const hasTimeout = running.timeout > 0 && running.timeout < 1e8;
  const timeout = hasTimeout ? ` of ${formatTimeout(running.timeout)}` : "";
  const left = running.left ? `, about ${formatDuration(running.left)} left` : "";
  const clock = box.querySelector(".clock");
  replaceChildren(clock, elapsed, h("small", {}, timeout + left));
  const part = running.timeout > 0 ? seconds / running.timeout : 0;
  box.querySelector(".to").style.width = `${Math.min(100, 100 * part)}%`;
  const card = cards.get(running.cell);
  const cardClock = card && card.head && card.head.querySelector(".clock");
  if (cardClock) cardClock.textContent = elapsed;
}
setInterval(() => {
  if (!document.hidden) drawClocks();
}, 100);

// --- timeline

const LANE_HEIGHT = 20;
const AXIS_HEIGHT = 20;
const RUN_GAP = 3;
const MAX_RUN_WIDTH = 160;
const LABEL_WIDTH = 62;
const PAUSE_MS = 600000; // the pause between two runs that is shown as a gap
const NAMES_WIDTH = 200;

function drawRuns() {
  const days = groupByDay(state.runs);
  const names = [...days.keys()];
  const today = names[names.length - 1] || "";
  const day = days.has(state.day) ? state.day : today;
  $("line").hidden = !state.runs.length;
  if (!recordShown($("days"), [names, day])) {
    const buttons = names
      .slice(-MAX_DAYS)
      .reverse()
      .map((name) => {
        return createDayButton(name, name === day);
      });
    replaceChildren($("days"), ...(names.length > 1 ? buttons : []));
  }
  const runs = days.get(day) || [];
  const running = day === today ? getRunningCell() : null;
  const steps = state.status.steps.map((step) => [step.id, step.title, step.cell]);
  const firstRun = runs.length && runs[0].run;
  const data = [day, runs.length, firstRun, steps, running && running.cell];
  if (recordShown($("lanes"), data)) return;
  drawTimeline(day, runs, running);
  drawHistory();
}

function groupByDay(runs) {
  const days = new Map();
  for (const run of runs) {
    const day = formatDay(run.at);
    if (!days.has(day)) days.set(day, []);
    days.get(day).push(run);
  }
  return days;
}

function createDayButton(name, isPressed) {
  const select = () => {
    state.day = name;
    drawRuns();
  };
  const attributes = {
    type: "button",
    "aria-pressed": String(isPressed),
    onclick: select,
  };
  return h("button", attributes, name);
}

/** Return the lanes of the timeline as [key, name]: steps, then other cells. */
function listLanes(runs) {
  const numbers = getCellNumbers();
  const lanes = state.status.steps.map((step) => {
    return [`s${step.id}`, `${step.id}. ${step.title}`];
  });
  const stepKeys = new Set(lanes.map(([key]) => key));
  const cellIds = new Set(runs.map((run) => getLaneKey(run, stepKeys)));
  const otherIds = [...cellIds].filter((id) => !stepKeys.has(id));
  const order = (id) => numbers.get(id) || 1e9; // deleted cells come last
  otherIds.sort((first, second) => order(first) - order(second));
  for (const id of otherIds) {
    lanes.push([id, numbers.has(id) ? `cell ${numbers.get(id)}` : "a deleted cell"]);
  }
  return { lanes, stepKeys };
}

function getLaneKey(run, stepKeys) {
  const key = `s${run.step}`;
  return run.step && stepKeys.has(key) ? key : run.cell;
}

function getCellNumbers() {
  return new Map(state.cells.map((row) => [row.id, row.number]));
}

/** Return the width of a run, which grows with the logarithm of its duration. */
function getRunWidth(run) {
  return 5 + 9 * Math.log2(1 + run.took);
}

function drawTimeline(day, runs, running) {
  const { lanes, stepKeys } = listLanes(runs);
  const laneIndex = new Map(lanes.map(([key], index) => [key, index]));
  const lanesHeight = LANE_HEIGHT * lanes.length;
  const available = $("lanes").clientWidth;
  const needed = runs.reduce((sum, run) => sum + getRunWidth(run) + RUN_GAP, 60);
  const scale = Math.max(1, Math.min(3, (available - NAMES_WIDTH) / needed));
  const bars = [];
  const previousBars = new Map(); // lane key → the end of its last bar
  let x = 8;
  let lastEnd = 0;
  let labelX = -Infinity;
  let label = "";
  for (const run of runs) {
    const started = +new Date(run.at);
    if (lastEnd && started - lastEnd > PAUSE_MS) {
      const position = { x1: x + 8, x2: x + 8, y1: 18, y2: AXIS_HEIGHT + lanesHeight };
      bars.push(svg("line", { class: "gap", ...position }));
      x += 16;
      labelX = -Infinity;
    }
    const time = formatTime(started);
    if (x > labelX + LABEL_WIDTH && time !== label) {
      bars.push(svg("text", { x, y: 13 }, time));
      labelX = x;
      label = time;
    }
    const key = getLaneKey(run, stepKeys);
    const y = AXIS_HEIGHT + LANE_HEIGHT * laneIndex.get(key);
    const width = Math.min(MAX_RUN_WIDTH, scale * getRunWidth(run));
    const previous = previousBars.get(key);
    if (previous && !previous.isFine) {
      const path = `M${previous.x} ${y + 10} L${x} ${y + 10}`;
      bars.push(svg("path", { class: "again", d: path }));
    }
    bars.push(createRunBar(run, x, y, width));
    previousBars.set(key, { x: x + width, isFine: run.fine });
    x += width + RUN_GAP * scale;
    lastEnd = started + run.took * 1000;
  }
  if (running) {
    const step = state.status.steps.find((each) => each.cell === running.cell);
    const index = laneIndex.get(step ? `s${step.id}` : running.cell);
    if (index !== undefined) bars.push(createRunningBar(x, index));
    x += 30;
  }
  const width = Math.max(x + 12, available - 175);
  const chart = createChart(width, lanes.length, formatTimelineLabel(day, runs));
  chart.append(...bars);
  showTimeline(lanes, chart);
}

function createRunBar(run, x, y, width) {
  let outcome = "bad";
  if (run.fine) outcome = "";
  else if (run.outcome === "cancelled") outcome = "interrupted";
  const result = run.fine ? "ok" : run.why || run.outcome;
  const time = formatTimeWithSeconds(run.at);
  const title = `run ${run.run}, ${time}: ${formatRunDuration(run)}, ${result}`;
  const bar = svg(
    "g",
    { class: `run ${outcome}` },
    svg("title", {}, title),
    svg("rect", {
      x,
      y: y + (run.held ? 7 : 4),
      width,
      height: run.held ? 6 : 12,
      rx: 2.5,
    }),
  );
  bar.addEventListener("click", () => goToCell(run.cell));
  return bar;
}

function createRunningBar(x, laneIndex) {
  const y = AXIS_HEIGHT + LANE_HEIGHT * laneIndex + 4;
  const bar = svg("rect", { x, y, width: 26, height: 12, rx: 2.5 });
  return svg("g", { class: "run now" }, bar);
}

function formatTimelineLabel(day, runs) {
  const failedCount = runs.filter((run) => !run.fine).length;
  const runCount = count(runs.length, "run", "runs");
  const summary = `${runCount} on ${day}, ${failedCount} failed.`;
  return `${summary} The runs are also in the list below.`;
}

function createChart(width, laneCount, label) {
  const height = AXIS_HEIGHT + LANE_HEIGHT * laneCount + 4;
  const chart = svg("svg", { width, height, role: "img", "aria-label": label });
  for (let index = 0; index < laneCount; index++) {
    const y = AXIS_HEIGHT + LANE_HEIGHT * index + 10;
    chart.append(svg("line", { class: "lane", x1: 0, x2: width, y1: y, y2: y }));
  }
  return chart;
}

function showTimeline(lanes, chart) {
  const attributes = {
    class: "strip",
    tabindex: "0",
    role: "region",
    "aria-label": "Timeline of runs",
  };
  const strip = h("div", attributes, chart);
  const names = lanes.map(([, name]) => h("div", { title: name }, name));
  replaceChildren(
    $("lanes"),
    h("div", { class: "names", "aria-hidden": "true" }, ...names),
    strip,
  );
  strip.scrollLeft = strip.scrollWidth;
}

const HISTORY_COLUMNS = ["run", "started", "cell", "step", "took", "by", "outcome"];

/** Draw the list of runs, if it is open. */
function drawHistory() {
  if (!$("history").open) return;
  const runs = state.runs.slice(-MAX_RUNS).reverse();
  const omitted = state.runs.length - runs.length;
  const numbers = getCellNumbers();
  const headers = HISTORY_COLUMNS.map((name) => h("th", { scope: "col" }, name));
  const rows = runs.map((run) => createHistoryRow(run, numbers));
  const earlier = count(omitted, "earlier run", "earlier runs");
  const note =
    `The latest ${MAX_RUNS} runs are listed.` +
    ` To see the ${earlier} too, run: stepper history`;
  replaceChildren(
    $("ran"),
    h("thead", {}, h("tr", {}, ...headers)),
    h("tbody", {}, ...rows),
    omitted ? h("caption", {}, note) : null,
  );
}

function createHistoryRow(run, numbers) {
  const values = [
    run.run,
    new Date(run.at).toLocaleString(),
    numbers.get(run.cell) || "–",
    run.step || "–",
    formatDuration(run.took),
    run.by || "–",
    run.why || run.outcome,
  ];
  return h("tr", {}, ...values.map((value) => h("td", {}, String(value))));
}
$("history").addEventListener("toggle", drawHistory);

// --- scrolling

let scrollFrame = 0;

/** Highlight the step that is at the top of the screen in the plan. */
function highlightVisibleStep() {
  scrollFrame = 0;
  const steps = state.status ? state.status.steps : [];
  const visible = steps.filter((step) => {
    const card = cards.get(step.cell);
    return card && card.box.getBoundingClientRect().top < innerHeight * 0.4;
  });
  const current = visible.pop();
  for (const link of $("plan").querySelectorAll("a")) {
    const isCurrent = Boolean(current) && link.hash === `#cell-${current.cell}`;
    link.classList.toggle("here", isCurrent);
  }
}
addEventListener(
  "scroll",
  () => {
    scrollFrame = scrollFrame || requestAnimationFrame(highlightVisibleStep);
  },
  { passive: true },
);

function goToCell(id) {
  const box = document.getElementById(`cell-${id}`);
  if (!box) return;
  box.scrollIntoView({ block: "start" });
  box.focus({ preventScroll: true });
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#cell-']");
  if (!link) return;
  event.preventDefault();
  setFollowing(false);
  goToCell(link.getAttribute("href").replace("#cell-", ""));
});

function setFollowing(isFollowing) {
  state.isFollowing = isFollowing;
  $("follow").setAttribute("aria-pressed", String(isFollowing));
  $("follow").textContent = isFollowing ? "Following" : "Follow";
  if (isFollowing) scrollToLastRun();
}

// Whether the last scroll was by this page, not by the user. If so, the page scrolls
// again while cells above grow.
let hasScrolled = false;

/** Scroll to the running cell, or to the cell of the last run, if following. */
function scrollToLastRun() {
  const run = getRunningCell() || state.runs[state.runs.length - 1];
  const card = run && cards.get(run.cell);
  if (!state.isFollowing || !card) return;
  card.box.scrollIntoView({ block: "nearest" });
  hasScrolled = true;
}
new ResizeObserver(() => hasScrolled && scrollToLastRun()).observe($("cells"));
for (const name of ["pointerdown", "keydown", "wheel", "touchmove"]) {
  addEventListener(name, () => (hasScrolled = false), { passive: true });
}
for (const name of ["wheel", "touchmove"]) {
  addEventListener(name, () => state.isFollowing && setFollowing(false), {
    passive: true,
  });
}
addEventListener("keydown", (event) => {
  if (["PageUp", "PageDown", "Home", "End"].includes(event.key)) setFollowing(false);
});
$("follow").addEventListener("click", () => setFollowing(!state.isFollowing));

// --- colors

const THEME_NAMES = { light: "Light", dark: "Dark" };
const NEXT_THEME = { "": "light", light: "dark", dark: "" };

function setTheme(theme) {
  const root = document.documentElement;
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  const label = `Colors: ${theme || "like the system"}`;
  $("theme").textContent = THEME_NAMES[theme] || "Auto";
  $("theme").setAttribute("aria-label", label);
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Without storage, the setting applies only to this page.
  }
}

function loadTheme() {
  try {
    return localStorage.getItem("theme") || "";
  } catch {
    return "";
  }
}
$("theme").addEventListener("click", () => {
  setTheme(NEXT_THEME[document.documentElement.dataset.theme || ""]);
});
setTheme(loadTheme());

// --- events

let drawTimer = 0;

/** Draw at most once per frame, and less often if the page is hidden. */
function scheduleDraw() {
  if (!drawTimer) drawTimer = setTimeout(draw, document.hidden ? 300 : 16);
}

function draw() {
  drawTimer = 0;
  drawSidebar();
  $("head").hidden = !state.status;
  if (!state.status) {
    if (state.isConnected) drawEmptyProject();
    return;
  }
  drawHead();
  drawNotices();
  drawRunningCell();
  drawCells();
  drawRuns();
  announceChanges();
  highlightVisibleStep();
  if (!state.cells.length) {
    drawPlaceholder(
      "This notebook has no cells yet",
      "They appear here as the agent writes them. Each cell runs when it is written.",
    );
  }
}

/** Draw the page of a project without a current notebook. */
function drawEmptyProject() {
  const { project } = state;
  const hasNotebooks = project.notebooks.length > 0;
  for (const id of ["now", "line"]) $(id).hidden = true;
  $("notices").hidden = false;
  const notice = project.trouble ? createNotice(project.trouble) : null;
  replaceChildren($("notices"), notice);
  $("notices").shownVersion = "";
  $("planned").parentNode.hidden = true;
  let title = "There is no notebook yet";
  if (hasNotebooks) title = "There is no current notebook";
  if (project.missing) title = `The notebook ${project.missing} does not exist`;
  const text = hasNotebooks
    ? "Choose a notebook, or create one:"
    : "Ask Claude Code for an analysis, or create a notebook:";
  const names = project.notebooks.map((row) => row.notebook);
  drawPlaceholder(title, text, project.new, names);
  document.title = "stepper";
}

/** Show a text, links to notebooks and a command instead of cells. */
function drawPlaceholder(title, text, command, notebooks = []) {
  if (recordShown($("cells"), [title, text, notebooks])) return;
  cards.clear();
  const links = notebooks.map((name) => {
    return h("p", {}, h("a", { href: makeNotebookAddress(name) }, name));
  });
  const item = command ? h("li", {}, copyButton(command)) : null;
  const box = h(
    "div",
    { class: "empty" },
    h("h2", {}, title),
    h("p", {}, text),
    ...links,
    item ? h("ul", { class: "ways" }, item) : null,
  );
  replaceChildren($("cells"), box);
}

let lastAnnouncement = null;

/** Announce a new run, its result or a stop; then scroll to the run if following. */
function announceChanges() {
  const text = formatAnnouncement();
  const isFirst = lastAnnouncement === null;
  if (text !== lastAnnouncement) {
    if (!isFirst) announce(text);
    if (!isFirst || getRunningCell()) scrollToLastRun();
  }
  lastAnnouncement = text;
}

function formatAnnouncement() {
  const { stop } = state.status;
  const running = getRunningCell();
  const lastRun = state.runs[state.runs.length - 1];
  if (stop) return `Stopped: ${stop.error}`;
  if (running) return `${running.name} is running`;
  if (!lastRun) return "";
  const result = lastRun.fine
    ? "succeeded"
    : `failed: ${lastRun.why || lastRun.outcome}`;
  return `Run ${lastRun.run} ${result}`;
}

const EVENT_HANDLERS = {
  hello(data) {
    clockOffset = data.now - Date.now();
    state.connectionError = "";
    $("project").textContent = data.project.replace(/^.*\//, "");
    $("project").title = data.project;
    state.marks = data.marks;
    state.stepNotes = data.step_notes;
    state.cellNotes = data.cell_notes;
    state.outcomeNames = data.outcome_names;
  },
  project(data) {
    state.project = data;
  },
  status(data) {
    const isSame = data && state.status && data.notebook === state.status.notebook;
    if (!isSame) resetNotebook();
    state.status = data;
    state.isConnected = true;
  },
  cells(data) {
    if ($("cells").querySelector(".empty")) clearCells();
    state.cells = data;
  },
  live(data) {
    state.live = data;
  },
  runs(data) {
    state.runs = [...state.runs.slice(0, data.from), ...data.runs];
  },
};

/** Reset the state before another notebook is shown. */
function resetNotebook() {
  cards.forEach((card) => card.remove());
  cards.clear();
  clearCells();
  state.cells = [];
  state.live = null;
  lastAnnouncement = null;
}

function clearCells() {
  replaceChildren($("cells"));
  $("cells").shownVersion = "";
}

function connect() {
  const parameters = requestedNotebook ? { notebook: requestedNotebook } : {};
  const source = new EventSource(`events?${new URLSearchParams(parameters)}`);
  for (const [name, handle] of Object.entries(EVENT_HANDLERS)) {
    source.addEventListener(name, (event) => {
      handle(JSON.parse(event.data));
      scheduleDraw();
    });
  }
  source.onerror = () => {
    state.connectionError =
      "`stepper view` does not respond. The server may have stopped, or may be" +
      " starting. To open the page again, run: stepper view";
    if (state.status) scheduleDraw();
    else replaceChildren($("notices"), createNotice(state.connectionError));
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}
setFollowing(true);
connect();
