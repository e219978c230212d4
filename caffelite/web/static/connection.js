// The socket to the server. If it closes, the page says so, and tries again.

import { decode } from "./messages.js";

const AGAIN = 1000, SELDOM = 10000; // milliseconds before it tries again, at first and at last

/** Connect, and call `handle(message, bytes)` for each message. Returns a function that sends one. */
export function connect(handle, gone) {
  const token = new URLSearchParams(location.search).get("token") ?? "";
  let socket = null, wait = AGAIN;
  const open = () => {
    socket = new WebSocket(`ws://${location.host}/socket?token=${encodeURIComponent(token)}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      wait = AGAIN;
      gone(null);
    };
    socket.onmessage = (event) => handle(decode(event.data), event.data);
    socket.onclose = (event) => {
      gone(event.reason || "The program that trains has ended, or does not answer. This page shows what it last said.");
      if (event.code !== 4001) setTimeout(open, wait);
      wait = Math.min(2 * wait, SELDOM);
    };
  };
  open();
  return (message) => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  };
}

/** A button that changes between light and dark, and remembers it. */
export function themeButton(button, redraw) {
  const kept = localStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
    "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.onclick = () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", document.documentElement.dataset.theme);
    name();
    redraw();
  };
  name();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); redraw(); });
}
