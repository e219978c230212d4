// A matrix on a canvas: a square for each number, with names of the rows and columns.

import { colour } from "./charts.js";
import { clearCanvas } from "./page.js";
import { ORANGE, mix, rgb } from "./pictures.js";

/**
 * Draw `values` (rows × columns, flat) with their `shape` on a canvas of `width` pixels of the page. `share(i, j)` is
 * the strength of a square, 0 … 1; `isWrong(i, j)` colours it orange; `text(i, j)` is written into it.
 */
export function drawMatrix(canvas, width, [rows, columns], { share, isWrong, text, rowNames, columnNames, mono }) {
  const pen = clearCanvas(canvas, width, width), [ground, blue] = ["--card", "--blue"].map((name) => rgb(colour(name)));
  const font = (size) => { pen.font = `${size}px ${mono ? "ui-monospace, monospace" : "system-ui, sans-serif"}`; };
  font(11);
  const margin = 8 + Math.max(0, ...rowNames.map((name) => pen.measureText(name).width));
  const size = (width - margin) / Math.max(rows, columns);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${margin + rows * size}px`;
  pen.textBaseline = "middle";
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const strength = share(i, j), x = margin + j * size, y = i * size, gap = size > 8 ? 1 : 0;
      pen.fillStyle = `rgb(${mix(ground, strength && isWrong?.(i, j) ? ORANGE : blue, strength || 0.03)})`;
      pen.fillRect(x, y, size - gap, size - gap);
      const words = text?.(i, j) ?? "";
      if (!words || size < 14) continue;
      font(Math.min(13, size / 2.3));
      pen.textAlign = "center";
      pen.fillStyle = strength <= 0.45 ? colour("--ink") : isWrong?.(i, j) ? "#15181c" : colour("--page");
      pen.fillText(words, x + size / 2, y + size / 2, size - 3);
    }
  }
  pen.fillStyle = colour("--soft");
  font(Math.min(11, size * 1.1));
  pen.textAlign = "right";
  rowNames.forEach((name, i) => pen.fillText(name, margin - 5, (i + 0.5) * size));
  pen.textAlign = "center";
  pen.textBaseline = "top";
  columnNames.forEach((name, j) => pen.fillText(name, margin + (j + 0.5) * size, rows * size + 4, size + 2));
}
