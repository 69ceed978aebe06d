// All topics, page by page. The server sorts and searches: there may be thousands.

import {html, useEffect, useLayoutEffect, useRef, useState} from "../vendor/preact.js";
import {get} from "../api.js";
import {age, count, fine, lacksRecent, plural, span} from "../format.js";
import {Pages, Table, View} from "../parts.js";
import {usePoll} from "../poll.js";
import {go, link, usePages} from "../route.js";
import {Troubles} from "../trouble.js";
import {oldestOf, quiet} from "./overview.js";

// pageSize keeps a refresh small: the answer has about 1 kB a topic.
const pageSize = 8;

const zero = html`<span class="zero">–</span>`;

// A column that can be sorted by names the order of the server. Most come with the greatest first.
const columns = [
  {head: "Topic", sort: "name", cell: t => html`<a href=${link("topics", t.name)}>${t.name}</a><div class="note">${t.delivery.kind}</div>`},
  {head: "What is wrong", sort: "worst", down: true, order: "the worst first", class: "grow", cell: t => html`<${Troubles} topic=${t} />`},
  {head: "Pending", sort: "pending", down: true, num: true, cell: t => quiet(t.counts.pending)},
  {head: "Ready", sort: "ready", down: true, num: true, cell: t => quiet(t.counts.ready), note: "Due, and not handed out yet"},
  {head: "Delivering", class: "spare", num: true, cell: t => quiet(t.counts.delivering)},
  {head: "Dead", sort: "dead", down: true, num: true, cell: t => quiet(t.counts.dead)},
  {head: "Failed 5m", sort: "failed", down: true, num: true, cell: t => quiet(t.counts.failed_recent), note: "Attempts of the last 5 minutes"},
  {head: "Overdue", sort: "late", down: true, order: "the oldest first", num: true, note: "Past their deadline and not delivered, and for how long the oldest",
    cell: t => { const o = t.counts.overdue, oldest = oldestOf(t.counts); return o.count ? html`${count(o.count)}<div class="note">${oldest ? span(age(oldest)) : ""}${o.retrying ? ", " + count(o.retrying) + " retry" : ""}</div>` : zero; }},
  {head: "p99 late 5m", class: "spare", num: true, cell: t => (t.counts.recent.count ? fine(t.counts.recent.p99) : zero), note: "Of the last 5 minutes"},
];

// Sorting chooses the order where the heads of the columns are not shown.
const Sorting = ({sort, show}) => html`<select class="sorting narrow" name="sort" aria-label="Sort topics" value=${sort} onInput=${e => show({sort: e.target.value})}>
  ${columns.filter(c => c.sort).map(c => html`<option value=${c.sort} selected=${c.sort === sort}>${c.head}, ${c.order || (c.down ? "most first" : "from A")}</option>`)}</select>`;

export function Topics({params}) {
  const {search = "", sort = "worst"} = params, [typed, setTyped] = useState(search), asked = useRef(search);
  const [cursors, setCursors] = usePages(); // of one order and one search: show leads to their first page
  const poll = usePoll(signal => get("v1/topics", {search, sort, limit: pageSize, cursor: cursors[cursors.length - 1]}, signal), [search, sort, cursors.join()], 3000);
  const show = next => {
    asked.current = next.search ?? search;
    go(link("topics", "", {search, sort, ...next}), true);
  };
  useLayoutEffect(() => { // a link, or the browser's history, has led to another search
    if (asked.current === search) return;
    asked.current = search;
    setTyped(search);
  }, [search]);
  useEffect(() => { // what is typed is searched when the typing rests
    if (typed === search) return undefined;
    const timer = setTimeout(() => show({search: typed}), 250);
    return () => clearTimeout(timer);
  }, [typed, search, sort]);
  const page = poll.data;
  return html`<${View} title="Topics" poll=${poll} lead=${page?.matched ? plural(page.matched, "topic") : "Topics"}
      actions=${html`<${Sorting} sort=${sort} show=${show} /><input type="search" class="narrow" name="search" placeholder="Part of a name" aria-label="Search topics"
        autocomplete="off" spellcheck="false" value=${typed} onInput=${e => setTyped(e.target.value)} />`}>
    ${page ? html`<${Table} label="Topics" columns=${columns} rows=${page.topics} keyOf=${t => t.name} sorted=${sort} onSort=${by => show({sort: by})}
        empty=${search ? "No topic has this in its name." : "No topic yet. Schedule a task, and its topic appears here."} />
      ${page.recent_without ? html`<p class="hint" role="status">The last 5 minutes are ${lacksRecent(page)}.</p>` : null}
      <${Pages} cursors=${cursors} next=${page.next_cursor} go=${setCursors} />` : null}
  </${View}>`;
}
