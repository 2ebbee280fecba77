// A text with line numbers, told to the page while it is typed. What was typed outlives a lost connection and a reload: it is
// kept for this tab until the page sends another text to begin with.
const PAUSE_MS = 350;
const editors = new WeakMap();

function element(tag, className) {
  const node = document.createElement(tag);
  node.className = className;
  return node;
}

function kept(editor) {
  try {
    const found = JSON.parse(sessionStorage.getItem(editor.place) ?? "null");
    return found?.revision === editor.revision ? found.text : null;
  } catch { return null; }
}

function keep(editor, text) {
  try {
    if (text === editor.given) sessionStorage.removeItem(editor.place);
    else sessionStorage.setItem(editor.place, JSON.stringify({ revision: editor.revision, text }));
  } catch { /* a full or forbidden store keeps nothing */ }
}

function tell(editor) {
  clearTimeout(editor.timer);
  const { value } = editor.area;
  if (editor.told === value) return;
  editor.told = value;
  editor.setStateValue("typed", { revision: editor.revision, text: value });
}

function number(editor) {
  const count = editor.area.value.split("\n").length;
  const rows = [];
  for (let line = 1; line <= count; line += 1) {
    const row = element("span", editor.marks[line] ? "tm-line tm-line-bad" : "tm-line");
    row.textContent = editor.marks[line] ? `✖ ${line}` : String(line);
    if (editor.marks[line]) row.title = editor.marks[line];
    rows.push(row);
  }
  editor.gutter.replaceChildren(...rows);
  editor.gutter.scrollTop = editor.area.scrollTop;
}

function build(root) {
  const label = root.appendChild(element("label", "tm-editor-label"));
  const frame = root.appendChild(element("div", "tm-editor"));
  const gutter = frame.appendChild(element("div", "tm-gutter"));
  const area = frame.appendChild(element("textarea", "tm-editor-text"));
  gutter.setAttribute("aria-hidden", "true");
  Object.assign(area, { spellcheck: false, wrap: "off", id: `tm-${crypto.getRandomValues(new Uint32Array(1))[0]}` });
  area.setAttribute("autocapitalize", "off");
  label.htmlFor = area.id;
  const editor = { label, gutter, area, marks: {}, revision: null, told: null, timer: 0 };
  area.addEventListener("input", () => {
    number(editor);
    keep(editor, area.value);
    clearTimeout(editor.timer);
    editor.timer = setTimeout(() => tell(editor), PAUSE_MS);
  });
  area.addEventListener("blur", () => tell(editor));
  area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) tell(editor); });
  area.addEventListener("scroll", () => { gutter.scrollTop = area.scrollTop; });
  return editor;
}

export default function ({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".tm-editor-root");
  let editor = editors.get(root);
  if (!editor) editors.set(root, editor = build(root));
  editor.setStateValue = setStateValue;
  editor.label.textContent = data.label;
  editor.area.style.height = `${data.rows * 1.45 + 1}rem`;
  editor.area.readOnly = data.locked;
  if (editor.revision !== data.revision) {
    Object.assign(editor, { revision: data.revision, given: data.text, place: `trainmaster:${data.place}` });
    editor.area.value = kept(editor) ?? data.typed ?? data.text;
    editor.told = data.typed ?? data.text;
    editor.marks = data.marks;
    number(editor);
    if (editor.area.value !== editor.told) tell(editor);
  } else if (JSON.stringify(editor.marks) !== JSON.stringify(data.marks)) {
    editor.marks = data.marks;
    number(editor);
  }
}
