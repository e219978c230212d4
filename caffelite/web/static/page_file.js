// A run as one HTML file, which any browser shows without caffelite: the file that `page_file.py` makes, with the run in it.

import { decode, encode } from "./messages.js";

function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

/** Load the page's file while its server runs. Return a function that puts a message into it. */
export function loadPageFile() {
  const html = window.frameElement?.srcdoc || fetch(`/file${location.search}`).then((answer) => answer.text());
  Promise.resolve(html).catch(() => {});
  return async (message) => {
    const run = toBase64(new Uint8Array(encode(message)));
    return (await html).replace("</head>", () => `<script type="text/plain" id="run-of-file">${run}</script>\n</head>`);
  };
}

/** Return the message in the file that the page is, or null if it has come from a server. */
export function readPageFile() {
  const element = document.getElementById("run-of-file");
  return element && decode(Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0)).buffer);
}
