// A table whose clicks name a row's id, never its position, so that a row arriving meanwhile changes nothing.
// Rows and cells are kept where they did not change, so that neither focus nor selection is lost. Texts go in as text.
const LINK = "tm-link";
let presses = 0;

// Streamlit may send what is pressed twice, when a part of the page looks again just then: each press has a name.
function pressed(id, verb) {
  presses += 1;
  return { id, verb, press: `${Date.now()}.${presses}` };
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
}

function button(action, id, fire) {
  const node = element("button", `tm-action ${action.kind ?? ""}`, action.icon ?? action.label);
  node.type = "button";
  node.dataset.verb = action.verb;
  node.disabled = Boolean(action.disabled);
  const title = action.title || (action.icon ? action.label : "");
  if (title) node.title = title;
  node.setAttribute("aria-label", `${action.label} ${id}`);
  node.addEventListener("click", () => fire("action", pressed(id, action.verb)));
  return node;
}

// What the page behind a link will show first is asked for as the link is pressed, while that page is still to come
// (charts.js takes it).
function askAhead(address) {
  const response = fetch(`${address}&first=1`, { cache: "no-store" });
  response.catch(() => {}); // the page asks for itself then
  window.__trainmasterAhead = { address, at: performance.now(), response };
}

function link(cell, id, fire, ahead) {
  const node = element("a", LINK, cell.text);
  node.href = cell.href;
  if (ahead) node.addEventListener("pointerdown", ({ button }) => { if (button === 0) askAhead(ahead + encodeURIComponent(id)); });
  node.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    fire("action", pressed(id, "open"));
  });
  return node;
}

const CURVE = { width: 96, height: 22, edge: 2 };

// A line that shows where values came from, for eyes alone: the value itself stands beside it.
function curve(values) {
  const low = Math.min(...values), high = Math.max(...values), reach = high - low || 1;
  const x = (index) => CURVE.edge + (index * (CURVE.width - 2 * CURVE.edge)) / (values.length - 1);
  const y = (value) => CURVE.edge + ((high - value) * (CURVE.height - 2 * CURVE.edge)) / reach;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "tm-curve");
  svg.setAttribute("viewBox", `0 0 ${CURVE.width} ${CURVE.height}`);
  svg.setAttribute("aria-hidden", "true");
  const line = svg.appendChild(document.createElementNS(svg.namespaceURI, "polyline"));
  line.setAttribute("points", values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  return svg;
}

function fill(td, cell, id, fire, ahead) {
  td.replaceChildren();
  if (cell === null || cell === undefined) return;
  if (typeof cell !== "object") { td.textContent = cell; return; }
  if (cell.actions) {
    const group = element("div", "tm-actions");
    group.append(...cell.actions.map((action) => button(action, id, fire)));
    td.append(group);
    return;
  }
  const main = element("span", `tm-cell ${cell.tone ? `tm-${cell.tone}` : ""}`);
  if (cell.title) main.title = cell.title;
  if (cell.icon) {
    const icon = element("span", "tm-icon", cell.icon);
    icon.setAttribute("aria-hidden", "true");
    main.append(icon);
  }
  main.append(cell.href ? link(cell, id, fire, ahead) : element("span", cell.code ? "tm-code" : "", cell.text));
  td.append(main);
  if (cell.ratio !== undefined && cell.ratio !== null) {
    const bar = element("progress", "tm-bar");
    bar.max = 1;
    bar.value = Math.min(1, Math.max(0, cell.ratio));
    bar.setAttribute("aria-label", cell.text);
    td.append(bar);
  }
  if (cell.curve) td.append(curve(cell.curve));
  if (cell.sub) td.append(element("div", "tm-sub", cell.sub));
}

function render(root, data, fire) {
  const table = root.querySelector("table") ?? root.appendChild(element("table", "tm-table"));
  const shape = JSON.stringify([data.columns, data.caption]);
  if (table.dataset.shape !== shape) {
    table.dataset.shape = shape;
    table.replaceChildren();
    const caption = element("caption", "tm-hidden", data.caption);
    const head = element("thead");
    const row = head.appendChild(element("tr"));
    for (const column of data.columns) {
      const th = element("th", column.align === "right" ? "tm-right" : "", column.label);
      th.scope = "col";
      row.append(th);
    }
    table.append(caption, head, element("tbody"));
  }
  const body = table.tBodies[0];
  const old = new Map([...body.rows].map((tr) => [tr.dataset.id, tr]));
  let place = body.firstChild;
  for (const row of data.rows) {
    let tr = old.get(row.id);
    old.delete(row.id);
    if (!tr) {
      tr = element("tr");
      tr.dataset.id = row.id;
      for (const column of data.columns) {
        const td = element("td", column.align === "right" ? "tm-right" : "");
        td.dataset.label = column.label;
        td.dataset.column = column.key;
        tr.append(td);
      }
    }
    tr.classList.toggle("tm-faded", Boolean(row.faded));
    if (tr !== place) body.insertBefore(tr, place);
    place = tr.nextSibling;
    data.columns.forEach((column, index) => {
      const td = tr.cells[index];
      const cell = row.cells[column.key];
      const seen = JSON.stringify([cell ?? null, data.ahead]);
      if (td.dataset.seen === seen) return;
      td.dataset.seen = seen;
      fill(td, cell, row.id, fire, data.ahead);
    });
  }
  for (const tr of old.values()) tr.remove();
  let empty = root.querySelector(".tm-empty");
  if (!empty) empty = root.appendChild(element("p", "tm-empty"));
  empty.textContent = data.rows.length ? "" : data.empty;
  empty.hidden = Boolean(data.rows.length);
  table.hidden = !data.rows.length;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".tm-table-root");
  render(root, data, setTriggerValue);
}
