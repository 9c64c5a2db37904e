import { TidegateError, oneLine, shown } from "./error.js";
import type { ErrorKind } from "./error.js";

/** The longest answer that is read, in bytes: one with 256 limits of long names has about 150,000. */
const MOST = 1024 * 1024;

/** An answer, read to its end. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** The members of the JSON object in it; null if its body is none. */
  readonly body: Readonly<Record<string, unknown>> | null;
  readonly text: string;
}

/** The part of `fetch` that is used. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** A token, or what yields the present one, for tokens that change. */
export type Token = string | (() => string);

/** One server, and how it is asked. */
export class Wire {
  readonly #base: string;
  readonly #token: Token | undefined;
  readonly #fetch: Fetch;

  constructor(url: string, token: Token | undefined, fetch: Fetch | undefined) {
    this.#base = base(url);
    this.#token = token;
    if (typeof token !== "function") tokenOf(token);
    const found: unknown = fetch ?? globalThis.fetch;
    if (typeof found !== "function") {
      throw new TidegateError("input", "there is no global fetch here; pass one: new Client({ url, fetch })");
    }
    // Called without an object, as some platforms demand.
    this.#fetch = fetch ?? ((address, init) => globalThis.fetch(address, init));
  }

  /** The address of the server, for messages. */
  get url(): string {
    return this.#base;
  }

  /** Posts a body, and reads the answer; fails as `unavailable` or with the signal's reason. Tries once. */
  async post(path: string, body: string, signal: AbortSignal): Promise<Answer> {
    const headers: Record<string, string> = { "content-type": "application/json", accept: "application/json" };
    const token = tokenOf(typeof this.#token === "function" ? this.#token() : this.#token);
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
    let status: number | null = null;
    try {
      // A redirect is an answer like others: to follow it would carry the token elsewhere.
      const response = await this.#fetch(`${this.#base}${path}`, { method: "POST", headers, body, redirect: "manual", signal });
      status = response.status;
      if (response.type === "opaqueredirect" || (status >= 300 && status < 400)) {
        await response.body?.cancel().catch(() => undefined);
        const to = oneLine(response.headers.get("location") ?? "somewhere else", 200);
        throw this.#unavailable(`redirects to ${to}; give the address of tidegate serve itself as \`url\``, status);
      }
      const text = await this.#read(response);
      return { status, headers: response.headers, body: object(text), text };
    } catch (error) {
      if (error instanceof TidegateError) throw error;
      if (signal.aborted) throw signal.reason;
      const code = codeOf(error);
      const what = status === null ? "cannot be reached" : "broke its answer off";
      const why = code === null ? oneLine(messageOf(error), 200) : code;
      const message = `${this.#base} ${what} (${why}); see that tidegate serve runs there`;
      throw new TidegateError("unavailable", message, status, code === null || !UNSENT.has(code), error);
    }
  }

  /** Makes the error of an answer that is not what was asked for. */
  refusal(answer: Answer): TidegateError {
    const { status, body } = answer;
    const detail = body !== null && typeof body["detail"] === "string" ? body["detail"] : null;
    const kind = kindOf(status);
    if (kind === "unavailable") {
      return this.#unavailable(`answered ${status}: ${oneLine(detail ?? shown(answer.text), 500)}`, status);
    }
    // `detail` of Tidegate names the mistake and the right word.
    const doubt = detail === null ? `${shown(answer.text)}; see that this is the address of tidegate serve` : oneLine(detail, 2000);
    const hint = kind === "access" ? "; give the client a `token` with the scope check" : "";
    return new TidegateError(kind, `${this.#base} answered ${status}: ${doubt}${hint}`, status);
  }

  #unavailable(what: string, status: number): TidegateError {
    return new TidegateError("unavailable", `${this.#base} ${what}`, status, true);
  }

  async #read(response: Response): Promise<string> {
    if (response.body === null) return "";
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let [text, length] = ["", 0];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return text + decoder.decode();
      length += value.byteLength;
      if (length > MOST) {
        await reader.cancel().catch(() => undefined);
        throw this.#unavailable(`answered more than ${MOST} bytes, which no answer of Tidegate has`, response.status);
      }
      text += decoder.decode(value, { stream: true });
    }
  }
}

/** Errors before anything was sent. */
const UNSENT: ReadonlySet<string> = new Set([
  "ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT",
]);

function base(url: string): string {
  const wrong = (why: string): TidegateError =>
    new TidegateError("input", `url ${shown(url)} ${why}; write the address of tidegate serve, such as http://127.0.0.1:8080`);
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw wrong("is no address");
  }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") throw wrong("begins with neither http:// nor https://");
  if (parsed.username !== "" || parsed.password !== "") throw wrong("has a login, which fetch refuses (a token goes into `token`)");
  if (parsed.search !== "" || parsed.hash !== "") throw wrong("has a query or a fragment");
  if (/\/v1(\/|$)/.test(parsed.pathname)) throw wrong("has the path of a call, which the client adds itself");
  return parsed.origin + parsed.pathname.replace(/\/+$/, "");
}

function tokenOf(token: string | undefined): string | undefined {
  if (token === undefined) return undefined;
  // The token itself is not told: it would stand in logs.
  if (typeof token !== "string" || token === "") {
    throw new TidegateError("input", `token is ${token === "" ? "empty" : typeof token}; give the server's token, or leave \`token\` out if it has none`);
  }
  const bad = token.search(/[^\x21-\x7e]/);
  if (bad >= 0) {
    throw new TidegateError("input", `token has a space, a newline or another character that no token has, at ${bad + 1} of ${token.length}; trim what was read from a file: token.trim()`);
  }
  return token;
}

function kindOf(status: number): ErrorKind {
  if ([400, 404, 405, 413, 415, 422, 431].includes(status)) return "input";
  if (status === 401 || status === 403) return "access";
  if (status === 409 || status === 410 || status === 421) return "ticket";
  return "unavailable";
}

function object(text: string): Readonly<Record<string, unknown>> | null {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Finds the system's word for an error of fetch, which hides it in `cause`. */
function codeOf(error: unknown): string | null {
  for (let depth = 0, at: unknown = error; depth < 4 && isObject(at); depth += 1, at = at["cause"]) {
    if (typeof at["code"] === "string") return at["code"];
  }
  return null;
}

function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}
