// The socket to the server. If it closes, the page says so, and tries again. In a notebook, `cell.js` connects the page.

import { decode } from "./messages.js";

const FIRST_WAIT = 1000, MAX_WAIT = 10000; // milliseconds before it tries again, at first and at last

/** Connect, and call `onMessage(message, bytes)` for each message. Returns a function that sends one. */
export function connect(onMessage, onClose) {
  if (window.frameElement?.connect) return frameElement.connect((bytes) => onMessage(decode(bytes), bytes), onClose);
  const token = new URLSearchParams(location.search).get("token") ?? "";
  let socket = null, wait = FIRST_WAIT;
  const open = () => {
    socket = new WebSocket(`ws://${location.host}/socket?token=${encodeURIComponent(token)}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      wait = FIRST_WAIT;
      onClose(null);
    };
    socket.onmessage = (event) => onMessage(decode(event.data), event.data);
    socket.onclose = (event) => {
      onClose(event.reason || "The training program has ended or isn't responding. This page shows what it sent last.");
      if (event.code !== 4001) setTimeout(open, wait);
      wait = Math.min(2 * wait, MAX_WAIT);
    };
  };
  open();
  return (message) => {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  };
}

/** A button that changes between light and dark, and remembers it. In a notebook, the notebook has the theme. */
export function themeButton(button, redraw) {
  if (window.frameElement?.connect) {
    button.hidden = true;
    frameElement.setTheme = (theme) => {
      document.documentElement.dataset.theme = theme;
      redraw();
    };
    return;
  }
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
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
