// Two views side by side, with a separator that is dragged or moved with the arrow keys.
import { keep, kept } from "./api.js";
import { html, useRef, useState } from "./html.js";
import { t } from "./words.js";

const STEP = 4;
const within = (percent) => Math.min(75, Math.max(25, percent));

export function Split({ name, left, right }) {
  const [percent, setPercent] = useState(() => within(kept(`split ${name}`) ?? 45));
  const box = useRef(null);
  if (!right) return html`<div class="split"><div class="split-part">${left}</div></div>`;
  const move = (to) => {
    setPercent(within(to));
    keep(`split ${name}`, within(to));
  };
  const onDown = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  const onMove = (event) => {
    if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
    const { left: from, width } = box.current.getBoundingClientRect();
    move(((event.clientX - from) / width) * 100);
  };
  const onKey = (event) => {
    const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (!step) return;
    event.preventDefault();
    move(percent + step);
  };
  return html`
    <div class="split two" ref=${box} style=${{ "--left": `${percent}%` }}>
      <div class="split-part first">${left}</div>
      <div class="split-line" role="separator" tabindex="0" aria-orientation="vertical" aria-label=${t("Width of the conversation")} aria-valuenow=${Math.round(percent)}
        aria-valuemin="25" aria-valuemax="75" onPointerDown=${onDown} onPointerMove=${onMove} onKeyDown=${onKey}></div>
      <div class="split-part second">${right}</div>
    </div>
  `;
}
