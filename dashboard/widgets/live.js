// What follows the looks of a page (charts.js makes them): a piece of HTML that is exchanged when it changes, or a
// mark that has the fragment around it drawn anew. The HTML comes escaped from the server.
const places = new WeakMap();
const ASK_AGAIN_MS = 3000;

function follow(place, look) {
  const { data } = place;
  if (data.watched !== undefined) {
    const mark = look.marks?.[data.watched];
    if (mark === undefined || mark === data.mark) return;
    // What was drawn may be what had been read before: then nothing new comes from the server, and it is asked again.
    if (mark === place.asked && performance.now() - place.askedAt < ASK_AGAIN_MS) return;
    Object.assign(place, { asked: mark, askedAt: performance.now() });
    place.fire("moved", mark);
    return;
  }
  const html = look.html?.[data.part];
  if (html !== undefined) show(place, html);
}

function show(place, html) {
  if (place.shown === html) return;
  place.shown = html;
  place.root.innerHTML = html;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".tm-live");
  let place = places.get(root);
  if (!place) {
    place = { root };
    places.set(root, place);
    const listen = (event) => {
      if (root.isConnected) follow(place, event.detail);
      else window.removeEventListener("trainmaster:look", listen);
    };
    window.addEventListener("trainmaster:look", listen);
  }
  Object.assign(place, { data, fire: setTriggerValue, asked: undefined });
  if (data.html !== undefined) show(place, data.html);
  // Something has just been pressed or drawn: look at once, rather than when it is due.
  else window.dispatchEvent(new Event("trainmaster:again"));
}
