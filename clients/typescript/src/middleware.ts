import type { CheckOptions, Client } from "./client.js";
import type { Decision } from "./decision.js";
import { TidegateError, oneLine, shown } from "./error.js";
import type { Attributes } from "./input.js";
import { known } from "./input.js";

/** What both kinds of middleware take. `R` is what the functions are given: a request, or a context. */
export interface MiddlewareOptions<R> extends Pick<CheckOptions, "cost" | "priority" | "policies" | "waitMs" | "deadlineMs"> {
  /**
   * How many of your own proxies a request passes before it reaches this program; default 0. So many addresses are counted
   * from the right of `X-Forwarded-For`: what stands further left, a caller can have written. With 0 it is not read.
   */
  readonly proxies?: number | undefined;
  /** In place of `proxies`: reads the address of the caller, as from a header that your proxy always sets. */
  readonly clientIp?: ((request: R) => string | undefined) | undefined;
  /** The headers that policies use, as `request.header.…`, in lower case; those that a request lacks are left out. */
  readonly headers?: readonly string[] | undefined;
  /** Further attributes, such as `user.id`. They win over `client.ip` and `request.*`. */
  readonly attributes?: ((request: R) => Attributes | Promise<Attributes>) | undefined;
}

/** What the middleware reads from a request itself. */
export interface Seen {
  readonly method: string;
  /** With the query, which is cut off. */
  readonly path: string;
  /** The address of the connection. */
  readonly peer: string | undefined;
  /** Reads a header, by its name in lower case; several lines of it are joined by commas. */
  header(name: string): string | undefined;
}

/** An answer of the middleware itself. */
export interface Refusal {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** A request that the middleware cannot ask about, by its caller's fault. */
export class BadRequest extends Error {}

const OPTIONS = ["cost", "priority", "policies", "waitMs", "deadlineMs", "proxies", "clientIp", "headers", "attributes"];

/** Reads requests as the options say; made once for each middleware. */
export class Reader<R> {
  readonly #client: Client;
  readonly #options: MiddlewareOptions<R>;
  #warned = false;

  constructor(client: Client, options: MiddlewareOptions<R>) {
    const { proxies, clientIp, headers = [] } = options;
    if (typeof client.check !== "function") {
      throw new TidegateError("input", `the first argument is ${shown(client)}; pass a Client: tidegate(new Client({ url }), options)`);
    }
    known("option", options, OPTIONS);
    if (proxies !== undefined && !(Number.isSafeInteger(proxies) && proxies >= 0)) {
      throw new TidegateError("input", `proxies is ${shown(proxies)}; write how many of your own proxies a request passes, such as 1`);
    }
    if (proxies !== undefined && clientIp !== undefined) {
      throw new TidegateError("input", "both proxies and clientIp are given; leave one out");
    }
    if (!Array.isArray(headers) || headers.some((name: unknown) => typeof name !== "string" || name !== name.toLowerCase())) {
      throw new TidegateError("input", `headers are ${shown(headers)}; name them in lower case, as ["x-api-key"]`);
    }
    this.#client = client;
    this.#options = options;
  }

  /** Makes the attributes of a check. */
  async attributes(request: R, seen: Seen): Promise<Attributes> {
    const own = (await this.#options.attributes?.(request)) ?? {};
    const host = seen.header("host");
    const headers = (this.#options.headers ?? []).flatMap((name) => {
      const value = seen.header(name);
      return value === undefined ? [] : [[`request.header.${name}`, value] as const];
    });
    const address = "client.ip" in own ? {} : { "client.ip": this.#address(request, seen) };
    const line = { "request.method": seen.method, "request.path": pathOf(seen.path) };
    return { ...line, ...(host ? { "request.host": host } : {}), ...Object.fromEntries(headers), ...address, ...own };
  }

  get asked(): CheckOptions {
    const { cost, priority, policies, waitMs, deadlineMs } = this.#options;
    return { cost, priority, policies, waitMs, deadlineMs };
  }

  #address(request: R, { peer, header }: Seen): string {
    const { proxies, clientIp } = this.#options;
    const forwardedFor = header("x-forwarded-for");
    if (clientIp !== undefined) return addressIn(clientIp(request), "what clientIp reads");
    if (proxies === undefined && forwardedFor !== undefined && !this.#warned) {
      this.#warned = true;
      this.#client.warn(
        `a request from ${shown(peer)} has X-Forwarded-For, which is not read: if a proxy sent it, all callers behind it count as one; ` +
          "write `proxies: 1` if each request passes one proxy of yours, or `proxies: 0` if callers reach this program themselves",
      );
    }
    if (proxies === undefined || proxies === 0) {
      if (peer !== undefined) return bare(peer);
      throw new TidegateError("input", "the address of the connection is not known here; write `clientIp: (c) => getConnInfo(c).remote.address`, `proxies`, or the attribute client.ip");
    }
    const chain = forwardedFor === undefined ? [] : forwardedFor.split(",");
    const entry = chain[chain.length - proxies]?.trim();
    // With fewer entries than proxies, the count is wrong or a proxy was passed by. To take what is there would let a
    // caller behind a count too high choose its own address.
    if (entry === undefined) throw new BadRequest(`X-Forwarded-For has ${chain.length} of ${proxies} addresses`);
    return addressIn(entry, "an entry of X-Forwarded-For");
  }
}

function addressIn(text: string | undefined, what: string): string {
  const address = bare(text ?? "");
  if (!/^(\d{1,3}(\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]*)$/i.test(address)) throw new BadRequest(`${what} is no address`);
  return address;
}

/** Takes an address out of brackets, off its port and its zone. */
function bare(address: string): string {
  const bracketed = /^\[([^\]]*)\](:\d+)?$/.exec(address)?.[1];
  const withPort = /^([\d.]+):\d+$/.exec(address)?.[1];
  return (bracketed ?? withPort ?? address).replace(/%.*$/, "");
}

/** Takes the path out of the target of a request: without the query, and without scheme and host if it has them. */
function pathOf(target: string): string {
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "").replace(/[?#].*$/s, "");
  return path.startsWith("/") ? path : `/${path}`;
}

/** Makes the answer to a refused request: the part of the server's answer that anybody may see. */
export function refusal(decision: Decision): Refusal {
  const { problem, policy, id, retry, retryAfterMs, status, headers } = decision;
  const body = {
    ...problem,
    status,
    "violated-policies": policy === null ? [] : [policy],
    ...(id === null ? {} : { "tidegate-decision-id": id }),
    retry,
    retry_after_ms: retryAfterMs,
  };
  return { status, headers: { ...headers, ...PROBLEM }, body: JSON.stringify(body) };
}

/** Makes the answer to a request that cannot be asked about. */
export function badRequest(error: Error): Refusal {
  const body = { type: "about:blank", title: "Bad Request", status: 400, detail: oneLine(error.message, 300) };
  return { status: 400, headers: PROBLEM, body: JSON.stringify(body) };
}

const PROBLEM = { "content-type": "application/problem+json", "cache-control": "no-store" };
