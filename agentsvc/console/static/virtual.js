// A list that has elements only for what is near the visible part, however long it is.
import { html, useCallback, useLayoutEffect, useRef, useState } from "./html.js";

const GUESS = 96;
const MARGIN = 800;
const AT_END = 60;

/** Knows how high each item is, measured or guessed, and so where it begins. */
class Heights {
  measured = new Map();
  offsets = [0];

  lay(keys) {
    const offsets = new Float64Array(keys.length + 1);
    for (let i = 0; i < keys.length; i += 1) offsets[i + 1] = offsets[i] + (this.measured.get(keys[i]) ?? GUESS);
    this.offsets = offsets;
  }

  /** Return the item that is at some height. */
  at(height) {
    let low = 0;
    let high = this.offsets.length - 2;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (this.offsets[mid] <= height) low = mid;
      else high = mid - 1;
    }
    return Math.max(low, 0);
  }

  get total() {
    return this.offsets[this.offsets.length - 1];
  }
}

/**
 * Show items, each with a `key`. Who is at the end stays there as items are added; who reads further up
 * stays where they are.
 */
export function VirtualList({ items, show, label, children }) {
  const box = useRef(null);
  const heights = useRef(new Heights()).current;
  const isAtEnd = useRef(true);
  const [, redraw] = useState(0);
  const [isAway, setAway] = useState(false);
  heights.lay(items.map((item) => item.key));
  const top = box.current?.scrollTop ?? 0;
  const view = box.current?.clientHeight ?? 800;
  const anchor = isAtEnd.current ? heights.total - view : top;
  const first = items.length ? heights.at(Math.max(0, anchor - MARGIN)) : 0;
  const last = items.length ? heights.at(anchor + view + MARGIN) : -1;

  const toEnd = useCallback(() => {
    isAtEnd.current = true;
    setAway(false);
    box.current.scrollTop = box.current.scrollHeight;
    redraw((count) => count + 1);
  }, []);

  const observer = useRef(null);
  observer.current ??= new ResizeObserver((entries) => {
    let shift = 0;
    let isChanged = false;
    for (const { target } of entries) {
      const height = target.offsetHeight;
      const known = heights.measured.get(target.dataset.key) ?? GUESS;
      if (!height || known === height) continue;
      heights.measured.set(target.dataset.key, height);
      isChanged = true;
      if (target.offsetTop + known <= box.current.scrollTop) shift += height - known;
    }
    if (!isChanged) return;
    if (shift && !isAtEnd.current) box.current.scrollTop += shift;
    redraw((count) => count + 1);
  });

  useLayoutEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  useLayoutEffect(() => () => observer.current.disconnect(), []);

  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < AT_END;
    setAway(!isAtEnd.current);
    redraw((count) => count + 1);
  };
  const watch = useCallback((element) => element && observer.current.observe(element), []);

  return html`
    <div class="scroll" ref=${box} onScroll=${onScroll} tabindex="0" role="feed" aria-label=${label}>
      <div style=${{ height: `${heights.offsets[first] ?? 0}px` }} aria-hidden="true"></div>
      ${items.slice(first, last + 1).map((item, i) => html`
        <article key=${item.key} ref=${watch} data-key=${item.key} class="item"
          aria-posinset=${first + i + 1} aria-setsize=${items.length} aria-label=${item.label}>
          ${show(item)}
        </article>
      `)}
      <div style=${{ height: `${Math.max(0, heights.total - (heights.offsets[last + 1] ?? 0))}px` }} aria-hidden="true"></div>
      ${children}
    </div>
    ${isAway && html`<button type="button" class="to-end" onClick=${toEnd}>To the end</button>`}
  `;
}
