// The page's other end at an address: an engine in a Worker, and the kernels that were measured when the site was built.

import { engine } from "./engine.js";
import { decode } from "./messages.js";
import { themeButton as button } from "./socket.js";

export const themeButton = button;

/** Connect, and call `onMessage(message)` for each message. Returns a function that sends one. */
export function connect(onMessage, onClose) {
  // A page that was opened from a disk may start no script of another file, so the Worker's is in this one.
  const worker = new Worker(URL.createObjectURL(new Blob([`(${engine})()`], { type: "text/javascript" })));
  let config = null, followed = null;
  worker.onmessage = async ({ data }) => {
    if (!(data instanceof ArrayBuffer)) {
      worker.postMessage({ ask: "digits", text: await load("digits") });
      return;
    }
    const message = decode(data);
    if (message.kind === "setting") config = message;
    // A page that nobody sees draws no frame. Then the engine waits.
    if (message.kind === "frame") requestAnimationFrame(() => worker.postMessage({ ask: "drawn" }));
    onMessage(message);
  };
  worker.onerror = ({ message }) => onClose(`The engine of this page has stopped: ${message}. Load the page again.`);
  return async (message) => {
    if (message.ask === "follow") followed = message.place;
    if (message.ask === "kernels") onMessage(describeKernels(await load("machine"), config, followed));
    else if (message.ask === "loop") onMessage(describeLoop(await load("machine"), message.kernel));
    else worker.postMessage(message);
  };
}

const loading = {};

/** What a script next to the page has put into `globalThis[name]`. It is loaded once. */
function load(name) {
  loading[name] ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${name}.js`;
    script.onload = () => resolve(globalThis[name]);
    script.onerror = () => reject(new Error(`${name}.js is not there`));
    document.head.append(script);
  });
  return loading[name];
}

/** What two settings have in common if their steps have the same kernels, of the same shapes. */
function kernelKey({ data, inputs, layers, outputs, activation, norm, loss, dropout, optimizer, batch_size: size }) {
  return JSON.stringify([inputs, layers, outputs, data === "names" || activation, norm, loss, dropout > 0, optimizer, size]);
}

function describeKernels({ nets, about }, config, followed) {
  const { setting, outputs } = config, inputs = Array.isArray(config.inputs) ? config.inputs.length : config.inputs;
  const own = nets.find(({ net }) => kernelKey(net) === kernelKey({ ...setting, inputs, outputs })), shown = own ?? nets[0];
  const { layers, activation, optimizer } = nets[0].net, sizes = [nets[0].net.inputs, ...layers, nets[0].net.outputs].join("-");
  const note = own ? about : `These are the kernels of another net, ${sizes} with ${activation} and ${optimizer}. There is no recording of this one. ${about}`;
  return { ...shown.kernels, note, touching: own && followed ? shown.touching[followed[0]] : null };
}

function describeLoop({ loops }, kernel) {
  return { kind: "loop", kernel, loops: loops[kernel] };
}
