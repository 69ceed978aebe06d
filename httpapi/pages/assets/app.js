// The frame of the dashboard: who is here, where the page is, and what holds for all views.

import {html, render, useCallback, useEffect, useRef, useState} from "./vendor/preact.js";
import {Problem, call, get, onDenied, sessionPath, setSession, silence} from "./api.js";
import {count, plural, span, age} from "./format.js";
import {Fault, Notices} from "./parts.js";
import {isStale, useClock, usePoll} from "./poll.js";
import {choose, onChoice, theme} from "./remembered.js";
import {go, link, useRoute} from "./route.js";
import {downNodes, fleetTroubles, remedy, sentence} from "./trouble.js";
import {Login} from "./views/login.js";
import {Nodes} from "./views/nodes.js";
import {Overview} from "./views/overview.js";
import {Starting} from "./views/starting.js";
import {Tasks} from "./views/tasks.js";
import {Topics} from "./views/topics.js";

const views = [["overview", "Overview"], ["topics", "Topics"], ["tasks", "Tasks"], ["dead", "Dead"], ["nodes", "Nodes"]];

// later are views that are not loaded with the page: when they are opened, or soon after, for a server
// that dies afterwards.
const later = {dead: () => import("./views/dead.js").then(m => m.Dead), waves: () => import("./views/wave.js").then(m => m.Wave), log: () => import("./views/log.js").then(m => m.Log),
  search: () => import("./views/search.js").then(m => m.Search), task: () => import("./views/task.js").then(m => m.TaskView), topic: () => import("./views/topic.js").then(m => m.Topic)};
const loaded = {}, prefetchAfter = 4000; // ms

// The page is loaded anew for a view of another version at most once in this time, in ms.
const reloadsAfter = 60_000;

// unloaded is why a view was not loaded. One that was fetched and fails is of another version than the page, as
// after an upgrade of the server: no new try mends that, but the page that the server has now does.
function unloaded(fault) {
  const title = "The view was not loaded", key = "lapse-reloaded";
  if (fault instanceof TypeError) return {title, message: "The server does not answer."};
  try {
    if (Math.abs(Date.now() - sessionStorage.getItem(key)) > reloadsAfter) {
      sessionStorage.setItem(key, Date.now());
      location.reload();
    }
  } catch { /* without the store it could do so without end */ }
  return {title, message: "The page is of another version than the server.", old: true};
}

// Later is such a view. Who reads from its heading goes on doing so when it comes.
function Later({view, ...props}) {
  const [fault, setFault] = useState(null), [, set] = useState(0), read = useRef(null);
  const load = () => {
    setFault(null);
    later[view]().then(is => {
      if (!is) throw new SyntaxError("no such view");
      loaded[view] = is;
      read.current = document.activeElement?.matches("main h1") ? document.activeElement : null;
      set(n => n + 1);
    }).catch(fault => setFault(unloaded(fault)));
  };
  useEffect(() => { if (!loaded[view]) load(); }, [view]);
  useEffect(() => {
    if (!read.current || read.current.isConnected) return;
    read.current = null;
    document.querySelector("main h1")?.focus({preventScroll: true});
  });
  return loaded[view] ? html`<${loaded[view]} ...${props} />` : html`<h1 tabindex="-1" class="unseen">Loading</h1>${fault ? html`<${Fault} fault=${fault} again=${fault.old ? () => location.reload() : load} />` : html`<p class="empty" role="status">Loading…</p>`}`;
}

// opens reports whether the token of a session opens a view. The overview tells of all topics.
function opens(session, view) {
  const reads = session.scopes.includes("read") || session.scopes.includes("admin");
  if (view === "overview") return reads && !session.topics;
  return reads || view === "tasks" && session.scopes.includes("schedule");
}

// mayOf returns what views ask before they show a button or a link: may("admin"), may("schedule"), may("read");
// may("all") is true where the token is not limited to some topics.
const mayOf = session => scope => (scope === "all" ? !session.topics
  : (scope === "read" || !session.read_only) && (session.scopes.includes("admin") || session.scopes.includes(scope)));

// The session is asked for again after sessionPeriod, in ms; after a call without an answer earlier.
const sessionPeriod = 60_000, sessionRetry = 2000;

// useSession is what the server says of the token of this browser. It is null where none is known, so
// that the user has to log in, and undefined until the server has answered. An answer that is equal
// to the one before leaves the object as it is, so that no view is drawn anew.
function useSession() {
  const [session, set] = useState(undefined), asker = useRef(null);
  const ask = useCallback(() => asker.current(), []);
  useEffect(() => {
    let timer = 0, begun = 0, heard = 0;
    const take = s => set(old => (old !== undefined && JSON.stringify(old) === JSON.stringify(s) ? old : s));
    asker.current = async () => {
      const mine = ++begun;
      let period = sessionPeriod, s = null;
      try {
        s = await get(sessionPath);
      } catch (fault) {
        if (fault.status !== 401) period = sessionRetry;
      }
      if (mine < heard) return; // a later call was answered sooner
      heard = mine;
      if (period === sessionPeriod) {
        setSession(s);
        take(s?.scopes.length ? s : null);
      }
      clearTimeout(timer);
      timer = setTimeout(ask, period);
    };
    onDenied(ask);
    ask();
    return () => { heard = Infinity; clearTimeout(timer); onDenied(async () => {}); };
  }, []);
  return [session, ask];
}

// useStats asks for the figures of the fleet that the frame shows and most views need. While the
// server starts it has none: then starting is what /readyz says.
function useStats(session) {
  return usePoll(async signal => {
    if (!session || !opens(session, "overview")) return undefined;
    try {
      return await get("v1/stats", {topics: false}, signal);
    } catch (fault) {
      if (!(fault instanceof Problem) || !fault.is("starting")) throw fault;
      const ready = await call("GET", "readyz", {signal, accept: [503]});
      return {starting: ready.value};
    }
  }, [session], 2000);
}

// useDiagnosis asks what is wrong, if the token opens that.
function useDiagnosis(session) {
  return usePoll(async signal => (session && opens(session, "nodes") ? get("v1/diagnosis", undefined, signal) : undefined), [session], 2000);
}

// Search is the field that leads to the search for what is typed, with suggestions while it is typed: what
// a search finds in a moment. The keys / and Ctrl-K come here.
function Search({at, may}) {
  const [typed, setTyped] = useState(""), [found, setFound] = useState([]), [chosen, choose] = useState(-1), input = useRef(null), asks = useRef(new AbortController());
  const text = typed.trim().replace(/^\//, ""); // the key that led here
  const clear = () => { asks.current.abort(); setFound([]); choose(-1); };
  useEffect(() => {
    const pressed = e => {
      const jump = (e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k" && !e.altKey && !e.shiftKey;
      if (!jump && (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(input|select|textarea)$/i.test(e.target.tagName))) return;
      e.preventDefault();
      if (document.querySelector("dialog[open]")) return;
      input.current.focus();
      input.current.select();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => { setTyped(at.view === "search" ? at.params.q ?? "" : ""); clear(); }, [at.view, at.name, at.params.q]);
  useEffect(() => { // suggestions when the typing rests; none that cannot be had is a fault
    clear();
    if (!text || document.activeElement !== input.current || at.view === "search" && text === at.params.q) return undefined;
    const {signal} = asks.current = new AbortController();
    const timer = setTimeout(async () => {
      const part = signal.aborted ? null : await get("v1/search", {q: text, limit: 5, within: "50ms"}, signal).catch(() => null);
      if (!part || signal.aborted) return;
      setFound([
        ...(may("read") ? part.topics.map(n => ({kind: "topic", name: n.name, to: link("topics", n.name)})) : []),
        ...part.groups.map(n => ({kind: "group", name: n.name, to: link("tasks", "", {group: n.name})})),
        ...part.tasks.map(t => ({kind: "task", name: t.task.id, to: link("tasks", t.task.id)})),
      ].slice(0, 10));
    }, 250);
    return () => clearTimeout(timer);
  }, [text]);
  const lead = to => { clear(); input.current.blur(); go(to); };
  const submit = e => {
    e.preventDefault();
    if (text) lead(found[chosen]?.to ?? link("search", "", {q: text}));
  };
  const keyed = e => {
    const step = {ArrowDown: 1, ArrowUp: -1}[e.key];
    if (step && found.length) { e.preventDefault(); choose(c => (c + step + found.length + 2) % (found.length + 1) - 1); }
    if (e.key === "Escape" && found.length) { e.preventDefault(); clear(); }
  };
  return html`<form role="search" onSubmit=${submit}>
    <input ref=${input} type="search" name="find" placeholder="Find a task, group, topic  /" aria-label="Find a task, a group or a topic" autocomplete="off" spellcheck="false" maxlength="128"
      role="combobox" aria-autocomplete="list" aria-expanded=${found.length > 0} aria-controls="suggested" aria-activedescendant=${chosen < 0 ? undefined : "suggested-" + chosen}
      value=${typed} onInput=${e => setTyped(e.target.value)} onKeyDown=${keyed} onBlur=${clear} />
    <ul id="suggested" role="listbox" aria-label="Suggestions" hidden=${!found.length}>${found.map((f, i) => html`
      <li key=${f.kind + f.name} id=${"suggested-" + i} role="option" aria-selected=${i === chosen} onMouseDown=${e => { e.preventDefault(); lead(f.to); }}><span>${f.name}</span><span class="soft">${f.kind}</span></li>`)}</ul></form>`;
}

const Mark = () => html`<svg viewBox="0 0 32 32" aria-hidden="true"><path d="M16 1a15 15 0 1 0 0 30 15 15 0 0 0 0-30Zm0 4v11l7.8 7.8A11 11 0 1 1 16 5Z" /></svg>`;

// Aged is something of a poll's figures. It looks old while they are.
function Aged({poll, children}) {
  useClock();
  return html`<span class=${isStale(poll) ? "stale" : ""}>${children}</span>`;
}

// Reach says how much of the fleet the figures are of. A node that is down belongs to the fleet also
// when others have adopted its shards, and no figures are missing any more.
function Reach({stats, diagnosis}) {
  if (!stats?.covers) return html`<span class="reach"></span>`;
  const {covers, missing} = stats, known = missing.filter(m => m.node).length, down = downNodes(diagnosis);
  const joined = Math.max(covers.length, diagnosis?.covers.length ?? 0); // one of them may know of a node already
  if (!missing.length && down.length)
    return html`<a class="reach bad" href=${link("nodes")} id="reach" title="Others have its tasks.">${plural(covers.length, "node")}, ${down.length === 1 ? down[0] : count(down.length)} down</a>`;
  if (!missing.length && joined === covers.length) return html`<a class="reach" href=${link("nodes")} id="reach">${joined === 1 ? "1 node" : "All " + joined + " nodes"}</a>`;
  const names = missing.map(m => (m.node || "the others") + ": " + m.error).join("; ");
  const all = Math.max(joined, covers.length + known), text = all > covers.length ? covers.length + " of " + all + " nodes" : "Only " + plural(covers.length, "node");
  return html`<a class="reach bad" href=${link("nodes")} id="reach" title=${names}>${text}</a>`;
}

// useElsewhere keeps where the other nodes serve this page. The server that shows it may die.
function useElsewhere(session) {
  const poll = usePoll(async signal => (session && opens(session, "nodes") ? (await get("v1/nodes", undefined, signal)).nodes : []), [session], 30_000);
  return (poll.data || []).filter(n => !n.self && n.state === "live" && /^https?:/.test(n.address ?? ""));
}

// Gone says once that the server does not answer, and where else to look: at the same view of another
// node. It stands in the page all the time, so that screen readers hear of it.
function Gone({others}) {
  useClock();
  const {ms, why} = silence();
  if (ms < 3000) return html`<div id="gone" role="status"></div>`;
  return html`<div class="banner bad" id="gone" role="status"><div>${why} That is so for ${span(ms)}. ${others.length ? html`Look at the fleet from another node: ${others.map((n, i) => html`
    ${i ? ", " : ""}<a key=${n.name} href=${n.address.replace(/\/$/, "") + "/" + location.hash}>${n.name}</a>`)}. ` : "Is its process running, and does the network lead there?"}</div></div>`;
}

// useChoices draws the page anew when the user has chosen another clock or theme.
function useChoices() {
  const [, set] = useState(0);
  useEffect(() => onChoice(() => set(n => n + 1)), []);
}

// Theme is the button that goes through the themes.
const Theme = () => html`<button type="button" class="plain" onClick=${() => choose("theme")} aria-label=${"Theme: " + theme() + ". Change it"}>Theme: ${theme()}</button>`;

// bannersShown bounds how many troubles of the fleet stand above a view.
const bannersShown = 4;

// Banners are about the ledger, the nodes, and the server that was asked: they stand above every view,
// the causes first.
function Banners({stats, diagnosis}) {
  useClock();
  // Of the tasks that this node reads, it says itself how far it is.
  const troubles = fleetTroubles(diagnosis).filter(t => t.kind !== "replaying" || t.node !== stats?.node);
  const s = stats?.state, list = troubles.slice(0, bannersShown).map(t => ({key: t.kind + t.node, bad: t.grave, text: sentence(t) + " " + remedy(t), since: t.since}));
  const add = (key, bad, text) => list.push({key, bad, text});
  if (troubles.length > bannersShown) add("more", true, count(troubles.length - bannersShown) + " more: see the nodes.");
  if (s?.shutting_down) add("ending", true, "This node is shutting down.");
  if (s && !s.replay.over) add("replay", false, "This node reads its tasks back: " + count(s.replay.records) + " so far, in " + s.replay.elapsed + ".");
  for (const w of s?.waiting.slice(0, 3) || []) add(w.what, false, "Waiting for " + span(age(w.since)) + ": " + w.what + (w.detail ? ", " + w.detail : "") + ".");
  return html`<div id="banners" role="status" aria-live="polite">${list.map(b => html`
    <div key=${b.key} class=${"banner" + (b.bad ? " bad" : "")}><div>${b.text}${b.since ? html`<span class="soft" aria-hidden="true"> ${span(age(b.since))}</span>` : null}</div></div>`)}</div>`;
}

function place({view, name, params}, props) {
  const query = JSON.stringify(params);
  switch (view) {
    case "topics": return name ? html`<${Later} view="topic" key=${name} name=${name} ...${props} />` : html`<${Topics} params=${params} ...${props} />`;
    case "tasks": return name ? html`<${Later} view="task" key=${name} id=${name} ...${props} />` : html`<${Tasks} key=${query} params=${params} ...${props} />`;
    case "dead": return html`<${Later} view="dead" key=${"dead" + query} params=${params} ...${props} />`;
    case "waves": return html`<${Later} view="waves" params=${params} ...${props} />`;
    case "search": return html`<${Later} view="search" key=${"search" + query} params=${params} ...${props} />`;
    case "log": return html`<${Later} view="log" key=${query} params=${params} ...${props} />`;
    case "nodes": return html`<${Nodes} ...${props} />`;
    case "overview": return html`<${Overview} ...${props} />`;
    default: return html`<p class="empty">${view ? "There is no such view." : "This token opens nothing that could be shown here."}</p>`;
  }
}

function App() {
  useChoices();
  useEffect(() => {
    const timer = setTimeout(() => { for (const [view, load] of Object.entries(later)) load().then(is => { loaded[view] = is; }, () => {}); }, prefetchAfter);
    return () => clearTimeout(timer);
  }, []);
  const at = useRoute(), [session, askSession] = useSession(), stats = useStats(session), diagnosis = useDiagnosis(session), main = useRef(null), others = useElsewhere(session);
  const where = at.view + "/" + at.name, first = useRef(true);
  useEffect(() => { // a view that is opened begins at its top, and is read from there
    if (first.current) { first.current = false; return; }
    scrollTo(0, 0);
    main.current?.querySelector("h1")?.focus({preventScroll: true});
  }, [where]);
  if (session === undefined) return html`<header class="bar"></header><p class="asking" role="status">Asking the server…</p>`;
  if (session === null) return html`<${Login} entered=${askSession} />`;
  if (stats.data?.starting) return html`<${Starting} state=${stats.data.starting} poll=${stats} />`;
  const leave = async () => {
    await call("DELETE", sessionPath).catch(() => {}); // what is left of it the next answer says
    askSession();
  };
  const dead = stats.data?.total?.dead, open = views.filter(([view]) => opens(session, view));
  const here = at.view === "overview" && !opens(session, "overview") ? {...at, view: open[0]?.[0]} : at; // the first that it opens
  return html`<a class="skip" href="#main" onClick=${e => { e.preventDefault(); main.current.querySelector("h1")?.focus(); }}>Skip to the figures</a>
    <header class="bar">
      <a class="mark" href="#/"><${Mark} />Lapse</a>
      <nav aria-label="Views">${open.map(([view, title]) => html`
        <a key=${view} href=${link(view)} aria-current=${here.view === view ? "page" : undefined}>${title}${view === "dead" && dead > 0 ? html`<${Aged} poll=${stats}><b>${count(dead)}</b></${Aged}>` : null}</a>`)}</nav>
      <${Search} at=${at} may=${mayOf(session)} /><${Aged} poll=${stats}><${Reach} stats=${stats.data} diagnosis=${diagnosis.data} /></${Aged}>
      ${session.open ? null : html`<span class="user"><span>${session.name}</span>
        ${session.csrf ? html`<button type="button" class="small" onClick=${leave}>Log out</button>` : null}</span>`}
    </header>
    <${Gone} others=${others} />
    <${Banners} stats=${stats.data} diagnosis=${diagnosis.data} />
    <main ref=${main} id="main">${place(here, {stats, diagnosis, may: mayOf(session)})}</main>
    <footer class="foot">${stats.data ? html`<span>Asked: <code>${stats.data.node}</code>, Lapse ${stats.data.version}, up ${stats.data.uptime}</span>` : null}
      ${opens(session, "nodes") ? html`<a href=${link("log")}>Log of actions</a>` : null}<a href="./docs">API</a><a href="./openapi.json">OpenAPI</a><${Theme} /></footer>
    <${Notices} />`;
}

render(html`<${App} />`, document.body);
