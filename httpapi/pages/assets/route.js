// The address of a view is in the fragment: #/topics/order.unpaid, #/tasks?state=ready. So a view can
// be linked to and reloaded, and the server has one page only.

import {useEffect, useState} from "./vendor/preact.js";

// read returns the place that the fragment names, and its parameters. Two of them say which page of
// a list it is, whatever the list is of: at, the cursor, and page, its number.
export function read(fragment = location.hash) {
  const [path, query] = fragment.replace(/^#\/?/, "").split("?"), {at, page, ...params} = Object.fromEntries(new URLSearchParams(query));
  const parts = path.split("/").filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return {view: parts[0] || "overview", name: parts.slice(1).join("/"), params, at, page};
}

// link is the address of a view. Parameters without a value are left out.
export function link(view, name, params) {
  const q = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) if (value) q.set(key, value);
  return "#/" + (view === "overview" ? "" : view) + (name ? "/" + encodeURIComponent(name) : "") + (q.size ? "?" + q : "");
}

// waveOf is the address of the wave of the whole minutes of a span that begins at from and is long ms long.
export const waveOf = (from, long = 60_000, topic = "") => {
  const at = new Date(Math.floor(from / 60_000) * 60_000), to = new Date(Math.ceil((from + long) / 60_000) * 60_000);
  return link("waves", "", {from: at.toISOString(), to: to.toISOString(), topic});
};

// go leads to an address. With replace the one before is not kept in the browser's history.
export function go(address, replace) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address.slice(1);
}

// lists are the addresses of the lists that were shown last, by view; cameFrom is the last of them all.
const lists = {}, titles = {topics: "Topics", tasks: "Tasks", dead: "Dead tasks", waves: "Wave", search: "Search"};
let cameFrom = "tasks";
function note(at) {
  if (at.name || !titles[at.view]) return;
  lists[at.view] = location.hash;
  if (at.view !== "topics") cameFrom = at.view;
}

// backTo is the way back to a list, as it was: its filter, its order and its page.
export const backTo = (view = cameFrom) => ({href: lists[view] ?? link(view), text: titles[view]});

// useRoute is the place where the page is.
export function useRoute() {
  const [at, set] = useState(read);
  note(at);
  useEffect(() => {
    const moved = () => set(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

// before has, for each cursor that was followed, that of the page before it, "" for the first page.
const before = new Map(), mostBefore = 1000;

// usePages keeps in the address which page of a list is shown, so that the browser's Back returns to
// it. cursors has an entry for each page before the shown one, and its own cursor last. The cursors of
// pages that this browser has not come through are not known: from there Back leads to the first one.
export function usePages() {
  useRoute();
  // What holds now: the view may be drawn for its parameters before this hook has heard of another place.
  const {view, name, params, at, page} = read(), cursors = at ? Array(Math.max(1, (Number.parseInt(page, 10) || 2) - 1)).fill("") : [];
  for (let i = cursors.length - 1, cursor = at; i >= 0 && cursor; i--, cursor = before.get(cursor)) cursors[i] = cursor;
  const turn = to => {
    const cursor = to[to.length - 1];
    if (to.length > cursors.length) {
      if (before.size >= mostBefore) before.clear();
      before.set(cursor, at || "");
    }
    go(link(view, name, {...params, at: cursor, page: cursor ? to.length + 1 : ""}));
  };
  return [cursors, turn];
}
