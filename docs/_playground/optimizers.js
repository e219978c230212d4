// The update rules of caffelite/_kernels/loops/update.pyx, for all parameters w and their gradients g.

const f = Math.fround, EPS = f(1e-8);

/** `state` has the vectors that a rule keeps between its steps; `t` counts steps from 1. */
export const RULES = {
  SGD(w, g, state, rate, decay) {
    for (let i = 0; i < w.length; i++) w[i] -= rate * (g[i] + decay * w[i]);
  },
  momentum(w, g, [v], rate, decay) {
    for (let i = 0; i < w.length; i++) {
      v[i] = f(0.9) * v[i] + (g[i] + decay * w[i]);
      w[i] -= rate * v[i];
    }
  },
  RMSProp(w, g, [v], rate, decay) {
    for (let i = 0; i < w.length; i++) {
      const d = f(g[i] + decay * w[i]);
      v[i] = f(0.99) * v[i] + f(0.01) * d * d;
      w[i] -= (rate * d) / (Math.sqrt(v[i]) + EPS);
    }
  },
  Adagrad(w, g, [s], rate, decay) {
    for (let i = 0; i < w.length; i++) {
      const d = f(g[i] + decay * w[i]);
      s[i] += d * d;
      w[i] -= (rate * d) / (Math.sqrt(s[i]) + f(1e-10));
    }
  },
  Adam(w, g, [m, v], rate, decay, t) {
    adam(w, g, m, v, rate, decay, 0, t);
  },
  AdamW(w, g, [m, v], rate, decay, t) {
    adam(w, g, m, v, rate, 0, rate * decay, t);
  },
  Lion(w, g, [m], rate, decay) {
    for (let i = 0; i < w.length; i++) {
      const c = f(f(0.9) * m[i] + f(0.1) * g[i]);
      m[i] = f(0.99) * m[i] + f(0.01) * g[i];
      w[i] -= rate * decay * w[i] + rate * Math.sign(c);
    }
  },
};

/** The vectors that a rule keeps. */
export const STATES = { SGD: 0, momentum: 1, RMSProp: 1, Adagrad: 1, Adam: 2, AdamW: 2, Lion: 1 };

function adam(w, g, m, v, rate, decay, shrink, t) {
  const correction = Math.sqrt(1 - 0.999 ** t), factor = f((rate * correction) / (1 - 0.9 ** t)), eps = f(EPS * correction);
  for (let i = 0; i < w.length; i++) {
    const d = f(g[i] + decay * w[i]);
    m[i] = f(0.9) * m[i] + f(0.1) * d;
    v[i] = f(0.999) * v[i] + f(0.001) * d * d;
    w[i] -= shrink * w[i] + (factor * m[i]) / (Math.sqrt(v[i]) + eps);
  }
}

/** The rate of a step, from 0 on, of a setting. */
export function rateOf({ rate, schedule, epochs, steps }, step) {
  if (schedule === "constant") return f(rate);
  const last = epochs * steps;
  return step >= last ? 0 : f((rate * (1 + Math.cos((Math.PI * step) / last))) / 2);
}
