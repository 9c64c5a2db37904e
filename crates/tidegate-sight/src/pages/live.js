// Keeps the page Now fresh, and moves between pages by keys. All pages are complete without this. Names are untrusted:
// only text and the outlines of charts are set, nothing is ever read as HTML.

const fresh = document.getElementById("fresh");
const now = document.querySelector("[data-w]");
const SECOND = 1000;
const grouped = (value) => Math.round(value).toLocaleString("en-US");
const number = (value) => {
  if (!Number.isFinite(value) || value === 0) return value === 0 ? "0" : "–";
  if (Math.abs(value) < 0.05) return "< 0.1";
  return Math.abs(value) < 9.95 ? value.toFixed(1) : grouped(value);
};
const percent = (share) => {
  const value = share * 100;
  if (!Number.isFinite(value) || value === 0) return value === 0 ? "0 %" : "–";
  if (value < 0.05) return "< 0.1 %";
  return value < 99.95 ? `${value.toFixed(1)} %` : `${grouped(value)} %`;
};
const nanos = (value) => {
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const [size, unit] = units.find(([least]) => value >= least) ?? units[3];
  return `${number(value / size)} ${unit}`;
};
const setText = (element, text) => {
  if (element && element.textContent !== text) element.textContent = text;
};

// The same outlines as the server draws (picture.rs).
const thinned = (points, most) => {
  const every = Math.max(1, Math.ceil(points.length / most));
  const out = [];
  for (let at = 0; at < points.length; at += every) {
    const part = points.slice(at, at + every);
    out.push([Math.max(0, ...part.map((one) => one[0])), Math.max(0, ...part.map((one) => one[1]))]);
  }
  return out;
};
const outline = (values, most, width, height) => {
  const step = width / Math.max(1, values.length - 1);
  const y = (value) => (height - (most > 0 ? value / most : 0) * (height - 1)).toFixed(1);
  const line = values.map((value, at) => `L${(at * step).toFixed(0)} ${y(value)}`).join("");
  return `M0 ${height}${line}L${(Math.max(0, values.length - 1) * step).toFixed(0)} ${height}Z`;
};
const labelOf = (title) => title?.textContent.split(": at most ")[0] ?? "";
const draw = (svg, line, most, width, height) => {
  if (!svg || !Array.isArray(line)) return;
  const points = thinned(line, most);
  const all = points.map(([passed, refused]) => passed + refused);
  const refused = points.map((point) => point[1]);
  const [top, worst] = [Math.max(0, ...all), Math.max(0, ...refused)];
  svg.querySelector(".all").setAttribute("d", outline(all, top, width, height));
  svg.querySelector(".refused").setAttribute("d", worst > 0 ? outline(refused, top, width, height) : "");
  const title = svg.querySelector("title");
  setText(title, `${labelOf(title)}: at most ${number(top)} a second, refused at most ${number(worst)}`);
};
const LEVELS = { usual: ["ok", "●", "Usual"], unusual: ["warn", "▲", "UNUSUAL"], trouble: ["bad", "■", "TROUBLE"] };
const live = (name) => document.querySelector(`[data-live="${name}"]`);
let spokenAt = 0;
const showVerdict = ({ level, text }) => {
  const [mark, shape, word] = LEVELS[level] ?? ["quiet", "?", "Not known yet"];
  document.querySelector(".verdict").dataset.level = mark;
  setText(live("shape"), shape);
  setText(live("word"), word);
  setText(live("verdict"), text);
  if (Date.now() - spokenAt >= 30 * SECOND) {
    spokenAt = Date.now();
    setText(document.getElementById("spoken"), `${word}: ${text}`);
  }
};
const showCells = (row, cells) =>
  Object.entries(cells).forEach(([name, text]) => setText(row.querySelector(`[data-cell="${name}"]`), text));
const showRow = (row, policy) => {
  const rates = policy.per_second;
  showCells(row, {
    passed: number(rates.allowed + rates.delayed + rates.over), denied: number(rates.denied),
    mark: policy.unusual ? "▲ " : "", would: rates.would_deny > 0 ? ` (+${number(rates.would_deny)})` : "",
    share: percent(policy.denied_share), keys: grouped(policy.keys_refused),
    most_refused: policy.most_refused ?? "–", hottest: policy.hottest?.key ?? "–",
    of_rate: policy.hottest?.of_rate == null ? "–" : percent(policy.hottest.of_rate),
  });
  draw(row.querySelector("svg"), policy.line, 24, 120, 24);
};
const show = (seen) => {
  showVerdict(seen.verdict);
  const rates = seen.requests.per_second;
  for (const [name, value] of Object.entries(rates)) setText(live(`requests.${name}`), number(value));
  setText(live("requests.all"), number(Object.values(rates).reduce((sum, rate) => sum + rate, 0)));
  setText(live("requests.share"), percent(seen.requests.refused_share));
  setText(live("deciding.p50"), nanos(seen.deciding.p50_ns));
  setText(live("deciding.p99"), nanos(seen.deciding.p99_ns));
  setText(live("deciding.in_flight"), number(seen.deciding.in_flight));
  for (const store of document.querySelectorAll('[data-live="store"]')) {
    setText(store, seen.store.away ? `■ store ${seen.store.kind} away: ${seen.store.away}` : `● store ${seen.store.kind} ok`);
    store.className = seen.store.away ? "bad" : "";
  }
  draw(now.querySelector("svg.chart"), seen.requests.line, 180, 720, 140);
  setText(now.querySelector("figcaption"), `${labelOf(now.querySelector("svg.chart title"))}, until ${seen.at}`);
  const rows = new Map([...now.querySelectorAll("tr[data-policy]")].map((row) => [row.dataset.policy, row]));
  let isNew = false;
  for (const policy of seen.policies) {
    const row = rows.get(policy.name);
    row ? showRow(row, policy) : (isNew = true);
  }
  for (const row of now.querySelectorAll("tr[data-canary]")) showCells(row, seen.canary_cells?.[row.dataset.canary] ?? {});
  // Rows come and go with the page itself, which is seldom.
  if (isNew && rows.size < 50 && performance.now() > 15 * SECOND) location.reload();
};
let [lastAt, arrived, ended, reading] = [now?.dataset.at, Date.now(), false, false];
const read = async () => {
  if (document.hidden || ended || reading) return;
  reading = true;
  try {
    const signal = AbortSignal.timeout(8 * SECOND);
    const answer = await fetch(`/ui/overview.json?w=${encodeURIComponent(now.dataset.w)}`, { cache: "no-store", signal });
    ended = answer.status === 401;
    if (!answer.ok) return;
    const seen = await answer.json();
    if (seen.at !== lastAt) [lastAt, arrived] = [seen.at, Date.now()];
    show(seen);
  } catch { /* Without an answer, what is shown becomes stale. */ } finally {
    reading = false;
    tell();
  }
};
const tell = () => {
  const isStale = ended || Date.now() - arrived > 10 * SECOND;
  const why = ended ? "logged out, " : "";
  const age = Math.round((Date.now() - arrived) / SECOND);
  setText(fresh, isStale ? `■ ${why}STALE since ${new Date(arrived).toISOString().slice(11, 19)}` : `live, ${age} s ago`);
  fresh.className = isStale ? "stale" : "quiet";
};

if (now && fresh) {
  setInterval(read, 2 * SECOND);
  setInterval(tell, SECOND);
  document.addEventListener("visibilitychange", read);
}

let after = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const before = after;
  after = event.key === "g" ? "g" : "";
  const target = before === "g" ? document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)
    : event.key === "/" ? document.querySelector('input[type="search"], textarea') ?? document.querySelector('a[data-key="k"]')
    : event.key === "?" ? document.querySelector("footer") : null;
  if (!target) return;
  event.preventDefault();
  target[target.matches("a") ? "click" : "focus"]();
});
