// A list with elements only for the items near the visible part.
import { html, useCallback, useLayoutEffect, useRef, useState } from "./html.js";
import { t } from "./words.js";

const GUESS = 96;
const MARGIN = 800;
const AT_END = 60;
const NEAR_TOP = 1500;
/** Whether the browser supports scroll anchoring, which keeps the visible content in place when content above it changes. */
const HAS_ANCHORS = CSS.supports("overflow-anchor", "auto");

/** Heights of the items, measured or estimated, and the offsets that follow from them. */
class Heights {
  measured = new Map();
  offsets = [0];

  lay(keys) {
    const offsets = new Float64Array(keys.length + 1);
    for (let i = 0; i < keys.length; i += 1) offsets[i + 1] = offsets[i] + (this.measured.get(keys[i]) ?? GUESS);
    this.offsets = offsets;
  }

  /** Return the index of the item at an offset. */
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
 * Show items, each with a `key`. At the end, the list follows added items; further up, it keeps its position. `goTo`, a ref,
 * is set to a function that scrolls to the item of a key. `loadAbove` loads items before the first: it is called when that
 * comes near, and returns a promise.
 */
export function VirtualList({ items, show, label, goTo, loadAbove, children }) {
  const box = useRef(null);
  const heights = useRef(new Heights()).current;
  const isAtEnd = useRef(true);
  const seen = useRef({ top: 0, height: 0, isLetGo: false });
  const [, redraw] = useState(0);
  const [isAway, setAway] = useState(false);
  heights.lay(items.map((item) => item.key));
  const findRange = () => {
    const { scrollTop = 0, clientHeight = 800 } = box.current ?? {};
    const top = isAtEnd.current ? heights.total - clientHeight : scrollTop;
    return items.length ? [heights.at(Math.max(0, top - MARGIN)), heights.at(top + clientHeight + MARGIN)] : [0, -1];
  };
  const [first, last] = findRange();

  const toEnd = useCallback(() => {
    isAtEnd.current = true;
    setAway(false);
    box.current.scrollTop = box.current.scrollHeight;
    redraw((count) => count + 1);
  }, []);

  if (goTo) {
    goTo.current = (key) => {
      const at = items.findIndex((item) => item.key === key);
      if (at < 0) return;
      isAtEnd.current = false;
      seen.current.isLetGo = true;
      box.current.scrollTop = Math.max(0, heights.offsets[at] - 40);
      redraw((count) => count + 1);
      // Items are measured when they become visible, which may move the target.
      setTimeout(() => box.current?.querySelector(`[data-key="${CSS.escape(key)}"]`)?.scrollIntoView({ block: "center" }), 120);
    };
  }

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
    if (shift && !isAtEnd.current && !HAS_ANCHORS) box.current.scrollTop += shift;
    redraw((count) => count + 1);
  });

  useLayoutEffect(() => {
    if (isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  useLayoutEffect(() => () => observer.current.disconnect(), []);

  const hold = () => {
    isAtEnd.current = true;
    seen.current.isLetGo = false;
  };
  /** Stop following the end when the user scrolls up. */
  const letGo = () => {
    if (box.current.scrollHeight <= box.current.clientHeight) return;
    isAtEnd.current = false;
    seen.current.isLetGo = true;
  };
  const onKey = (event) => {
    if (event.target !== box.current) return;
    if (["Home", "PageUp", "ArrowUp"].includes(event.key)) letGo();
    // Jump, without the browser's animated scrolling over a long list.
    if (event.key === "Home") box.current.scrollTop = 0;
    else if (event.key === "End") toEnd();
    else return;
    event.preventDefault();
  };
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    const isNearEnd = scrollHeight - scrollTop - clientHeight < AT_END;
    // The list also moves up when its content becomes shorter.
    const isMovedUp = scrollTop < seen.current.top && scrollHeight >= seen.current.height;
    if (isMovedUp) isAtEnd.current &&= isNearEnd && !seen.current.isLetGo;
    else if (isNearEnd && scrollTop >= seen.current.top) hold();
    seen.current.top = scrollTop;
    seen.current.height = scrollHeight;
    setAway(!isAtEnd.current);
    if (loadAbove && isNearTop()) redraw((count) => count + 1);
    const range = findRange();
    if (range[0] !== first || range[1] !== last) redraw((count) => count + 1);
  };
  const isAsked = useRef(false);
  const isOlder = useRef(false);
  const isNearTop = () => box.current && !isAtEnd.current && box.current.scrollTop < NEAR_TOP;
  useLayoutEffect(() => {
    if (!loadAbove || isAsked.current || !isNearTop()) return;
    isAsked.current = isOlder.current = true;
    // The position is kept as the distance to the end (below), also in browsers without scroll anchoring.
    loadAbove().finally(() => {
      isAsked.current = false;
    });
  });
  const firstKey = items[0]?.key;
  const before = useRef({ key: firstKey, total: heights.total });
  useLayoutEffect(() => {
    const was = before.current;
    before.current = { key: firstKey, total: heights.total };
    if (!isOlder.current || was.key === firstKey) return;
    isOlder.current = false;
    if (isAtEnd.current) return;
    box.current.scrollTop += heights.total - was.total;
    redraw((count) => count + 1);
  }, [firstKey, items.length]);
  const watch = useCallback((element) => element && observer.current.observe(element), []);

  return html`
    <div class="scroll" ref=${box} onScroll=${onScroll} onKeyDown=${onKey} onTouchMove=${letGo}
      onWheel=${(event) => event.deltaY < 0 && letGo()} onPointerDown=${(event) => event.target === box.current && letGo()} tabindex="0" role="feed" aria-label=${label}>
      <div style=${{ height: `${heights.offsets[first] ?? 0}px` }} class="space" aria-hidden="true"></div>
      ${items.slice(first, last + 1).map((item, i) => html`
        <article key=${item.key} ref=${watch} data-key=${item.key} class="item"
          aria-posinset=${first + i + 1} aria-setsize=${items.length} aria-label=${item.label}>
          ${show(item)}
        </article>
      `)}
      <div style=${{ height: `${Math.max(0, heights.total - (heights.offsets[last + 1] ?? 0))}px` }} class="space" aria-hidden="true"></div>
      ${children}
    </div>
    ${isAway && html`<button type="button" class="to-end" onClick=${toEnd}>${t("To the end")}</button>`}
  `;
}
