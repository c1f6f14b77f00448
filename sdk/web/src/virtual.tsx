// A list that has only the rows in the page that can be seen, so that it can be long.

import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef } from "preact/hooks";

type List = Virtualizer<HTMLDivElement, HTMLElement>;

interface Props {
  total: number;
  /** How tall a row is before it is measured. */
  estimate: (index: number) => number;
  label: string;
  /** Keeps the end in view while the list grows, if the reader is there. */
  follow?: boolean;
  /** Where the list begins: at the row of this index. */
  initial?: number;
  className?: string;
  control?: RefObject<ListControl | null>;
  children: (index: number) => ComponentChildren;
}

/** What a view may ask of its list. */
export interface ListControl {
  /** Scroll until a row can be seen. */
  show: (index: number, align?: "auto" | "start" | "center" | "end") => void;
  /** Move the focus to a row, and show it. */
  focus: (index: number) => void;
}

/** Return the rows of a long list around the part that is in view, as a feed with the number of all rows. */
export function VirtualList(props: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const [, render] = useReducer((n: number) => n + 1, 0);
  const created = useRef<List | null>(null);
  const atEnd = useRef(false);
  const started = useRef(false);

  const options = {
    count: props.total,
    getScrollElement: () => scroller.current,
    estimateSize: props.estimate,
    overscan: 8,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => {
      render(0);
    },
  };
  created.current ??= new Virtualizer<HTMLDivElement, HTMLElement>(options);
  const virtual = created.current;
  virtual.setOptions({ ...virtual.options, ...options });

  useEffect(() => virtual._didMount(), [virtual]);
  useLayoutEffect(() => {
    virtual._willUpdate();
    if (!started.current && props.total > 0) {
      started.current = true;
      const index = props.follow ? props.total - 1 : props.initial;
      if (index !== undefined && index > 0) virtual.scrollToIndex(index, { align: props.follow ? "end" : "center" });
      atEnd.current = props.follow ?? false;
    } else if (props.follow && atEnd.current) {
      const element = scroller.current;
      if (element) element.scrollTop = element.scrollHeight;
    }
  });

  function focusRow(index: number) {
    const row = scroller.current?.querySelector<HTMLElement>(`[data-index="${index}"] [data-row]`);
    row?.focus({ preventScroll: true });
  }

  if (props.control) {
    props.control.current = {
      show: (index, align = "auto") => {
        virtual.scrollToIndex(index, { align });
      },
      focus: (index) => {
        virtual.scrollToIndex(index, { align: "auto" });
        requestAnimationFrame(() => {
          focusRow(index);
        });
      },
    };
  }

  function onScroll() {
    const element = scroller.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 80;
  }

  const items = virtual.getVirtualItems();
  return (
    <div class={`list ${props.className ?? ""}`} ref={scroller} onScroll={onScroll}>
      <div role="feed" aria-label={props.label} class="list-space" style={{ height: `${virtual.getTotalSize()}px` }}>
        {items.map((item) => (
          <div
            key={item.key}
            role="presentation"
            class="list-item"
            data-index={item.index}
            ref={virtual.measureElement} // the same function each time: another one would measure every row with each render
            style={{ transform: `translateY(${item.start}px)` }}
          >
            {props.children(item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}

/** Return the index that a key of the keyboard leads to, or nothing. */
export function movedIndex(key: string, index: number, total: number): number | null {
  const last = total - 1;
  switch (key) {
    case "ArrowDown":
    case "j":
      return Math.min(index + 1, last);
    case "ArrowUp":
    case "k":
      return Math.max(index - 1, 0);
    case "PageDown":
      return Math.min(index + 15, last);
    case "PageUp":
      return Math.max(index - 15, 0);
    case "Home":
      return 0;
    case "End":
      return last;
    default:
      return null;
  }
}
