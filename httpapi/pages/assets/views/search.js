// A search for a part of a name. It goes on by itself until its end, or until it is stopped.

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {get} from "../api.js";
import {count, plural} from "../format.js";
import {Fault, Section, Table, View} from "../parts.js";
import {link} from "../route.js";
import {taskColumns} from "./tasks.js";

// A part has at most partSize tasks and groups. The search rests with foundMost, and shows shownMost of each kind.
const partSize = 200, foundMost = 2000, shownMost = 100;

const ranks = ["exact", "begin", "part"], says = {exact: "is it", begin: "begins so", part: "has it"};

// best puts what was found in order: exact ones first, then by name.
const best = (found, nameOf) => [...found.values()].sort((a, b) => ranks.indexOf(a.match) - ranks.indexOf(b.match) || (nameOf(a) < nameOf(b) ? -1 : 1));

const nothing = () => ({tasks: new Map(), groups: new Map(), topics: new Map(), lacks: new Set(), cursor: "", looked: 0, of: 0, complete: true, over: false, going: true, fault: null});

// join adds a part of the search to what was found before.
function join(s, part) {
  for (const t of part.tasks) s.tasks.set(t.task.id, t);
  for (const kind of ["groups", "topics"]) for (const n of part[kind]) s[kind].set(n.name, n);
  for (const m of part.missing) s.lacks.add(m.node || "other nodes");
  const cursor = part.next_cursor ?? "", rests = s.tasks.size + s.groups.size >= foundMost;
  return {...s, cursor, looked: part.looked_at, of: part.of, complete: part.complete, over: !cursor, going: !!cursor && !rests};
}

// What a search could not have may be there later: it repeats after a pause, in ms, that doubles each time.
const firstPause = 10_000, longestPause = 300_000;

// useSearch is what a search has found so far, and go, which stops it or has it go on, or begin again. What was
// found before is shown until a repeat has come to its end.
function useSearch(q) {
  const [s, set] = useState(nothing), state = useRef(s), before = useRef(null), control = useRef(new AbortController()), wait = useRef({ms: firstPause, timer: 0});
  const put = next => set(state.current = next);
  const rest = () => {
    wait.current.timer = setTimeout(() => {
      const ms = document.hidden ? firstPause : Math.min(2 * wait.current.ms, longestPause);
      wait.current.ms = ms;
      if (document.hidden) rest(); else begin(true);
    }, wait.current.ms);
  };
  const run = async () => {
    const {signal} = control.current = new AbortController();
    while (state.current.going && q) {
      const {cursor} = state.current;
      try {
        const next = join(state.current, await get("v1/search", {q, cursor, limit: partSize}, signal));
        if (signal.aborted) return;
        if (!next.going) before.current = null;
        put(next);
      } catch (fault) {
        if (signal.aborted) return;
        const refused = cursor && fault.status === 422; // without it the search begins again
        put({...state.current, cursor: refused ? "" : cursor, going: false, fault});
        if (refused || fault.unanswered || fault.status === 429 || fault.status >= 500) rest();
        return;
      }
    }
    if (state.current.over && !state.current.complete) rest();
  };
  const end = () => { control.current.abort(); clearTimeout(wait.current.timer); };
  const begin = going => {
    end();
    const was = state.current;
    if (was.over) before.current = was;
    put({...(was.over ? nothing() : was), going, fault: null});
    if (going) run();
  };
  const go = going => { wait.current.ms = firstPause; begin(going); };
  useEffect(() => { run(); return end; }, []);
  return [before.current ? {...before.current, fault: s.fault} : s, go];
}

// progress says how far a search is.
function progress(s) {
  const found = [[s.tasks, "task"], [s.groups, "group"], [s.topics, "topic"]].filter(([of]) => of.size).map(([of, one]) => plural(of.size, one)).join(", ") || "nothing";
  const lacks = s.complete ? "" : " It is not complete" + (s.lacks.size ? ", without what " + [...s.lacks].join(", ") + " has." : ".");
  if (s.over) return "Looked at all " + plural(s.of, "task") + ": found " + found + "." + lacks;
  return (s.going ? "Searching" : "Stopped") + ": found " + found + " so far, in about " + count(s.looked) + " of " + plural(s.of, "task") + "." + lacks;
}

const names = (head, to) => [
  {head, cell: n => html`<a href=${to(n)}>${n.name}</a>`},
  {head: "Match", class: "grow", cell: n => html`<span class="soft">${says[n.match]}</span>`},
];

export function Search({params, may}) {
  const q = params.q ?? "", [s, go] = useSearch(q);
  const tasks = best(s.tasks, t => t.task.id).map(t => t.task), groups = best(s.groups, n => n.name), topics = best(s.topics, n => n.name);
  const list = (title, all, columns, keyOf) => (all.length ? html`<${Section} title=${title}>
    <${Table} label=${title} columns=${columns} rows=${all.slice(0, shownMost)} keyOf=${keyOf} />
    ${all.length > shownMost ? html`<p class="hint">The best ${shownMost} of ${count(all.length)}. More of the name finds fewer.</p>` : null}</${Section}>` : null);
  return html`<${View} title="Search" lead=${q ? "“" + q + "”" : "Search"}>
    ${q ? html`<div class="found"><p role="status" id="progress" class=${s.over && !s.complete ? "bad" : ""}>${progress(s)}</p>
      ${s.over ? null : html`<progress value=${s.looked} max=${Math.max(s.of, 1)} aria-label="How far the search is"></progress>
        <button type="button" onClick=${() => go(!s.going)}>${s.going ? "Stop" : "Go on"}</button>`}</div>`
      : html`<p class="empty">Type a part of an id, of a group or of a topic above.</p>`}
    <${Fault} fault=${s.fault} again=${() => go(true)} />
    ${list("Tasks", tasks, taskColumns(may), t => t.id)}
    ${list("Groups", groups, names("Group", n => link("tasks", "", {group: n.name})), n => n.name)}
    ${may("read") ? list("Topics", topics, names("Topic", n => link("topics", n.name)), n => n.name) : null}
  </${View}>`;
}
