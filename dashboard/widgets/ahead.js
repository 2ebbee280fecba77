// Loads what charts need while the page has nothing else to do, so that the first chart does not wait for it.
export default function ({ data }) {
  const soon = window.requestIdleCallback ?? ((work) => setTimeout(work, 500));
  soon(() => { plotly(data.source).catch(() => {}); });
}
