// What a block is, in a word and a line: its kind, its label, and what it says.

import { argumentsLine, compact, field, list, number, object, text } from "./bodies";
import { count, dollars, quantity, short } from "./format";
import type { Row } from "./types";

export type Kind = "user" | "model" | "call" | "result" | "source" | "runtime" | "error" | "unknown";

interface Summary {
  kind: Kind;
  label: string;
  line: string;
}

type Describe = (row: Row) => Summary;

const of = (kind: Kind, label: string, line: (row: Row) => string): Describe => (row) => ({
  kind,
  label,
  line: line(row),
});

const texted = (row: Row): string => field(row, "text");

const DESCRIPTIONS: Record<string, Describe> = {
  "user.prompt": of("user", "user", texted),
  "user.followup": of("user", "followup", texted),
  "user.steer": of("user", "steer", texted),
  "user.stop": of("user", "stop", () => "stopped the turn"),
  "user.retry": of("user", "retry", () => "put the turn back"),
  "user.recalled": of("user", "recall", (row) => `took back the message at ${compact(object(row.body)["said"])}`),
  "user.answer": of("user", "answer", (row) => `${field(row, "call_id")}: ${compact(object(row.body)["value"])}`),
  "user.attachment": of("user", "file", (row) => `${field(row, "name")} · ${field(row, "mime")}`),
  "user.background.stop": of("user", "stop", (row) => `stops ${field(row, "call_id")} in the background`),
  "approval.mode": of("user", "mode", (row) => field(row, "mode")),
  "approval.rule": of("user", "rule", (row) => `${field(row, "tool") || "a rule"} ${field(row, "rule_id")}`),
  "workflow.step.start": of("call", "step", (row) => field(row, "name")),
  "workflow.step.end": stepEnd,
  "crew.graph": of("model", "graph", (row) => field(row, "goal")),
  "crew.lesson": of("model", "lesson", (row) => field(row, "correction") || field(row, "skipped")),
  "crew.reflection": of("runtime", "lesson", (row) => field(row, "task")),
  "search.expanded": of("runtime", "search", (row) => compact(row.body)),
  "turn.header": of("runtime", "turn", (row) => `${field(row, "bundle")} with ${field(row, "model") || "no model"}`),
  "turn.feedback": of("user", "feedback", (row) => `${field(row, "reaction") || "taken back"} ${texted(row)}`),
  "react.round.start": of("runtime", "round", roundLine),
  "react.decision": of("model", "reply", decisionLine),
  "react.thinking": of("model", "thinking", texted),
  "react.notes": of("model", "notes", texted),
  "react.tool.call": of("call", "call", callLine),
  "react.tool.start": of("runtime", "start", (row) => `${field(row, "call_id")} begins (${field(row, "effect")})`),
  "react.tool.pending": of("user", "waits", (row) => field(row, "question")),
  "react.tool.question": of("user", "asks", (row) => field(row, "question")),
  "react.tool.result": resultSummary,
  "react.proxied.call": of("call", "call", callLine),
  "react.proxied.result": resultSummary,
  "react.background.result": of("result", "result", texted),
  "run.child": of("call", "child run", (row) => `${field(row, "conversation")} ${field(row, "reason")}`),
  "react.tools": of("runtime", "tools", (row) => list(object(row.body)["names"]).map(text).join(", ")),
  "react.notice": of("runtime", "notice", texted),
  "react.model": of("runtime", "model", (row) => `${field(row, "model")} → ${field(row, "to")}: ${field(row, "why")}`),
  "react.overflow": of("error", "overflow", texted),
  "react.plan": of("model", "plan", planLine),
  "react.plan.ack": of("model", "plan", acknowledged),
  "react.plan.history": of("runtime", "plans", () => "earlier plans"),
  "react.hide": of("model", "hide", (row) => field(row, "path")),
  "react.draft": of("model", "draft", (row) => `${field(row, "reason")}: ${texted(row)}`),
  "conv.range.summary": of("runtime", "summary", (row) => `blocks up to ${compact(object(row.body)["covers"])}: ${texted(row)}`),
  "conv.checkpoint": of("runtime", "checkpoint", (row) => `blocks up to ${compact(object(row.body)["covers"])}`),
  "conv.imported": of("runtime", "imported", () => "every block before was imported"),
  "system.message": of("runtime", "system", texted),
  "source.added": of("source", "source", sourceLine),
  "text.kept": of("source", "text", (row) => field(row, "title") || field(row, "ref")),
  "artifact.kept": of("result", "artifact", (row) => `${field(row, "name")} ${texted(row)}`),
  "file.added": of("result", "file", (row) => field(row, "path")),
  "file.pulled": of("runtime", "files", () => "files of an earlier turn"),
  "file.removed": of("runtime", "file", (row) => `removed ${field(row, "path")}`),
  "event.custom": of("runtime", "event", (row) => `${field(row, "name")} ${compact(object(row.body)["data"])}`),
  "memory.fact": of("model", "fact", (row) => texted(row) || "removed"),
  "crew.switch": of("runtime", "agent", (row) => field(row, "agent") || "the bundle's own loop"),
  "assistant.completion": of("model", "answer", texted),
  "react.exit": exitSummary,
  damaged: (row) => ({ kind: "error", label: "damaged", line: row.problem }),
};

function stepEnd(row: Row): Summary {
  const isOk = (field(row, "status") || "ok") === "ok";
  const line = `${field(row, "name")}: ${isOk ? field(row, "value") : `${field(row, "status")} ${field(row, "error")}`}`;
  return { kind: isOk ? "result" : "error", label: "step", line };
}

function acknowledged(row: Row): string {
  return Object.entries(object(object(row.body)["changes"]))
    .map(([step, state]) => `step ${step} ${text(state).replace("_", " ")}`)
    .join(", ");
}

function roundLine(row: Row): string {
  const body = object(row.body);
  const opened = text(body["opened_by"]);
  const parts = [text(body["model"]), `about ${count(number(body["tokens"]))} tokens`, `epoch ${number(body["epoch"])}`];
  if (opened) parts.push(`opened by ${opened}`);
  return parts.filter(Boolean).join(" · ");
}

function decisionLine(row: Row): string {
  const body = object(row.body);
  const usage = object(body["usage"]);
  const cost = typeof body["cost"] === "number" ? body["cost"] : null;
  const parts = [text(body["stop_reason"])];
  if (number(body["calls"])) parts.push(quantity(number(body["calls"]), "call"));
  if (number(usage["input_tokens"])) {
    parts.push(`${short(number(usage["input_tokens"]))} in, ${short(number(usage["output_tokens"]))} out`);
  }
  if (number(usage["cache_read_tokens"])) parts.push(`${short(number(usage["cache_read_tokens"]))} from the cache`);
  if (cost !== null) parts.push(dollars(cost));
  return parts.filter(Boolean).join(" · ");
}

function callLine(row: Row): string {
  const body = object(row.body);
  return `${text(body["tool"])}(${argumentsLine(body["arguments"])})`;
}

function resultSummary(row: Row): Summary {
  const status = field(row, "status") || "ok";
  const failed = status !== "ok";
  return {
    kind: failed ? "error" : "result",
    label: failed ? status : "result",
    line: field(row, "text") || field(row, "tool"),
  };
}

function exitSummary(row: Row): Summary {
  const reason = field(row, "reason");
  const failed = reason === "error" || reason === "interrupted";
  const body = object(row.body);
  const line = [quantity(number(body["rounds"]), "round"), field(row, "error")].filter(Boolean).join(" · ");
  return { kind: failed ? "error" : "runtime", label: reason || "end", line };
}

function planLine(row: Row): string {
  const snapshot = object(object(row.body)["snapshot"]);
  const steps = list(snapshot["steps"]).map(text);
  const done = Object.values(object(snapshot["step_status"])).filter((status) => status === "done").length;
  return `${done} of ${steps.length}: ${steps.join("; ")}`;
}

function sourceLine(row: Row): string {
  const source = object(object(row.body)["source"]);
  return `[${number(object(row.body)["sid"])}] ${text(source["title"]) || text(source["path"]) || text(source["url"])}`;
}

/** Return what a block is. A type that this page does not know is shown by its name and its JSON. */
export function summarize(row: Row): Summary {
  const known = Object.hasOwn(DESCRIPTIONS, row.type) ? DESCRIPTIONS[row.type] : undefined;
  if (known !== undefined) return known(row);
  return { kind: "unknown", label: row.type, line: compact(row.body) };
}
