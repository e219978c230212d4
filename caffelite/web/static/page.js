// What all scripts use: elements that are found and made, and drawing in the next frame.

export const $ = (id) => document.getElementById(id);

/** Make an element with these properties or attributes, and with this content, elements or texts. */
export function make(tag, properties = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...content);
  return element;
}

/** Give a canvas this size in pixels of the page. Return a pen that draws on it in these; the canvas is empty. */
export function clearCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.scale(ratio, ratio);
  return pen;
}

/** Draw a straight line. */
export function strokeLine(pen, fromX, fromY, toX, toY) {
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

/** Return a function that calls `draw` in the next frame: once, also if it is called several times before. */
export function drawNextFrame(draw) {
  let isRequested = false;
  return () => {
    if (isRequested) return;
    isRequested = true;
    requestAnimationFrame(() => {
      isRequested = false;
      draw();
    });
  };
}

/** Give the user a file of this name. */
export function download(name, blob) {
  const href = URL.createObjectURL(blob);
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
