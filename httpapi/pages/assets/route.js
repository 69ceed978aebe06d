// The address of a view is in the fragment: #/topics/order.unpaid, #/tasks?state=ready. So a view can
// be linked to and reloaded, and the server has one page only.

import {useEffect, useState} from "./vendor/preact.js";

// read returns the place that the fragment names, and its parameters.
export function read(fragment = location.hash) {
  const [path, query] = fragment.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return {view: parts[0] || "overview", name: parts.slice(1).join("/"), params: Object.fromEntries(new URLSearchParams(query))};
}

// link is the address of a view. Parameters without a value are left out.
export function link(view, name, params) {
  const q = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) if (value) q.set(key, value);
  return "#/" + (view === "overview" ? "" : view) + (name ? "/" + encodeURIComponent(name) : "") + (q.size ? "?" + q : "");
}

// go leads to an address. With replace the one before is not kept in the browser's history.
export function go(address, replace) {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address.slice(1);
}

// useRoute is the place where the page is.
export function useRoute() {
  const [at, set] = useState(read);
  useEffect(() => {
    const moved = () => set(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}
