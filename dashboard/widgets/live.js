// What follows the looks of a page (charts.js makes them): a piece of HTML that is exchanged when it changes, or a
// mark that has the fragment around it drawn anew. The HTML comes escaped from the server.
const places = new WeakMap();

function follow(place, look) {
  const { data } = place;
  if (data.watched !== undefined) {
    const mark = look.marks?.[data.watched];
    if (mark === undefined || mark === data.mark || mark === place.asked) return;
    place.asked = mark;
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
