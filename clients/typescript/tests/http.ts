// Requests over real connections, which can be hung up.

import { once } from "node:events";
import { Agent, request } from "node:http";
import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from "node:http";

export interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/** Sends a request as it is written, and reads the whole answer. */
export async function send(url: string, path: string, headers: OutgoingHttpHeaders = {}, method = "GET"): Promise<Reply> {
  const sent = request(url, { path, headers, method, agent: new Agent() });
  sent.end();
  const [response] = (await once(sent, "response")) as [IncomingMessage];
  let text = "";
  for await (const piece of response) text += String(piece);
  return { status: response.statusCode ?? 0, headers: response.headers, text };
}

/** Begins a request; answers a function that hangs up. */
export function begin(url: string, path: string): { hangUp: () => void; response: Promise<IncomingMessage> } {
  const sent = request(url, { path, agent: new Agent() });
  const response = once(sent, "response").then(([first]) => first as IncomingMessage);
  response.catch(() => undefined);
  sent.on("error", () => undefined);
  sent.end();
  return { hangUp: () => sent.destroy(), response };
}
