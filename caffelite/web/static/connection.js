// The page's way to the server: it comes back when it was lost, and says how it is.

import { decode } from "./messages.js";

const FULL = 4001; // the server has too many pages
const FIRST_WAIT = 500, LONGEST_WAIT = 8000; // milliseconds before it tries again

export class Connection {
  /**
   * `handlers` has a function for each kind of message. `onState(state, why)` is called with "connecting",
   * "connected", "lost" (it tries again) and "full".
   */
  constructor(handlers, onState) {
    this.handlers = handlers;
    this.onState = onState;
    this.wait = FIRST_WAIT;
    this.token = new URLSearchParams(location.search).get("token") ?? "";
    this.open();
  }

  open() {
    this.onState("connecting", "");
    this.socket = new WebSocket(`ws://${location.host}/socket?token=${encodeURIComponent(this.token)}`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.wait = FIRST_WAIT;
      this.onState("connected", "");
    };
    this.socket.onmessage = ({ data }) => {
      const message = decode(data);
      this.handlers[message.kind]?.(message, data);
    };
    this.socket.onclose = ({ code, reason }) => {
      this.onState(code === FULL ? "full" : "lost", reason);
      setTimeout(() => this.open(), this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
    };
  }

  get isOpen() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  /** Send a message. Return false if there is no connection. */
  send(kind, message = {}) {
    if (this.isOpen) this.socket.send(JSON.stringify({ kind, ...message }));
    return this.isOpen;
  }
}
