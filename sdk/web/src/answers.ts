// The answer to a question as fields of a form, which its JSON Schema describes.

import { list, object, text } from "./bodies";
import type { Json, JsonObject } from "./types";

/** A field of a form. The field without a name is the whole answer. */
export interface AnswerField {
  name: string;
  label: string;
  description: string;
  kind: "text" | "number" | "yes or no" | "choice" | "json" | "json or text";
  /** The values of a choice, each with its label. */
  choices: { value: Json; label: string }[];
  isRequired: boolean;
  /** What the field says at first, as text; a choice is the number of its value. */
  initial: string;
}

/** Return the fields of the answer that a schema describes; without one, of any JSON value or text. */
export function fieldsOf(form: Json): AnswerField[] {
  const schema = object(form);
  const properties = Object.entries(object(schema["properties"]));
  if (schema["type"] === "object" && properties.length > 0) {
    const required = new Set(list(schema["required"]).map(text));
    return properties.map(([name, property]) => fieldOf(name, object(property), required.has(name)));
  }
  return [fieldOf("", schema, true)];
}

function fieldOf(name: string, schema: JsonObject, isRequired: boolean): AnswerField {
  const choices = choicesOf(schema);
  const kind = choices.length > 0 ? "choice" : kindOf(schema, name);
  const initial = schema["default"];
  return {
    name,
    label: text(schema["title"]) || name || "Answer",
    description: text(schema["description"]),
    kind,
    choices,
    isRequired,
    initial: initial === undefined ? "" : writtenAs(kind, choices, initial),
  };
}

function kindOf(schema: JsonObject, name: string): AnswerField["kind"] {
  switch (schema["type"]) {
    case "string":
      return "text";
    case "number":
    case "integer":
      return "number";
    case "boolean":
      return "yes or no";
    default:
      return name === "" && Object.keys(schema).length === 0 ? "json or text" : "json";
  }
}

function choicesOf(schema: JsonObject): AnswerField["choices"] {
  const names = list(schema["enumNames"]).map(text);
  const values = list(schema["enum"]);
  if (values.length > 0) return values.map((value, n) => ({ value, label: names[n] ?? labelOf(value) }));
  const constants = [...list(schema["oneOf"]), ...list(schema["anyOf"])].map(object);
  if (!constants.every((item) => "const" in item)) return [];
  return constants.map((item) => ({ value: item["const"] ?? null, label: text(item["title"]) || labelOf(item["const"] ?? null) }));
}

function labelOf(value: Json): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function writtenAs(kind: AnswerField["kind"], choices: AnswerField["choices"], value: Json): string {
  if (kind === "choice") {
    const index = choices.findIndex((choice) => JSON.stringify(choice.value) === JSON.stringify(value));
    return index < 0 ? "" : String(index);
  }
  return typeof value === "string" && kind !== "json" ? value : JSON.stringify(value);
}

/** Return the answer that the fields say. Fields that are empty and not required are left out. Throws an Error that names the wrong field. */
export function answerOf(fields: readonly AnswerField[], texts: readonly string[]): Json {
  const answer: JsonObject = {};
  for (const [n, field] of fields.entries()) {
    const written = texts[n] ?? "";
    if (field.name === "") return valueOf(field, written);
    if (written === "" && !field.isRequired) continue;
    Object.defineProperty(answer, field.name, { value: valueOf(field, written), enumerable: true });
  }
  return answer;
}

function valueOf(field: AnswerField, written: string): Json {
  switch (field.kind) {
    case "text":
      return written;
    case "number":
      if (written.trim() === "" || Number.isNaN(Number(written))) throw new Error(`${field.label} is not a number.`);
      return Number(written);
    case "yes or no":
      if (written === "") throw new Error(`Choose yes or no for ${field.label}.`);
      return written === "true";
    case "choice": {
      const choice = field.choices[written === "" ? -1 : Number(written)];
      if (choice === undefined) throw new Error(`Choose a value for ${field.label}.`);
      return choice.value;
    }
    case "json or text":
      return parsed(written) ?? written;
    case "json": {
      const value = parsed(written);
      if (value === undefined) throw new Error(`${field.label} is not valid JSON.`);
      return value;
    }
  }
}

/** Return the value of a JSON text; undefined if it is not JSON. */
function parsed(written: string): Json | undefined {
  try {
    return JSON.parse(written) as Json;
  } catch {
    return undefined;
  }
}
