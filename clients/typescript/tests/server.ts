// A real `tidegate serve`, which the tests start, kill, stop and continue.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo, Server as NetServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";

/** The folder of this client. */
export const HERE = resolve(import.meta.dirname, "..");

/** Finds the program to test with. */
export function program(): string {
  const named = process.env["TIDEGATE"];
  const onPath = (process.env["PATH"] ?? "").split(delimiter).map((folder) => join(folder, "tidegate"));
  const built = ["release", "debug"].map((profile) => resolve(HERE, "../../target", profile, "tidegate"));
  const places = named === undefined ? [...onPath, ...built] : [named];
  const found = places.find((place) => {
    try {
      accessSync(place, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
  if (found !== undefined) return found;
  const where = named === undefined ? "neither on PATH nor built" : `not at TIDEGATE=${named}`;
  throw new Error(`the program tidegate is ${where}; run \`cargo build -p tidegate-cli\`, or set TIDEGATE to its path`);
}

export class Server {
  readonly url: string;
  readonly #folder: string;
  readonly #port: number;
  readonly #token: string | undefined;
  #process: ChildProcess | undefined;
  #log = "";

  private constructor(policies: string, port: number, token: string | undefined) {
    this.#folder = mkdtempSync(join(tmpdir(), "tidegate-ts-"));
    writeFileSync(join(this.#folder, "policies.yaml"), policies);
    this.#port = port;
    this.#token = token;
    this.url = `http://127.0.0.1:${port}`;
  }

  /** Starts a server with a policy file, on a port that is free. */
  static async start(policies: string, token?: string): Promise<Server> {
    const server = new Server(policies, await freePort(), token);
    await server.run();
    return server;
  }

  /** Starts it, or starts it again on the same port. */
  async run(): Promise<void> {
    const { TIDEGATE: _, ...env } = process.env;
    const args = ["serve", "-c", join(this.#folder, "policies.yaml"), "--http", `127.0.0.1:${this.#port}`];
    const token = this.#token === undefined ? {} : { TIDEGATE_TOKEN: this.#token };
    // Counters on disk go with the folder.
    const child = spawn(program(), args, { env: { ...env, ...token, XDG_STATE_HOME: this.#folder }, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = child;
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (text: Buffer) => (this.#log += text.toString()));
    for (let tries = 0; tries < 400; tries += 1) {
      if (child.exitCode !== null) break;
      const answer = await fetch(`${this.url}/livez`).catch(() => null);
      await answer?.text();
      if (answer?.status === 200) return;
      await new Promise((wait) => setTimeout(wait, 25));
    }
    throw new Error(`tidegate serve did not start:\n${this.#log}`);
  }

  /** Ends it as a crash does. */
  async kill(): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
  }

  /** Stops it from answering; returns when all of its threads have stopped. */
  async pause(): Promise<void> {
    const pid = this.#process?.pid;
    assert.ok(pid);
    process.kill(pid, "SIGSTOP");
    await until("the server has stopped", () => stopped(pid));
  }

  resume(): void {
    this.#process?.kill("SIGCONT");
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Reads the places that are taken under a policy without `by`. */
  async placesTaken(policy: string): Promise<number> {
    const answer = await fetch(`${this.url}/v1/policies/${policy}`);
    const body = (await answer.json()) as { readonly places?: { readonly in_use: number } };
    if (body.places === undefined) throw new Error(`policy ${policy} has no places: ${JSON.stringify(body)}`);
    return body.places.in_use;
  }
}

/** Returns whether all threads of a process are stopped; elsewhere than on Linux its signal has to do. */
function stopped(pid: number): boolean {
  if (process.platform !== "linux") return true;
  const threads = readdirSync(`/proc/${pid}/task`);
  return threads.every((thread) => readFileSync(`/proc/${pid}/task/${thread}/stat`, "utf8").replace(/^.*\) /s, "").startsWith("T"));
}

export async function freePort(): Promise<number> {
  const server = createServer();
  const port = await listening(server);
  server.close();
  await once(server, "close");
  return port;
}

/** Lets a server listen on loopback; answers its port. */
export async function listening(server: NetServer): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

/** Waits until something holds; fails after ten seconds. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + 10_000;
  while (!(await holds())) {
    if (performance.now() > end) throw new Error(`in ten seconds not: ${what}`);
    await new Promise((wait) => setTimeout(wait, 10));
  }
}
