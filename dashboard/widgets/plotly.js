// Loads Plotly once for the whole page; stands before the scripts of the components that need it.
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

