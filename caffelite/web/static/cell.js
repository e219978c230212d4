// A page in a cell of a notebook: a frame, between which and the kernel the notebook carries messages.

const WAITS = "This page waits for the notebook's kernel. If the kernel has ended, run the cell again.";
const UNHEARD = "The kernel is running a cell. The buttons of this page work again when it has ended.";
const ENDED = "The notebook's kernel has ended. This page stays as it is.";

function render({ model, el }) {
  const frame = document.createElement("iframe");
  let place = null, page = null;

  const send = (text) => model.send({ place, text });
  const close = () => { if (place) model.send({ place, closed: true }); };

  /** Connect the page in the frame. A notebook that moves the frame loads the page again. */
  frame.connect = (onBytes, onClose) => {
    close();
    place = Math.random().toString(36).slice(2);
    page = { onBytes, onClose, why: null, isHeard: false };
    tell(WAITS);
    ask(page, 1000);
    return (message) => send(JSON.stringify(message));
  };
  /** Ask until the kernel answers: the notebook may send first messages to the thread that runs a cell. */
  const ask = (asking, wait) => {
    if (page !== asking || page.isHeard) return;
    send(null);
    setTimeout(ask, wait, asking, 2 * wait);
  };
  const tell = (why) => {
    if (page.why !== why) page.onClose(why);
    page.why = why;
  };
  const receive = (content, buffers) => {
    if (!page || (content.place !== null && content.place !== place)) return;
    page.isHeard ||= content.place !== null;
    tell(content.unheard ? UNHEARD : null);
    for (const { buffer, byteOffset, byteLength } of buffers) page.onBytes(buffer.slice(byteOffset, byteOffset + byteLength));
    send(null);
  };
  const themes = new MutationObserver(() => frame.setTheme?.(theme()));
  const end = () => {
    if (!page) return;
    page.isHeard = true;
    tell(ENDED);
  };

  model.on("msg:custom", receive);
  model.on("comm_live_update", end);
  frame.title = "caffelite";
  frame.style.cssText = "display: block; width: 100%; height: 700px; border: 0";
  frame.srcdoc = model.get("html").replace("<html", `<html data-theme="${theme()}"`);
  themes.observe(document.body, { attributes: true });
  el.append(frame);
  return () => {
    close();
    page = null;
    themes.disconnect();
    model.off("msg:custom", receive);
    model.off("comm_live_update", end);
  };
}

/** The notebook's theme: it is dark if its text is light. */
function theme() {
  const [red, green, blue] = getComputedStyle(document.body).color.match(/[\d.]+/g).map(Number);
  return red + green + blue > 382 ? "dark" : "light";
}

export default { render };
