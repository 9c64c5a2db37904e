"use strict";
// Moves the line of each chart of peaks along the limits that were tried, and shows the results of each limit. All numbers
// were computed before; nothing is computed here. Names are untrusted, so they are inserted as text only.
for (const section of document.querySelectorAll("section.trial")) {
  const find = (selector) => section.querySelector(selector);
  const data = JSON.parse(find("script").textContent);
  const [range, svg] = [find("input"), find("svg")];
  const [level, hits] = [svg.querySelector(".level"), svg.querySelector(".hits")];

  const element = (name, text, className) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  const row = ([place, denied]) => {
    const key = data.keys[place];
    const made = document.createElement("tr");
    const name = document.createElement("td");
    name.append(element("code", key.key));
    made.append(name, element("td", key.requests, "n"), element("td", denied, "n"));
    made.append(element("td", key.signed_in), element("td", key.paths, "names"));
    return made;
  };

  const show = (place) => {
    const rung = data.rungs[place];
    range.value = place;
    range.setAttribute("aria-valuetext", rung.words);
    for (const [name, text] of Object.entries(rung.numbers)) {
      find(`[data-number="${name}"]`).textContent = text;
    }
    level.setAttribute("transform", `translate(0 ${rung.y})`);
    level.querySelector("text").textContent = rung.level;
    hits.setAttribute("d", rung.hits);
    if (rung.yaml) find("[data-yaml]").textContent = rung.yaml;
    find("[data-who] tbody").replaceChildren(...rung.who.map(row));
    find("[data-who]").hidden = rung.who.length === 0;
    find("[data-more]").textContent = rung.more;
    if (rung.yaml) find("[data-copied]").textContent = "";
    section.querySelectorAll("[data-rung]").forEach((line, at) => line.classList.toggle("here", at === place));
  };

  const nearest = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = 0;
    data.rungs.forEach((rung, place) => {
      if (Math.abs(rung.y - at.y) < Math.abs(data.rungs[best].y - at.y)) best = place;
    });
    return best;
  };

  const grip = svg.querySelector(".grip");
  grip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    grip.setPointerCapture(event.pointerId);
    range.focus({ preventScroll: true });
  });
  grip.addEventListener("pointermove", (event) => {
    if (grip.hasPointerCapture(event.pointerId)) show(nearest(event));
  });
  range.addEventListener("input", () => show(Number(range.value)));
  find("[data-back]").addEventListener("click", () => show(data.replayed));

  find("[data-copy]")?.addEventListener("click", async () => {
    const [code, copied] = [find("[data-yaml]"), find("[data-copied]")];
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied.textContent = "copied";
    } catch {
      // Without permission to write to the clipboard, the text is selected, so that the reader can copy it by hand.
      getSelection().selectAllChildren(code);
      copied.textContent = "selected: copy it with the keyboard";
    }
  });

  section.querySelectorAll("[data-scripted]").forEach((made) => (made.hidden = false));
  find("details").open = false;
  section.classList.add("moves");
  show(data.replayed);
}
