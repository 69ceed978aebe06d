// What is on the screen is asked for again and again, while the tab is visible.

import {useCallback, useEffect, useRef, useState} from "./vendor/preact.js";
import {asked} from "./api.js";

// shiftOf is after which part of a period a question is asked, by a hash of its address, in ms.
const shiftOf = (address, period) => [...address].reduce((h, c) => (31 * h + c.charCodeAt(0)) % 1_000_003, 7) % period;

// usePoll calls ask(signal) at once and then each period (ms), and again when deps change. It asks when the
// clock shows a multiple of the period and the shift of its question: all pages ask the same at about the same
// time, so that the server collects it once, and different questions do not meet. It returns
//   data   the last answer; kept while later calls fail; undefined before the first one
//   at     when that answer came, by the clock of this machine
//   fault  why the last call failed; null if it did not
//   again  asks now
//   period how often it asks, in ms
// A tab that is hidden asks nothing. It asks at once when it is shown again.
export function usePoll(ask, deps, period = 2000) {
  const [state, set] = useState({data: undefined, at: 0, fault: null});
  const wake = useRef(() => {});
  useEffect(() => {
    let timer = 0, over = false, shift, controller = new AbortController();
    const round = async () => {
      clearTimeout(timer);
      controller.abort(); // of a round that this one replaces
      const mine = controller = new AbortController();
      try {
        const data = await ask(mine.signal);
        if (!mine.signal.aborted) set({data, at: Date.now(), fault: null});
      } catch (fault) {
        if (!mine.signal.aborted) set(s => ({...s, fault}));
      }
      shift ??= shiftOf(asked.get(mine.signal) ?? "", period); // the times in its query may change
      if (!over && mine === controller) timer = setTimeout(next, period - (Date.now() + shift) % period);
    };
    const next = () => { if (!document.hidden) round(); };
    const shown = () => { if (!document.hidden) round(); else clearTimeout(timer); };
    wake.current = round;
    set(s => (s.data === undefined && !s.fault ? s : {data: undefined, at: 0, fault: null}));
    round();
    document.addEventListener("visibilitychange", shown);
    return () => {
      over = true;
      clearTimeout(timer);
      controller.abort();
      document.removeEventListener("visibilitychange", shown);
    };
  }, deps);
  return {...state, period, again: useCallback(() => wake.current(), [])};
}

// useClock makes its component appear anew each period (ms).
export function useClock(period = 1000) {
  const [, set] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => set(n => n + 1), period);
    return () => clearInterval(timer);
  }, [period]);
}

// staleAfter is the age from which an answer is shown as old, in ms. What is asked for seldom may be
// older by as much.
const staleAfter = 8000, often = 2000;

// isStale reports whether what a poll shows is no more what is.
export const isStale = poll => poll.data !== undefined && (poll.fault !== null && Date.now() - poll.at > 3000 || Date.now() - poll.at > staleAfter + Math.max(0, poll.period - often) && !document.hidden);
