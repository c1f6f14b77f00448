// The answers of the server that the page reads. Names are those of the JSON.

export type Json = null | boolean | number | string | Json[] | JsonObject;
export interface JsonObject {
  [key: string]: Json;
}

/** Which conversation: the parts of its path on the server. */
export interface Place {
  tenant: string;
  project: string;
  user: string;
  conversation: string;
}

export interface StoredConversation extends Place {
  title: string;
  started_at: string;
  last_activity_at: string;
  turns: number;
  head: number;
  inherited: number;
  open: boolean;
}

export interface Stored {
  writable: boolean;
  /** Whether the reader may give the further approvals of calls of other users. */
  approver: boolean;
  bundles: string[];
  tenant: string;
  project: string;
  user: string;
  total: number;
  items: StoredConversation[];
}

export interface CutText {
  path: (string | number)[];
  characters: number;
}

export interface Row {
  seq: number;
  type: string;
  turn_id: string;
  round: number;
  n: number;
  ts: string;
  ref: string;
  body: Json;
  cut: CutText[];
  problem: string;
}

export interface WindowAnswer {
  conversation_id: string;
  head: number;
  rows: Row[];
}

export interface OutlineCall {
  call_id: string;
  tool: string;
  seq: number;
  called: number;
  started: number | null;
  ended: number | null;
  status: string;
  parent: string;
  child: string;
  agent: string;
}

export interface OutlineRound {
  round: number;
  seq: number;
  started: number;
  replied: number | null;
  ended: number;
  model: string;
  purpose: string;
  shows: string;
  epoch: number;
  opened_by: string;
  tokens: number;
  stop_reason: string;
  attempt: number;
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  cost: number | null;
  summarized: boolean;
  calls: OutlineCall[];
}

export interface OutlineTurn {
  turn_id: string;
  seq: number;
  last_seq: number;
  title: string;
  bundle: string;
  agent: string;
  state: string;
  error: string;
  started: number;
  ended: number;
  cost: number | null;
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  rounds: OutlineRound[];
}

export interface Outline {
  total: number;
  head: number;
  turns: OutlineTurn[];
}

export type PartState = "full" | "shortened" | "hidden" | "cleared" | "summary";

export interface PromptMessage {
  role: string;
  ref: string;
  text: string;
  tokens: number;
  state: PartState;
  stable: boolean;
}

/** A request: its turn and round, and the seq of its block, which tells requests of one round apart; 0 is the last one. */
export interface RoundPosition {
  turn: number;
  round: number;
  seq: number;
}

export interface PromptReply {
  ref: string;
  seq: number;
  model: string;
  stop_reason: string;
  calls: number;
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  cost: number | null;
}

export interface Prompt {
  turn_id: string;
  round: number;
  ref: string;
  seq: number;
  model: string;
  protocol: string;
  epoch: number;
  opened_by: string;
  tokens: number;
  exact: boolean;
  inexact: string;
  system: string;
  system_tokens: number;
  tools: string;
  tools_tokens: number;
  settings: JsonObject;
  dropped_settings: JsonObject;
  form: Json;
  messages: PromptMessage[];
  cache_points: { name: string; messages: number; tokens: number }[];
  tail: string;
  tail_kind: string;
  tail_tokens: number;
  reply: PromptReply | null;
  /** Whether it is the last request of its round, which may have sent another one before it was steered. */
  is_last: boolean;
  before: RoundPosition | null;
  after: RoundPosition | null;
}

export interface ReadItem {
  ref: string;
  requested: string;
  status: "ok" | "cut" | "missing" | "gone";
  text: string;
  title: string;
  mime: string;
  message: string;
}

export interface Approval {
  call_id: string;
  tool: string;
  question: string;
  arguments: Json;
  approval: string;
}

export interface Question {
  call_id: string;
  turn_id: string;
  kind: "question" | "approval";
  question: string;
  stays_open: boolean;
  form?: Json;
}

/** A conversation in the tree of its forks. */
export interface ForkRow {
  conversation: string;
  parent: string;
  seq: number;
  turn_id: string;
  round: number;
  model: string;
  turns: number;
  head: number;
  last_activity_at: string;
}

/** A turn that has not ended, or that has failed. */
export interface WorkRow extends Place {
  title: string;
  turn_id: string;
  state: "running" | "waiting" | "queued" | "cut off" | "dead" | "failed";
  since: string;
  rounds: number;
  calls: string[];
  reason: string;
}

/** A call that waits for approval, of any conversation that the reader may see. */
export interface WaitingRow extends Place {
  title: string;
  turn_id: string;
  since: string;
  call_id: string;
  tool: string;
  arguments: JsonObject;
  question: string;
  people: number;
  approved_by: string[];
}

export interface Work {
  items: WorkRow[];
  is_complete: boolean;
}

/** A live event: a stored block, or a text that is being written. */
export interface LiveEvent {
  id: string;
  event: string;
  data: JsonObject;
}
