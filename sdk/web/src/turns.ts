// The blocks of a conversation as a chat: messages, what the model did, and answers, in order.

import { standingOf, type GivenAnswer } from "./approvals";
import { field, list, number, object, text } from "./bodies";
import type { Json, JsonObject, Place, Row } from "./types";

export interface CallItem {
  kind: "call";
  key: string;
  call: Row;
  result: Row | null;
  pending: Row | null;
  question: Row | null;
  /** The answers since the call asked last, and whether they decide about it. */
  answers: GivenAnswer[];
  answered: boolean;
  child: string;
  /** Whether the call continues in the background, and the result that it had there. */
  background: boolean;
  late: Row | null;
}

/** A step of a workflow. */
export interface StepItem {
  kind: "step";
  key: string;
  start: Row;
  end: Row | null;
}

export interface MessageItem {
  kind: "message";
  key: string;
  row: Row;
  files: Row[];
  recalled: boolean;
}

export interface TextItem {
  kind: "thinking" | "notes" | "draft";
  key: string;
  row: Row;
}

export interface PlanItem {
  kind: "plan";
  key: string;
  row: Row;
}

export interface FileItem {
  kind: "file";
  key: string;
  row: Row;
}

export interface AnswerItem {
  kind: "answer";
  key: string;
  row: Row;
}

export interface NoteItem {
  kind: "note";
  key: string;
  row: Row;
  problem: boolean;
}

export interface EndItem {
  kind: "end";
  key: string;
  row: Row;
  spent: Spent;
  reaction: string;
}

export type ChatItem = CallItem | StepItem | MessageItem | TextItem | PlanItem | FileItem | AnswerItem | NoteItem | EndItem;

/** What the items of a chat may do, and what they share. */
export interface ChatActions {
  writable: boolean;
  /** Whether the reader may give the further approval of a call of another user. */
  approves: boolean;
  /** Whether calls that the reader has neither opened nor closed are open. */
  opensCalls: boolean;
  place: Place;
  sources: Map<number, JsonObject>;
  progress: Record<string, string>;
  answer: (callId: string, value: Json, approval: boolean) => void;
  rate: (turn: string, reaction: string | null) => void;
  fork: (seq: number, text: string) => void;
}

/** What a turn has used. */
export interface Spent {
  input: number;
  output: number;
  cached: number;
  cost: number | null;
}

/** A conversation as a chat. */
export interface Chat {
  items: ChatItem[];
  sources: Map<number, JsonObject>;
  /** The id of the turn that has not ended, or nothing. */
  openTurn: string;
  /** Whether calls of the open turn wait for the reader. */
  waits: boolean;
}

/** Return the chat of some blocks, in order; they may begin anywhere in the conversation. */
export function chatOf(rows: Iterable<Row>): Chat {
  const builder = new ChatBuilder();
  for (const row of rows) builder.take(row);
  return builder.chat();
}

class ChatBuilder {
  private readonly items: ChatItem[] = [];
  private readonly calls = new Map<string, CallItem>();
  private readonly steps = new Map<string, StepItem>();
  private readonly messages = new Map<number, MessageItem>();
  private readonly sources = new Map<number, JsonObject>();
  private readonly plans = new Map<string, PlanItem>();
  private readonly spent = new Map<string, Spent>();
  private readonly ends = new Map<string, EndItem>();
  private openTurn = "";
  private lastMessage: MessageItem | null = null;

  take(row: Row): void {
    switch (row.type) {
      case "user.prompt":
        this.openTurn = row.turn_id;
        this.addMessage(row);
        break;
      case "user.followup":
      case "user.steer":
        this.addMessage(row);
        break;
      case "user.attachment":
        this.lastMessage?.files.push(row);
        break;
      case "user.recalled": {
        const message = this.messages.get(number(object(row.body)["said"]));
        if (message) message.recalled = true;
        break;
      }
      case "react.thinking":
        this.add({ kind: "thinking", key: key(row), row });
        break;
      case "react.notes":
        this.add({ kind: "notes", key: key(row), row });
        break;
      case "react.draft":
        this.add({ kind: "draft", key: key(row), row });
        break;
      case "react.plan":
        this.addPlan(row);
        break;
      case "file.added":
        if (field(row, "visibility") !== "internal") this.add({ kind: "file", key: key(row), row });
        break;
      case "source.added":
        this.sources.set(number(object(row.body)["sid"]), object(object(row.body)["source"]));
        break;
      case "assistant.completion":
        this.add({ kind: "answer", key: key(row), row });
        break;
      case "react.decision":
        this.addSpent(row);
        break;
      case "react.exit":
        this.end(row);
        break;
      case "turn.feedback": {
        const end = this.ends.get(row.turn_id);
        if (end && (field(row, "origin") || "user") === "user") end.reaction = field(row, "reaction");
        break;
      }
      case "conv.range.summary":
      case "react.model":
      case "react.overflow":
      case "react.notice":
      case "damaged":
        this.add({ kind: "note", key: key(row), row, problem: row.type !== "conv.range.summary" });
        break;
      default:
        this.takeCall(row);
    }
  }

  chat(): Chat {
    const waits = [...this.calls.values()].some(
      (call) => call.call.turn_id === this.openTurn && call.result === null && (call.pending ?? call.question) !== null && !call.answered,
    );
    return { items: this.items, sources: this.sources, openTurn: this.openTurn, waits };
  }

  private takeCall(row: Row): void {
    const id = `${row.turn_id} ${field(row, "call_id")}`;
    const item = this.calls.get(id);
    switch (row.type) {
      case "react.tool.call": {
        const call: CallItem = { kind: "call", key: key(row), call: row, result: null, pending: null, question: null, answers: [], answered: false, child: "", background: false, late: null };
        this.calls.set(id, call);
        this.add(call);
        break;
      }
      case "react.tool.result":
        if (item) item.result = row;
        break;
      case "react.tool.pending":
        if (item) {
          item.pending = row;
          item.answers = [];
          item.answered = false;
        }
        break;
      case "react.tool.question":
        if (item) {
          item.question = row;
          item.answers = [];
          item.answered = false;
        }
        break;
      case "user.answer":
        this.answer(row);
        break;
      case "react.background.result":
      case "event.custom":
        this.takeBackground(row);
        break;
      case "workflow.step.start":
      case "workflow.step.end":
        this.takeStep(row);
        break;
      case "run.child":
        if (item) item.child = field(row, "conversation");
        break;
      default:
    }
  }

  /** A call in the background has its result in a later round or turn. */
  private takeBackground(row: Row): void {
    const callId = field(row, "call_id");
    const item = [...this.calls.values()].findLast((call) => field(call.call, "call_id") === callId);
    if (item === undefined) return;
    if (row.type === "react.background.result") item.late = row;
    else if (field(row, "name") === "background.started") item.background = true;
  }

  private takeStep(row: Row): void {
    const id = `${row.turn_id} ${field(row, "name")}`;
    const step = this.steps.get(id);
    if (row.type === "workflow.step.start") {
      const item: StepItem = { kind: "step", key: key(row), start: row, end: null };
      this.steps.set(id, item);
      this.add(item);
    } else if (step) step.end = row;
  }

  private answer(row: Row): void {
    for (const item of this.calls.values()) {
      if (field(item.call, "call_id") !== field(row, "call_id") || item.result !== null) continue;
      item.answers.push({ value: object(row.body)["value"] ?? null, by: field(row, "by") });
      item.answered = standingOf(item.answers, peopleOf(item.pending ?? item.question)).isDecided;
    }
  }

  private add(item: ChatItem): void {
    this.items.push(item);
  }

  private addMessage(row: Row): void {
    const item: MessageItem = { kind: "message", key: key(row), row, files: [], recalled: false };
    this.lastMessage = item;
    this.messages.set(row.seq, item);
    this.add(item);
  }

  /** A plan is shown once in each turn, where it was last changed. */
  private addPlan(row: Row): void {
    const id = `${row.turn_id} ${text(object(object(row.body)["snapshot"])["plan_id"])}`;
    const earlier = this.plans.get(id);
    if (earlier) {
      earlier.row = row;
      return;
    }
    const item: PlanItem = { kind: "plan", key: key(row), row };
    this.plans.set(id, item);
    this.add(item);
  }

  private addSpent(row: Row): void {
    const body = object(row.body);
    const usage = object(body["usage"]);
    const spent = this.spent.get(row.turn_id) ?? { input: 0, output: 0, cached: 0, cost: null };
    spent.input += number(usage["input_tokens"]);
    spent.output += number(usage["output_tokens"]);
    spent.cached += number(usage["cache_read_tokens"]);
    if (typeof body["cost"] === "number") spent.cost = (spent.cost ?? 0) + body["cost"];
    this.spent.set(row.turn_id, spent);
  }

  private end(row: Row): void {
    if (row.turn_id === this.openTurn) this.openTurn = "";
    const spent = this.spent.get(row.turn_id) ?? { input: 0, output: 0, cached: 0, cost: null };
    const item: EndItem = { kind: "end", key: key(row), row, spent, reaction: "" };
    this.ends.set(row.turn_id, item);
    this.add(item);
  }
}

/** Return how many people must approve a call that waits. */
export function peopleOf(waiting: Row | null): number {
  return waiting ? number(object(waiting.body)["people"]) || 1 : 1;
}

function key(row: Row): string {
  return String(row.seq);
}

/** Return the steps of a plan with their states. */
export function planSteps(row: Row): { text: string; status: string }[] {
  const snapshot = object(object(row.body)["snapshot"]);
  const states = object(snapshot["step_status"]);
  return list(snapshot["steps"]).map((step, n) => ({ text: text(step), status: text(states[String(n + 1)]) || "pending" }));
}

/** Return a block as it comes in a stream, where it has all its fields, as a row. */
export function rowOf(data: JsonObject): Row {
  return {
    seq: number(data["seq"]),
    type: text(data["type"]),
    turn_id: text(data["turn_id"]),
    round: number(data["round"]),
    n: number(data["n"]),
    ts: text(data["ts"]),
    ref: text(data["ref"]),
    body: withoutBytes(text(data["type"]), data["body"] ?? null),
    cut: [],
    problem: "",
  };
}

const WITH_BYTES = new Set(["user.attachment", "file.added", "text.kept"]);

function withoutBytes(type: string, body: Json): Json {
  return WITH_BYTES.has(type) ? { ...object(body), data: "" } : body;
}
