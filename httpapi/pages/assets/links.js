// The links of a topic: pages of other systems about one of its tasks.

import {html} from "./vendor/preact.js";
import {get, topicPath} from "./api.js";
import {usePoll} from "./poll.js";

// filled is an address with the fields of a task in it, "" if it is none of the web.
export function filled(pattern, t) {
  const address = pattern.replace(/\{(id|topic|group)\}/g, (_, name) => encodeURIComponent(t[name] ?? ""));
  return /^https?:\/\//i.test(address) ? address : "";
}

// Links are those of a task. They open in a tab of their own, which learns nothing of this one.
export function Links({task: t, may}) {
  const poll = usePoll(async signal => (may("read") ? (await get(topicPath(t.topic), undefined, signal)).links ?? {} : {}), [t.topic], 60_000);
  const list = Object.entries(poll.data ?? {}).map(([name, pattern]) => [name, filled(pattern, t)]).filter(([, address]) => address);
  return list.map(([name, address]) => html`<a key=${name} class="button small" href=${address} target="_blank" rel="noopener noreferrer">${name} ↗</a> `);
}

// asText and asLinks are links as the lines of a form, and back: a name, and an address.
export const asText = links => Object.entries(links ?? {}).sort().map(([name, address]) => name + " " + address).join("\n");
export const asLinks = text => Object.fromEntries(text.split("\n").map(line => line.trim()).filter(Boolean).map(line => {
  const [name, ...address] = line.split(/\s+/);
  return [name, address.join(" ")];
}));
