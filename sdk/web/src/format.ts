// Numbers and times as people read them.

const numbers = new Intl.NumberFormat("en-US");

/** Return 12345 as `12,345`. */
export function count(value: number): string {
  return numbers.format(value);
}

/** Return a large number shortened, such as `12.3k`. */
export function short(value: number): string {
  if (value < 1_000) return String(value);
  if (value < 100_000) return `${(value / 1_000).toFixed(1)}k`;
  if (value < 1_000_000) return `${Math.round(value / 1_000)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

/** Return a cost in US dollars, or nothing if it is unknown. */
export function dollars(cost: number | null): string {
  if (cost === null) return "";
  return cost !== 0 && cost < 0.01 ? `$${cost.toFixed(5)}` : `$${cost.toFixed(2)}`;
}

/** Return milliseconds as `340 ms`, `4.2 s`, `3 min 5 s` or `2 h 4 min`. */
export function duration(milliseconds: number): string {
  if (milliseconds < 1_000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1_000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return the time of day of an ISO time, such as `14:03:22`. */
export function clock(iso: string): string {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleTimeString("en-GB");
}

/** Return when something was: the time of today, else the day. */
export function day(iso: string): string {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  const today = new Date();
  if (date.toDateString() === today.toDateString()) {
    return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  }
  const sameYear = date.getFullYear() === today.getFullYear();
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(sameYear ? {} : { year: "numeric" }) });
}

/** Return a number of bytes as `12 B`, `3.4 kB` or `5.0 MB`. */
export function bytes(size: number): string {
  if (size < 1_000) return `${size} B`;
  if (size < 1_000_000) return `${(size / 1_000).toFixed(1)} kB`;
  return `${(size / 1_000_000).toFixed(1)} MB`;
}

/** Return one or several of something: `1 block`, `3 blocks`. */
export function quantity(value: number, noun: string, plural = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}
