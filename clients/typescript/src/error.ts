/**
 * What went wrong, by what one can do about it:
 *
 * - `input`: this call has a mistake; the message says what would work.
 * - `access`: the token is wrong, or lacks the scope `check`.
 * - `ticket`: the ticket was used before, is too old, or belongs to another server.
 * - `unavailable`: the server could not be reached, was late, broke off, answered nonsense or could not decide.
 * - `denied`: the server refused, in a call that has nothing to return then.
 */
export type ErrorKind = "input" | "access" | "ticket" | "unavailable" | "denied";

export class TidegateError extends Error {
  override readonly name: string = "TidegateError";

  constructor(
    readonly kind: ErrorKind,
    message: string,
    /** The HTTP status that the server answered; null if none came, or the client refused before it asked. */
    readonly answered: number | null = null,
    /** Whether the server may have charged this call all the same: it was asked, and its answer is missing. */
    readonly mayHaveCharged: boolean = false,
    cause?: unknown,
  ) {
    super(message, cause === undefined ? undefined : { cause });
  }
}

/** A mistake in a value that often comes from a stranger: too long, or no valid text. */
export class BadValue extends TidegateError {
  override readonly name = "BadValue";

  constructor(message: string) {
    super("input", message);
  }
}

/** Tells what a caller passed, shortly and on one line. */
export function shown(value: unknown): string {
  if (typeof value === "string") return oneLine(JSON.stringify(value.slice(0, 100)), 80);
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return oneLine(String(value), 80);
  if (Array.isArray(value)) return "a list";
  const kind = "constructor" in value && typeof value.constructor === "function" ? value.constructor.name : "";
  return oneLine(`an object ${kind}`.trim(), 80);
}

/** Cuts a text, and replaces what could end a line of a log or move a terminal. */
export function oneLine(text: string, most: number): string {
  const visible = text.slice(0, most + 1).replace(/[\p{C}\u2028\u2029]/gu, "\u00b7");
  return visible.length > most ? `${visible.slice(0, most)}…` : visible;
}
