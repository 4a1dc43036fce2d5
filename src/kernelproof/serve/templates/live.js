// Replaces the ladder of a session whenever the server says that it changed.
"use strict";
const live = document.getElementById("live");
if (live && live.dataset.events) {
  const words = document.getElementById("connection");
  const source = new EventSource(live.dataset.events);
  source.onerror = () => { words.textContent = "no connection; trying again"; };
  source.onmessage = (event) => {
    // What was open stays open, and a table stays where it was scrolled to.
    const open = [...live.querySelectorAll("details[open]")].map((one) => one.id);
    const left = live.querySelector(".scroll")?.scrollLeft ?? 0;
    live.innerHTML = event.data;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    const table = live.querySelector(".scroll");
    if (table) table.scrollLeft = left;
    words.textContent = "live";
  };
  source.addEventListener("end", () => {
    source.close();
    words.textContent = "closed";
    document.querySelector("form.send")?.remove();
  });
}
