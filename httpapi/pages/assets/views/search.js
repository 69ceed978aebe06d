// A search for a part of a name. It goes on by itself until its end, or until it is stopped.

import {html, useEffect, useRef, useState} from "../vendor/preact.js";
import {get} from "../api.js";
import {count, plural} from "../format.js";
import {Fault, Section, Table, View} from "../parts.js";
import {usePoll} from "../poll.js";
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

// useSearch is what a search has found so far, and go, which stops it or has it go on, or begin again.
function useSearch(q) {
  const [s, set] = useState(nothing), state = useRef(s), before = useRef(false), control = useRef(new AbortController());
  const put = next => set(state.current = next);
  const run = async () => {
    const {signal} = control.current = new AbortController();
    while (state.current.going && q) {
      try {
        const part = await get("v1/search", {q, cursor: state.current.cursor, limit: partSize}, signal);
        if (signal.aborted) return;
        put(join(state.current, part));
      } catch (fault) {
        if (!signal.aborted) put({...state.current, going: false, fault});
        return;
      }
    }
  };
  const go = going => {
    control.current.abort();
    const was = state.current;
    before.current = was.over && was;
    put({...(was.over ? nothing() : was), going, fault: null});
    if (going) run();
  };
  useEffect(() => { run(); return () => control.current.abort(); }, []);
  usePoll(async () => { // what was missing may be there
    const {over, complete, fault} = state.current;
    if (over && !complete || fault && fault.status !== 400) go(true);
  }, [], 10_000);
  return [s.going && before.current || s, go];
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
