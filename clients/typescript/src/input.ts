import { BadValue, TidegateError, shown } from "./error.js";
import { isObject } from "./wire.js";

/** What a request is, by name; a name that is left out counts as the policy's `absent` says. */
export type Attributes = Readonly<Record<string, string | number | boolean>>;

/** What was really spent: one number for `cost`, or values by name for policies with a `settle`. */
export type Amount = number | Readonly<Record<string, number | string | null>>;

/** How work ended. */
export type Outcome = "success" | "callers-fault" | "failure" | "overloaded" | "ignored" | "undone";

export type Priority = "critical-plus" | "critical" | "sheddable-plus" | "sheddable";

/** What a check asks for beside the attributes. */
export interface Asked {
  /** Units, 1 or more, for policies that take their caller's cost. */
  readonly cost?: number | undefined;
  /** With a cohort of 0 to 127, if there is one. */
  readonly priority?: Priority | `${Priority}/${number}` | undefined;
  /** The names of the policies that decide; by default all. */
  readonly policies?: readonly string[] | undefined;
  /** Whether the answer has a ticket; by default if something is to be settled. */
  readonly ticket?: boolean | undefined;
}

/** What a settlement tells; at least one of these. */
export interface Settling {
  readonly cost?: number | undefined;
  readonly attributes?: Readonly<Record<string, number | string | null>> | undefined;
  readonly status?: number | undefined;
  readonly outcome?: Outcome | undefined;
  readonly refund?: number | "all" | undefined;
}

// The server's bounds. What is longer is refused before it is sent: the server closes the connection on a body that is
// too long, which would look like a server that is gone, and pass under `onError: "open"`.
const ATTRIBUTES = 64;
const NAME = 256;
const VALUE = 8192;
const BODY = 64 * 1024;

const bytes = (text: string): number => new TextEncoder().encode(text).length;

/** Writes the body of a check. */
export function check(attributes: Attributes, asked: Asked): string {
  const { cost, priority, policies, ticket } = asked;
  named(attributes, (name, value) => {
    if (typeof value === "string") return;
    if (typeof value === "number" && Number.isFinite(value)) return;
    if (typeof value === "boolean") return;
    const instead = value === undefined || value === null ? "leave it out if the request has none" : "send text, a finite number or a boolean";
    throw new TidegateError("input", `attribute ${shown(name)} is ${shown(value)}; ${instead}`);
  });
  if (cost !== undefined && !(Number.isSafeInteger(cost) && cost >= 1)) {
    throw new TidegateError("input", `cost is ${shown(cost)}; send a whole number of units, 1 or more`);
  }
  if (policies !== undefined && !(Array.isArray(policies) && policies.length > 0)) {
    throw new TidegateError("input", `policies is ${shown(policies)}; name at least one, or leave it out so that all decide`);
  }
  return whole({ attributes, cost, priority, policies, ticket });
}

/** Writes the body of a settlement. */
export function settle(ticket: string, settling: Settling): string {
  if (typeof ticket !== "string" || ticket === "") {
    throw new TidegateError("input", `ticket is ${shown(ticket)}; pass the ticket of a decision that has one`);
  }
  const { cost, attributes, status, outcome, refund } = settling;
  if ([cost, attributes, status, outcome, refund].every((field) => field === undefined)) {
    throw new TidegateError("input", "nothing to settle; tell cost, attributes, status, outcome or refund");
  }
  if (cost !== undefined) amount(cost);
  if (attributes !== undefined) amount(attributes);
  return whole({ ticket, cost, attributes, status, outcome, refund });
}

/** Refuses an amount that the server would not understand. */
export function amount(used: Amount): void {
  const wrong = (what: string, value: unknown): TidegateError =>
    new TidegateError("input", `${what} is ${shown(value)}; settle with a whole number, 0 or more`);
  if (typeof used !== "object" || used === null) {
    if (!(Number.isSafeInteger(used) && used >= 0)) throw wrong("what was used", used);
    return;
  }
  named(used, (name, value) => {
    if (value === null || typeof value === "string") return;
    if (!(Number.isSafeInteger(value) && Number(value) >= 0)) throw wrong(shown(name), value);
  });
}

/** Looks at names and the length of values. */
function named(values: unknown, look: (name: string, value: unknown) => void): void {
  // Of a Headers, a Map or a class, JSON would make an empty object, which no policy is about.
  if (!isPlain(values)) {
    throw new TidegateError("input", `attributes are ${shown(values)}; send a plain object such as { "user.id": "ann" }`);
  }
  const entries = Object.entries(values);
  if (entries.length > ATTRIBUTES) throw new BadValue(`there are ${entries.length} attributes; send at most ${ATTRIBUTES}`);
  for (const [name, value] of entries) {
    if (name === "") throw new TidegateError("input", "an attribute has an empty name; name it, such as user.id");
    whether(name, NAME, "the name of attribute");
    look(name, value);
    if (typeof value === "string") whether(value, VALUE, `the value of attribute ${shown(name)}:`);
  }
}

/** Refuses misspelt words: an option that is ignored limits something else than was meant. */
export function known(what: string, options: unknown, words: readonly string[]): void {
  if (!isPlain(options)) throw new TidegateError("input", `the ${what}s are ${shown(options)}; pass an object with some of ${words.join(", ")}`);
  for (const word of Object.keys(options)) {
    if (!words.includes(word)) throw new TidegateError("input", `${what} ${shown(word)} is not known; there are ${words.join(", ")}`);
  }
}

function isPlain(value: unknown): value is Readonly<Record<string, unknown>> {
  if (!isObject(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  // Or the same of another realm, as where tests run in one.
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

function whether(text: string, most: number, what: string): void {
  if (text.length * 3 > most && bytes(text) > most) {
    throw new BadValue(`${what} ${shown(text)} has ${bytes(text)} bytes; send at most ${most}`);
  }
  if (/\p{Surrogate}/u.test(text)) throw new BadValue(`${what} ${shown(text)} is no Unicode text: half a character is missing`);
}

function whole(fields: object): string {
  const body = JSON.stringify(fields);
  if (body.length * 3 > BODY && bytes(body) > BODY) {
    throw new BadValue(`the call has ${bytes(body)} bytes; send at most ${BODY}`);
  }
  return body;
}
