// Light or dark: as the system says, or as the button `#theme` was clicked. The choice is kept for this page only.

const dark = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => document.documentElement.dataset.theme === "dark";

/** The value of a CSS variable, such as "--ink". */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// M. Okabe and K. Ito, "Color Universal Design", 2008; the order is that of caffelite's figures.
export const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442"];

// Lines have to stand out from their ground, so each theme begins with the colours that do.
const LINES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a3447a", "#8a6100", "#2a7fb0", "#555555"],
  dark: ["#56b4e9", "#e69f00", "#2fc79a", "#e39ac4", "#ff8a3d", "#f0e442", "#bbbbbb"],
};

/** The colour of line number i. */
export const lineColour = (i) => LINES[isDark() ? "dark" : "light"][i % 7];

/** Follow the system and the button; call `changed` after each change. */
export function followTheme(changed) {
  const button = document.querySelector("#theme");
  const set = (isNowDark) => {
    document.documentElement.dataset.theme = isNowDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isNowDark));
    changed();
  };
  dark.addEventListener("change", () => set(dark.matches));
  button.addEventListener("click", () => set(!isDark()));
  set(dark.matches);
}
