// A grid of Plotly charts in one component. Plotly.react keeps each chart's DOM node, so neither zoom nor pointer is
// lost when new points arrive. All charts of a grid share one range and one pointer, but those that
// stand alone. A live grid asks the server by itself, again and again and with each zoom, and is answered with the
// points of that window; what else comes with an answer it tells the page (live.js). Texts go in as text, never as HTML.
const grids = new WeakMap();
const AGAIN_AFTER_MS = 250;
const RETRY_MS = 3000;
const AHEAD_HOLDS_MS = 30000;
const HELD_MS = 50;
const LETS_GO = ["pointerup", "pointercancel", "blur"];
const SCROLLS = ["wheel", "touchmove", "keydown", "pointerdown"];

function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function themed(panel, root, range) {
  const style = getComputedStyle(root);
  const ink = style.getPropertyValue("--st-text-color").trim() || style.color;
  const ground = style.getPropertyValue("--st-background-color").trim() || "#fff";
  const line = style.getPropertyValue("--st-border-color").trim() || "rgba(128,128,128,.3)";
  const grid = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const layout = structuredClone(panel.layout);
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.font = { family: style.fontFamily, size: 12, color: ink };
  layout.hoverlabel = { bgcolor: ground, bordercolor: line, font: { color: ink, family: style.fontFamily } };
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: ink };
  layout.dragmode ??= "zoom";
  Object.assign(layout.xaxis, grid);
  Object.assign(layout.yaxis, grid);
  if (range && !panel.alone) Object.assign(layout.xaxis, { range: [...range], autorange: false });
  return layout;
}

function settings(words) {
  return {
    displaylogo: false, doubleClick: "autosize", scrollZoom: false,
    modeBarButtons: [["zoom2d", "pan2d", "autoScale2d", "toImage"]],
    locale: "trainmaster", locales: { trainmaster: { dictionary: words, format: {} } },
  };
}

function draw(grid, id) {
  const { Plotly, root } = grid;
  const { plot, panel } = grid.panels.get(id);
  const ink = getComputedStyle(root).getPropertyValue("--st-text-color").trim() || getComputedStyle(root).color;
  // Plotly writes into what it is given; what changes later is made of this.
  const traces = structuredClone(panel.traces);
  for (const trace of traces) if (trace.type === "heatmap") trace.textfont = { color: ink };
  return Plotly.react(plot, traces, themed(panel, root, grid.range), settings(grid.words));
}

function relayout(grid, id, change) {
  if (grid.panels.get(id)?.moving || grid.panels.get(id)?.panel.alone) return;
  const low = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
  const high = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
  if (low !== undefined) grid.range = [low, high];
  else if (change["xaxis.autorange"]) grid.range = null;
  else return;
  if (grid.live) {
    grid.steps = null;
    look(grid);
  }
  const update = grid.range ? { "xaxis.range": [...grid.range], "xaxis.autorange": false } : { "xaxis.autorange": true };
  const others = [...grid.panels].filter(([other, { plot, panel, drawn }]) => other !== id && drawn && !plot.hidden && !panel.alone);
  // Of a live grid those that nobody sees are drawn with the answer.
  for (const [, entry] of others) entry.stale = true;
  const seen = others.filter(([, { plot }]) => !grid.live || isSeen(plot));
  move(grid, seen.map(([, entry]) => entry), update);
}

// One after the other, so that neither the answer nor the pointer waits for all; what comes later takes over.
async function move(grid, entries, change) {
  const moves = grid.moves = {};
  for (const entry of entries) {
    if (grid.moves !== moves || !grid.root.isConnected) return;
    entry.moving = true;
    try { await grid.Plotly.relayout(entry.plot, change); } finally { entry.moving = false; }
    await aMoment();
  }
}

// The same place in every chart: what the others were there is seen without moving the pointer.
function point(grid, id, event) {
  if (grid.pointing || grid.panels.get(id)?.panel.alone) return;
  const x = event?.xvals?.[0] ?? event?.points?.[0]?.x;
  cancelAnimationFrame(grid.pointer);
  grid.pointer = requestAnimationFrame(() => {
    grid.pointing = true;
    for (const [other, { plot, panel, drawn }] of grid.panels) {
      if (other === id || panel.alone || panel.wide || !drawn || plot.hidden) continue;
      if (x === undefined) grid.Plotly.Fx.unhover(plot);
      else grid.Plotly.Fx.hover(plot, { xval: plot._fullLayout.xaxis.d2c(x) }, ["xy"]);
    }
    grid.pointing = false;
  });
}

function addPanel(grid, id) {
  const figure = element("figure", "tm-panel");
  figure.dataset.panel = id;
  const caption = element("figcaption", "tm-panel-title");
  const plot = element("div", "tm-plot");
  plot.setAttribute("role", "img");
  const figures = element("p", "tm-panel-figures");
  const note = element("p", "tm-panel-note");
  figure.append(caption, plot, figures, note);
  const entry = { figure, caption, plot, figures, note, drawn: false };
  grid.panels.set(id, entry);
  return entry;
}

function place(grid, panel) {
  const entry = grid.panels.get(panel.id) ?? addPanel(grid, panel.id);
  if (entry.panel !== panel) {
    const text = JSON.stringify(panel);
    if (entry.text !== text) entry.stale = true;
    Object.assign(entry, { text, panel });
  }
  if (entry.caption.textContent !== panel.title) entry.caption.textContent = panel.title;
  entry.figure.classList.toggle("tm-alone", Boolean(panel.alone || panel.wide));
  entry.figures.textContent = panel.figures ?? "";
  entry.figures.hidden = !panel.figures;
  entry.plot.style.height = panel.height ? `${panel.height}px` : "";
  entry.note.textContent = panel.note;
  entry.note.hidden = !panel.note;
  entry.plot.hidden = Boolean(panel.note);
  entry.plot.setAttribute("aria-label", panel.alt);
  return entry;
}

function drawn(grid, id) {
  const entry = grid.panels.get(id);
  entry.stale = false;
  draw(grid, id);
  if (entry.drawn) return;
  entry.drawn = true;
  entry.plot.on("plotly_relayout", (change) => relayout(grid, id, change));
  entry.plot.on("plotly_hover", (event) => point(grid, id, event));
  entry.plot.on("plotly_unhover", () => point(grid, id, null));
  grid.sizes.observe(entry.plot);
}

function isSeen(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom > 0 && top < window.innerHeight;
}

const aMoment = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// What can be seen comes first, one chart after the other, so that neither the first chart nor the pointer waits for
// those further down. A later update takes over.
async function update(grid, data, { all = false } = {}) {
  const turn = grid.turn = grid.moves = {};
  grid.words = data.words;
  const wanted = new Set(data.panels.map((panel) => panel.id));
  for (const [id, entry] of grid.panels) {
    if (wanted.has(id)) continue;
    if (entry.drawn) { grid.sizes.unobserve(entry.plot); grid.Plotly.purge(entry.plot); }
    entry.figure.remove();
    grid.panels.delete(id);
  }
  // All places first: a chart takes the size of its place when it is drawn.
  notes(grid, data.notes ?? []);
  let before = grid.notes;
  for (const panel of data.panels) {
    const { figure } = place(grid, panel);
    if (before.nextSibling !== figure) before.after(figure);
    before = figure;
  }
  stay(grid);
  const todo = data.panels.filter(({ id, note, waits }) => !note && !waits && (all || grid.panels.get(id).stale || !grid.panels.get(id).drawn));
  const seen = new Map(todo.map(({ id }) => [id, isSeen(grid.panels.get(id).plot)]));
  todo.sort((one, other) => seen.get(other.id) - seen.get(one.id));
  for (const { id } of todo) {
    // A chart that is drawn anew under a zoom in the making would lose it.
    while (grid.held && grid.turn === turn) await aMoment(HELD_MS);
    if (grid.turn !== turn || !grid.root.isConnected) return;
    drawn(grid, id);
    await aMoment();
  }
}

// Who has jumped to what lies below the charts stays there while these take their places, until they scroll themselves.
function stay(grid) {
  const height = grid.root.offsetHeight;
  if (height !== grid.height && !grid.scrolled) document.getElementById(window.location.hash.slice(1))?.scrollIntoView();
  grid.height = height;
}

function notes(grid, told) {
  if (!grid.notes) grid.root.prepend(grid.notes = element("div", "tm-notes"));
  if (grid.notes.textContent !== told.join("")) grid.notes.replaceChildren(...told.map((text) => element("p", "tm-under", text)));
  grid.notes.hidden = !told.length;
}

function lookIn(grid, ms) {
  clearTimeout(grid.next);
  grid.next = setTimeout(() => look(grid), ms);
}

// Who pressed a link to this page has asked at once (table.js): the answer may be there before the page is.
function askedAhead(address) {
  const ahead = window.__trainmasterAhead;
  window.__trainmasterAhead = undefined;
  return ahead?.address === address && performance.now() - ahead.at < AHEAD_HOLDS_MS ? ahead.response : null;
}

async function look(grid) {
  clearTimeout(grid.next);
  if (document.hidden && grid.latest) {
    document.addEventListener("visibilitychange", () => { if (grid.root.isConnected) look(grid); }, { once: true });
    return;
  }
  grid.asking?.abort();
  const asking = grid.asking = new AbortController();
  const asked = { revision: grid.revision, range: grid.range, steps: grid.steps, first: !grid.latest };
  const ahead = asked.first && !asked.steps ? askedAhead(grid.live.address) : null;
  const query = new URLSearchParams();
  if (asked.steps) query.set("steps", asked.steps);
  else if (asked.range) query.set("reach", JSON.stringify(asked.range));
  if (asked.first) query.set("first", "1");
  else if (grid.version) query.set("version", grid.version);
  let answer = null;
  try {
    const response = await (ahead ?? fetch(`${grid.live.address}&${query}`, { signal: asking.signal, cache: "no-store" }));
    if (response.ok) answer = await response.json();
  } catch {
    if (asking.signal.aborted) return;
  }
  if (grid.asking !== asking) return;
  if (!grid.root.isConnected) { grid.asking = null; return; }
  const { again } = grid;
  grid.again = false;
  if (answer) {
    window.dispatchEvent(new CustomEvent("trainmaster:look", { detail: answer }));
    if (asked.revision === grid.revision) await take(grid, answer, asked);
  }
  if (grid.asking !== asking) return;
  grid.asking = null;
  if (asked.first && answer?.charts) { look(grid); return; }
  if (again || grid.again) lookIn(grid, AGAIN_AFTER_MS);
  else if (!answer) lookIn(grid, RETRY_MS);
  else if (answer.moves && grid.live.every_s) lookIn(grid, 1000 * grid.live.every_s);
}

// Returns `node` with what stands at the end of `path` changed: of a text the first `kept` characters stay. What has not
// changed is shared with `node`, so that a panel that has not is the same.
function changed(node, [path, kept, told], depth = 0) {
  if (depth === path.length) return kept < 0 ? told : node.slice(0, kept) + told;
  const copy = Array.isArray(node) ? [...node] : { ...node };
  copy[path[depth]] = changed(node[path[depth]], [path, kept, told], depth + 1);
  return copy;
}

async function take(grid, answer, asked) {
  const charts = answer.charts ?? answer.changes?.flat().reduce((before, change) => changed(before, change), grid.charts);
  if (!charts || charts === grid.charts) return;
  Object.assign(grid, { charts, version: asked.first ? null : answer.version });
  if (asked.steps) { grid.range = charts.reach; grid.steps = null; }
  if (!asked.first) name(charts.window);
  grid.latest = { ...charts, words: grid.words };
  grid.Plotly = await grid.plotly.catch(() => null);
  if (grid.Plotly && grid.latest.panels === charts.panels) await update(grid, grid.latest);
}

// The address of the page names the window, so that others see the same.
function name(shown) {
  const address = new URL(window.location.href);
  const told = shown ? shown.join("-") : null;
  if (address.searchParams.get("steps") === told) return;
  if (told) address.searchParams.set("steps", told);
  else address.searchParams.delete("steps");
  window.history.replaceState(window.history.state, "", address);
}

function begin(root, data) {
  const grid = { root, panels: new Map(), range: null, steps: null, revision: null, latest: null };
  grids.set(root, grid);
  grid.plotly = plotly(data.source);
  grid.plotly.catch(() => { root.textContent = data.unavailable; });
  grid.sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.isConnected && !target.hidden) grid.Plotly.Plots.resize(target);
  });
  // What is under way is not broken off: what was to be seen may be in it, and is looked for once more.
  const again = () => {
    if (grid.asking) grid.again = true;
    else if (grid.live) lookIn(grid, AGAIN_AFTER_MS);
  };
  window.addEventListener("trainmaster:again", again);
  const letGo = () => { grid.held = false; };
  root.addEventListener("pointerdown", () => { grid.held = true; }, true);
  for (const end of LETS_GO) window.addEventListener(end, letGo, true);
  const scrolls = ({ type }) => { grid.scrolled = type !== "hashchange"; };
  for (const type of [...SCROLLS, "hashchange"]) window.addEventListener(type, scrolls, { capture: true, passive: true });
  // The theme's colours are known to the browser alone: look again when they change.
  grid.ink = "";
  grid.watch = setInterval(() => {
    if (!root.isConnected) {
      clearInterval(grid.watch);
      clearTimeout(grid.next);
      grid.asking?.abort();
      window.removeEventListener("trainmaster:again", again);
      for (const end of LETS_GO) window.removeEventListener(end, letGo, true);
      for (const type of [...SCROLLS, "hashchange"]) window.removeEventListener(type, scrolls, true);
      grid.sizes.disconnect();
      grids.delete(root);
      return;
    }
    const ink = getComputedStyle(root).getPropertyValue("--st-text-color");
    if (grid.ink && grid.ink !== ink && grid.Plotly && grid.latest) update(grid, grid.latest, { all: true });
    grid.ink = ink;
  }, 1000);
  return grid;
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".tm-grid");
  const grid = grids.get(root) ?? begin(root, data);
  if (grid.revision !== data.revision) {
    Object.assign(grid, { revision: data.revision, range: null, steps: data.live?.steps ?? null, version: null });
  }
  const asked = JSON.stringify([data.live, data.revision]);
  grid.words = data.words;
  grid.live = data.live;
  if (grid.live) {
    if (grid.asked !== asked) look(grid);
    else if (!grid.asking) lookIn(grid, AGAIN_AFTER_MS);
    grid.asked = asked;
    return;
  }
  grid.latest = data;
  grid.plotly.then((Plotly) => { grid.Plotly = Plotly; return update(grid, grid.latest); }, () => {});
}
