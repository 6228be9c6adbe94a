// What a page does by itself: it follows the database, says when it does not, and lends a hand to the keyboard.
"use strict";

const STALE_AFTER_MS = 8000;
const mark = document.querySelector("[data-live=mark]");

// Fresh numbers come as messages; what the page shows is fetched anew from its own address when something has changed.
function follow() {
    let heard = 0, shown = null, delay = 1000, source = null;
    const show = (text, kind) => { mark.textContent = text; mark.className = "live " + kind; };
    const connect = () => {
        source = new EventSource("/live");
        source.onmessage = async (message) => {
            heard = Date.now();
            delay = 1000;
            show("live", "on");
            if (shown !== null && shown !== message.data) await refresh();
            shown = message.data;
        };
        source.onerror = () => {
            // With back-off: a server that is away is not knocked at without end.
            source.close();
            setTimeout(connect, delay + Math.random() * delay);
            delay = Math.min(delay * 2, 30000);
        };
    };
    connect();
    // A page that is left lets go: a browser has six connections to a host, also for pages that it keeps to come back to.
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    document.addEventListener("visibilitychange", () => { source.close(); if (!document.hidden) connect(); });
    setInterval(() => { if (Date.now() - heard > STALE_AFTER_MS) show(heard ? "stale: nothing heard" : "not live", heard ? "stale" : ""); }, 1000);
}

// Never under somebody's hands: a form that is being filled in, or a selection, stays.
function busy() {
    const main = document.getElementById("main");
    const field = document.activeElement && document.activeElement.closest("form") && main.contains(document.activeElement);
    return field || main.querySelector("input[type=checkbox]:checked") || main.querySelector("[data-still]") || !window.getSelection().isCollapsed;
}

async function refresh() {
    const main = document.getElementById("main");
    if (busy() || document.hidden) return;
    try {
        const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error", headers: { "X-Outboxd-Follows": "1" } });
        if (!answer.ok || busy()) return;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
        if (fresh) main.replaceChildren(...fresh.childNodes);
    } catch { /* the mark tells that nothing is heard */ }
}

document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-all]")) return;
    for (const box of document.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
});

document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const rows = [...document.querySelectorAll("tbody a.row")];
    const now = rows.indexOf(document.activeElement);
    if (event.key === "/") { event.preventDefault(); const field = document.querySelector("[data-search]"); field ? field.focus() : location.assign("/search"); }
    if (event.key === "j" && rows.length) rows[Math.min(now + 1, rows.length - 1)].focus();
    if (event.key === "k" && rows.length) rows[Math.max(now - 1, 0)].focus();
});

if (mark) follow();
