// A run as one HTML file, which any browser shows without caffelite: the page with its scripts, its styles and the run.

import { decode, encode } from "./messages.js";

const SCRIPTS = ["live", "chart_tools", "charts", "connection", "matrix", "messages", "page", "page_file", "panels", "pictures"];
const POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:";

const load = async (name) => (await fetch(`/static/${name}`)).text();

function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

const asURL = (type, text) => `data:${type};base64,${toBase64(new TextEncoder().encode(text))}`;

/** Load the parts of the page while its server runs. Return a function that makes the file of a message. */
export function loadPageFile() {
  const sources = Promise.all([...SCRIPTS.map((name) => `${name}.js`), "style.css", "live.css", "icon.svg"].map(load));
  const html = fetch(location.href).then((answer) => answer.text());
  sources.catch(() => {});
  html.catch(() => {});
  return async (message) => fill(await html, await sources, toBase64(new Uint8Array(encode(message))));
}

/** Put the sources and the run into the page. Scripts import each other by name, because they have no addresses. */
function fill(html, sources, run) {
  const icon = asURL("image/svg+xml", sources.pop()), styles = sources.splice(-2).join("\n");
  const imports = Object.fromEntries(SCRIPTS.map((name, i) =>
    [name, asURL("text/javascript", sources[i].replaceAll(/from "\.\/(\w+)\.js"/g, 'from "$1"'))]));
  const head = [
    `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`,
    `<style>${styles}</style>`,
    `<script type="importmap">${JSON.stringify({ imports })}</script>`,
    `<script type="text/plain" id="run-of-file">${run}</script>`,
    '<script type="module">import "live";</script>',
  ].join("\n");
  return html
    .replaceAll(/<link rel="stylesheet".*>\n|<script type="module".*<\/script>\n/g, "")
    .replaceAll("/static/icon.svg", icon)
    .replace("</head>", () => `${head}\n</head>`);
}

/** Return the message in the file that the page is, or null if it has come from a server. */
export function readPageFile() {
  const element = document.getElementById("run-of-file");
  return element && decode(Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0)).buffer);
}
