// Charts, by uPlot. They take their colours from the page, and are drawn anew when those change.

import {html, useEffect, useRef, useState} from "./vendor/preact.js";
import {hourMinute, short} from "./format.js";
import {onChoice} from "./remembered.js";

// colour is the value of a CSS variable in the theme of the moment. A canvas knows no light-dark().
function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = "var(" + name + ")";
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// useTheme counts how often light and dark, or the clock of the axis, have changed.
function useTheme() {
  const [n, set] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)"), changed = () => set(k => k + 1);
    dark.addEventListener("change", changed);
    const deaf = onChoice(changed);
    return () => { deaf(); dark.removeEventListener("change", changed); };
  }, []);
  return n;
}

const height = 148;

// steps are what may lie between two times on an axis, in seconds.
const steps = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600];

// wholes are what may lie between two counts.
const wholes = Array.from({length: 10}, (_, power) => [1, 2, 5].map(n => n * 10 ** power)).flat();

// spans are what may lie between two durations, in ms.
const spans = [[0.01, 0.1, 1, 10, 100].flatMap(n => [n, 2 * n, 5 * n]), [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400].map(s => s * 1000)].flat();

function axes(format) {
  const common = {stroke: colour("--soft"), font: "11px system-ui, sans-serif", ticks: {show: false}};
  return [
    {...common, grid: {show: false}, size: 22, incrs: steps, values: (_, at) => at.map(s => hourMinute(s * 1000)), space: 64},
    {...common, grid: {stroke: colour("--line"), width: 1}, size: 52, incrs: format === short ? wholes : spans, gap: 4, values: (_, list) => list.map(format), space: 36},
  ];
}

// Chart draws series over time. x are seconds; a series is {label, values, colour (of a CSS variable),
// bars}. from and to are the ends of the axis, where those of x are not. about says in words what is drawn: it is the text of the chart for those who do not see it.
// say(i) tells of one moment, and is shown while the pointer is over it. pick(i) is called for the
// moment that is clicked at. marks are lines at moments: {at, in seconds, text}.
export function Chart({x, series, from, to, format = short, about, say, pick, marks = []}) {
  const ends = useRef(null);
  ends.current = [from ?? x[0], to ?? x[x.length - 1]];
  const picks = useRef(null), lines = useRef([]);
  picks.current = pick;
  lines.current = marks;
  const box = useRef(null), plot = useRef(null), theme = useTheme();
  const [over, setOver] = useState(null);
  const shape = series.map(s => s.label + s.colour + !!s.bars).join();
  useEffect(() => {
    const drawMarks = u => {
      u.ctx.fillStyle = colour("--warn");
      for (const {at} of lines.current) {
        const left = u.valToPos(at, "x", true);
        if (left >= u.bbox.left && left <= u.bbox.left + u.bbox.width) u.ctx.fillRect(Math.round(left), u.bbox.top, Math.max(1, devicePixelRatio), u.bbox.height);
      }
    };
    const bars = window.uPlot.paths.bars({size: [0.7, 28], align: 1});
    const p = plot.current = new window.uPlot({
      width: box.current.clientWidth, height, legend: {show: false}, padding: [8, 16, 0, 0],
      cursor: {y: false, drag: {x: false, y: false}, points: {show: false}},
      scales: {x: {range: () => ends.current}, y: {range: (_, __, max) => [0, Math.max((max || 0) * 1.1, 1)]}},
      axes: axes(format),
      series: [{}, ...series.map(s => ({
        label: s.label, stroke: colour(s.colour), width: s.bars ? 0 : 1.75, fill: s.bars ? colour(s.colour) : undefined,
        paths: s.bars ? bars : undefined, points: {show: !s.bars && s.values.filter(v => v !== null).length < 3, size: 4, fill: colour(s.colour)}, spanGaps: false,
      }))],
      hooks: {setCursor: [u => setOver(u.cursor.idx ?? null)], draw: [drawMarks]},
    }, [x, ...series.map(s => s.values)], box.current);
    const chosen = e => { // the step in which the pointer is
      if (e.target !== p.over) return;
      const at = p.posToVal(e.offsetX, "x"), i = p.data[0].findLastIndex(from => from <= at);
      if (i >= 0) picks.current?.(i);
    };
    p.root.addEventListener("click", chosen, true); // uPlot keeps clicks from others
    const watch = new ResizeObserver(() => { if (box.current) p.setSize({width: box.current.clientWidth, height}); });
    watch.observe(box.current);
    return () => { watch.disconnect(); p.destroy(); plot.current = null; };
  }, [theme, shape]);
  useEffect(() => { plot.current?.setData([x, ...series.map(s => s.values)]); });
  return html`<figure class=${"chart" + (pick ? " picks" : "")}><div ref=${box} role="img" aria-label=${about}></div>
    <figcaption>${over !== null && x[over] !== undefined ? say(over) : about}</figcaption></figure>`;
}
