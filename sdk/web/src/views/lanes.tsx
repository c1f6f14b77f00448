// A turn on a time axis, drawn on a canvas: the requests to the model in the first lane, the calls in lanes below it.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { duration } from "../format";
import { linkTo } from "../route";
import type { OutlineTurn, Place } from "../types";

interface Span {
  lane: number;
  start: number;
  end: number;
  tone: "model" | "call" | "child" | "bad" | "waits";
  label: string;
  /** What is written on the span. */
  name: string;
  seq: number;
}

interface Chart {
  spans: Span[];
  lanes: number;
  start: number;
  end: number;
}

const LEGEND: [Span["tone"], string][] = [
  ["model", "model"],
  ["call", "call"],
  ["child", "child run"],
  ["bad", "failed"],
  ["waits", "no result yet"],
];
const MODEL_HEIGHT = 12;
/** A lane that is this tall has the names of its calls, each if it has room. */
const MOST_LANE = 15;
const NAME_FONT = "11px system-ui, sans-serif";
const GAP = 2;
const MOST_HEIGHT = 170;
const LEAST_PIXELS = 2;
const LEAST_NAME = 30;

/** Return the spans of a turn, each call in the first lane that is free when it begins. */
export function chartOf(turn: OutlineTurn): Chart {
  const spans: Span[] = [];
  const free: number[] = [];
  const end = Math.max(turn.ended, turn.started + 1);
  for (const round of turn.rounds) {
    const replied = round.replied ?? end;
    spans.push({ lane: 0, start: round.started, end: replied, tone: "model", label: `round ${round.round}: ${round.model}`, name: "", seq: round.seq });
    for (const call of round.calls) {
      const until = call.ended ?? end;
      let lane = free.findIndex((time) => time <= call.called);
      if (lane < 0) lane = free.length;
      free[lane] = until;
      const tone = call.ended === null ? "waits" : call.status !== "ok" ? "bad" : call.child ? "child" : "call";
      spans.push({ lane: lane + 1, start: call.called, end: until, tone, label: `${call.tool}, ${call.status}`, name: call.tool, seq: call.seq });
    }
  }
  return { spans, lanes: free.length, start: turn.started, end };
}

export function Lanes({ place, turn }: { place: Place; turn: OutlineTurn }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const chart = useMemo(() => chartOf(turn), [turn]);
  const hovered = useSignal("");
  const laneHeight = Math.max(LEAST_PIXELS, Math.min(MOST_LANE, Math.floor(MOST_HEIGHT / Math.max(chart.lanes, 1)) - GAP));
  const height = MODEL_HEIGHT + GAP + chart.lanes * (laneHeight + (laneHeight > 3 ? GAP : 0));

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const redraw = () => {
      draw(element, chart, laneHeight, height);
    };
    redraw();
    const watcher = new ResizeObserver(redraw);
    watcher.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", redraw);
    return () => {
      watcher.disconnect();
      scheme.removeEventListener("change", redraw);
    };
  }, [chart, laneHeight, height]);

  if (chart.spans.length === 0) return null;
  function at(event: MouseEvent): Span | null {
    const element = canvas.current;
    if (!element) return null;
    const box = element.getBoundingClientRect();
    return spanAt(chart, event.clientX - box.left, event.clientY - box.top, box.width, laneHeight);
  }
  const calls = chart.spans.filter((span) => span.lane > 0).length;
  return (
    <div class="lanes">
      <canvas
        ref={canvas}
        class="lanes-canvas"
        role="img"
        aria-label={`${turn.rounds.length} requests and ${calls} calls in ${duration(chart.end - chart.start)}; the list below names them`}
        style={{ height: `${height}px` }}
        onMouseMove={(event) => {
          const span = at(event);
          hovered.value = span ? `${span.label}, ${duration(span.end - span.start)}` : "";
        }}
        onMouseLeave={() => (hovered.value = "")}
        onClick={(event) => {
          const span = at(event);
          if (span) location.hash = linkTo(place, "timeline", span.seq);
        }}
      />
      <div class="lanes-note" aria-hidden="true">
        <span>0</span>
        {hovered.value ? (
          <span class="lanes-hovered">{hovered.value}</span>
        ) : (
          <ul class="lanes-legend">
            {LEGEND.filter(([tone]) => chart.spans.some((span) => span.tone === tone)).map(([tone, meaning]) => (
              <li key={tone}>
                <span class={`swatch lane-${tone}`} />
                {meaning}
              </li>
            ))}
          </ul>
        )}
        <span>{duration(chart.end - chart.start)}</span>
      </div>
    </div>
  );
}

function laneTop(lane: number, laneHeight: number): number {
  return lane === 0 ? 0 : MODEL_HEIGHT + GAP + (lane - 1) * (laneHeight + (laneHeight > 3 ? GAP : 0));
}

function spanAt(chart: Chart, x: number, y: number, width: number, laneHeight: number): Span | null {
  const scale = width / (chart.end - chart.start);
  return (
    chart.spans.find((span) => {
      const top = laneTop(span.lane, laneHeight);
      const tall = span.lane === 0 ? MODEL_HEIGHT : laneHeight;
      const left = (span.start - chart.start) * scale;
      const right = Math.max(left + 3, (span.end - chart.start) * scale);
      return x >= left - 1 && x <= right + 1 && y >= top && y <= top + tall + GAP;
    }) ?? null
  );
}

function draw(canvas: HTMLCanvasElement, chart: Chart, laneHeight: number, height: number): void {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  if (!context || width === 0) return;
  context.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const colour = (name: string) => style.getPropertyValue(`--lane-${name}`).trim();
  const scale = width / (chart.end - chart.start);
  for (const span of chart.spans) {
    context.fillStyle = colour(span.tone);
    const left = (span.start - chart.start) * scale;
    const wide = Math.max(1.5, (span.end - span.start) * scale - 0.5);
    const top = laneTop(span.lane, laneHeight);
    context.fillRect(left, top, wide, span.lane === 0 ? MODEL_HEIGHT : laneHeight);
    if (span.name === "" || laneHeight < MOST_LANE || wide < LEAST_NAME) continue;
    context.font = NAME_FONT;
    context.fillStyle = style.getPropertyValue("--lane-ink").trim();
    const text = `${span.name} ${duration(span.end - span.start)}`;
    const shown = context.measureText(text).width + 8 <= wide ? text : span.name;
    if (context.measureText(shown).width + 8 <= wide) context.fillText(shown, left + 4, top + laneHeight - 4);
  }
}
