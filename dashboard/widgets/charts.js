// A grid of Plotly charts in one component. Plotly.react keeps each chart's DOM node, so neither zoom nor pointer is
// lost when new points arrive. All charts of a grid share one range and one pointer, but those that
// stand alone. A zoom is told to the server, which answers with the points of that window. Texts go in as text,
// never as HTML.
const grids = new WeakMap();
const TOLD_AFTER_MS = 120;

function plotly(source) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  window.__trainmasterPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { window.__trainmasterPlotly = undefined; reject(new Error(source)); };
    document.head.appendChild(script);
  });
  return window.__trainmasterPlotly;
}

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
  const traces = panel.traces.map((trace) => (trace.type === "heatmap" ? { ...trace, textfont: { color: ink } } : trace));
  return Plotly.react(plot, traces, themed(panel, root, grid.range), settings(grid.words));
}

function relayout(grid, id, change) {
  if (grid.moving || grid.panels.get(id)?.panel.alone) return;
  const low = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
  const high = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
  if (low !== undefined) grid.range = [low, high];
  else if (change["xaxis.autorange"]) grid.range = null;
  else return;
  grid.moving = true;
  const others = [...grid.panels.keys()]
    .filter((other) => other !== id && !grid.panels.get(other).plot.hidden && !grid.panels.get(other).panel.alone);
  const update = grid.range ? { "xaxis.range": [...grid.range], "xaxis.autorange": false } : { "xaxis.autorange": true };
  clearTimeout(grid.telling);
  grid.telling = setTimeout(() => grid.tell("window", { range: grid.range, revision: grid.revision }), TOLD_AFTER_MS);
  Promise.all(others.map((other) => grid.Plotly.relayout(grid.panels.get(other).plot, update)))
    .finally(() => { grid.moving = false; });
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
  grid.root.append(figure);
  const entry = { figure, caption, plot, figures, note, drawn: false };
  grid.panels.set(id, entry);
  return entry;
}

function update(grid, data) {
  grid.words = data.words;
  const wanted = new Set(data.panels.map((panel) => panel.id));
  for (const [id, entry] of grid.panels) {
    if (wanted.has(id)) continue;
    if (entry.drawn) { grid.sizes.unobserve(entry.plot); grid.Plotly.purge(entry.plot); }
    entry.figure.remove();
    grid.panels.delete(id);
  }
  // All places first: a chart takes the size of its place when it is drawn.
  for (const panel of data.panels) (grid.panels.get(panel.id) ?? addPanel(grid, panel.id)).panel = panel;
  for (const panel of data.panels) {
    const entry = grid.panels.get(panel.id);
    if (entry.caption.textContent !== panel.title) entry.caption.textContent = panel.title;
    entry.figure.classList.toggle("tm-alone", Boolean(panel.alone || panel.wide));
    entry.figures.textContent = panel.figures ?? "";
    entry.figures.hidden = !panel.figures;
    entry.plot.style.height = panel.height ? `${panel.height}px` : "";
    entry.note.textContent = panel.note;
    entry.note.hidden = !panel.note;
    entry.plot.hidden = Boolean(panel.note);
    entry.plot.setAttribute("aria-label", panel.alt);
    if (panel.note) continue;
    draw(grid, panel.id);
    if (!entry.drawn) {
      entry.drawn = true;
      entry.plot.on("plotly_relayout", (change) => relayout(grid, panel.id, change));
      entry.plot.on("plotly_hover", (event) => point(grid, panel.id, event));
      entry.plot.on("plotly_unhover", () => point(grid, panel.id, null));
      grid.sizes.observe(entry.plot);
    }
  }
}

export default function ({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".tm-grid");
  let grid = grids.get(root);
  if (!grid) {
    grid = { root, panels: new Map(), range: data.window, revision: data.revision, moving: false, latest: null };
    grids.set(root, grid);
    grid.sizes = new ResizeObserver((entries) => {
      for (const { target } of entries) if (target.isConnected && !target.hidden) grid.Plotly.Plots.resize(target);
    });
    // The theme's colours are known to the browser alone: look again when they change.
    grid.ink = "";
    grid.watch = setInterval(() => {
      if (!root.isConnected) { clearInterval(grid.watch); grid.sizes.disconnect(); grids.delete(root); return; }
      const ink = getComputedStyle(root).getPropertyValue("--st-text-color");
      if (grid.ink && grid.ink !== ink && grid.Plotly && grid.latest) update(grid, grid.latest);
      grid.ink = ink;
    }, 1000);
  }
  if (grid.revision !== data.revision) { grid.range = data.window; grid.revision = data.revision; }
  grid.tell = setStateValue;
  grid.latest = data;
  plotly(data.source).then(
    (Plotly) => { grid.Plotly = Plotly; update(grid, grid.latest); },
    () => { root.textContent = data.unavailable; },
  );
}
