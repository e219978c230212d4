#include "kernel.h"

/* The optimizers' updates of n parameters w by their gradients g. `hyper` are the rule's hyper-parameters. `steps` has a
 * row (elements, step t) for each parameter. A running mean that becomes subnormal is set to 0. */

/* hyper: lr, momentum, decay, nesterov */
KERNEL void sgd(int n, float *restrict w, const float *restrict g, float *restrict velocity, const double *hyper)
{
    const float lr = (float)hyper[0], momentum = (float)hyper[1], decay = (float)hyper[2], nesterov = (float)hyper[3];
    for (int i = 0; i < n; i++) {
        const float d = g[i] + decay * w[i];
        if (velocity) {
            const float v = momentum * velocity[i] + d;
            velocity[i] = v;
            w[i] -= lr * (nesterov != 0 ? d + momentum * v : v);
        } else
            w[i] -= lr * d;
    }
}

/* hyper: lr, eps, decay */
KERNEL void adagrad(int n, float *restrict w, const float *restrict g, float *restrict total, const double *hyper)
{
    const float lr = (float)hyper[0], eps = (float)hyper[1], decay = (float)hyper[2];
    for (int i = 0; i < n; i++) {
        const float d = g[i] + decay * w[i];
        total[i] += d * d;
        w[i] -= lr * d / (sqrtf(total[i]) + eps);
    }
}

/* hyper: lr, rho, eps, decay; the state is the mean squares of gradients, and then of steps */
KERNEL void adadelta(int n, float *restrict w, const float *restrict g, float *restrict v, float *restrict u,
                     const double *hyper)
{
    const float lr = (float)hyper[0], rho = (float)hyper[1], eps = (float)hyper[2], decay = (float)hyper[3];
    const float rest = (float)(1 - hyper[1]);
    for (int i = 0; i < n; i++) {
        const float d = g[i] + decay * w[i], square = rho * v[i] + rest * d * d;
        const float step = d * (sqrtf(u[i] + eps) / sqrtf(square + eps)), next = rho * u[i] + rest * step * step;
        w[i] -= lr * step;
        v[i] = eps > 0 && square < FLT_MIN ? 0 : square;
        u[i] = eps > 0 && next < FLT_MIN ? 0 : next;
    }
}

/* hyper: lr, alpha, eps, momentum, decay; the state is the mean squares, and then the velocity if there is one */
KERNEL void rmsprop(int n, float *restrict w, const float *restrict g, float *restrict v, float *restrict velocity,
                    const double *hyper)
{
    const float lr = (float)hyper[0], alpha = (float)hyper[1], eps = (float)hyper[2];
    const float momentum = (float)hyper[3], decay = (float)hyper[4], rest = (float)(1 - hyper[1]);
    for (int i = 0; i < n; i++) {
        const float d = g[i] + decay * w[i], square = alpha * v[i] + rest * d * d;
        float step = d / (sqrtf(square) + eps);
        if (velocity) {
            step += momentum * velocity[i];
            velocity[i] = fabsf(step) < FLT_MIN ? 0 : step;
        }
        w[i] -= lr * step;
        v[i] = eps > 0 && square < FLT_MIN ? 0 : square;
    }
}

/* hyper: lr, beta1, beta2, decay */
KERNEL void lion(int n, float *restrict w, const float *restrict g, float *restrict m, const double *hyper)
{
    const float lr = (float)hyper[0], shrink = (float)(hyper[0] * hyper[3]);
    const float beta1 = (float)hyper[1], rest1 = (float)(1 - hyper[1]);
    const float beta2 = (float)hyper[2], rest2 = (float)(1 - hyper[2]);
    for (int i = 0; i < n; i++) {
        const float c = beta1 * m[i] + rest1 * g[i], next = beta2 * m[i] + rest2 * g[i];
        w[i] -= shrink * w[i] + (c > 0 ? lr : c < 0 ? -lr : c);
        m[i] = fabsf(next) < FLT_MIN ? 0 : next;
    }
}

/* hyper: lr, beta1, beta2, eps, decay; the state is the means, and then the mean squares. If `decoupled`, it is AdamW. */
KERNEL void adam(int parameters, int decoupled, float *restrict w, const float *restrict g, float *restrict m,
                 float *restrict v, const double *hyper, const double *steps)
{
    int i = 0;
    for (int p = 0; p < parameters; p++) {
        const double t = steps[2 * p + 1], correction = sqrt(1 - pow(hyper[2], t));
        const float lr = (float)(hyper[0] * correction / (1 - pow(hyper[1], t))), eps = (float)(hyper[3] * correction);
        const float decay = decoupled ? 0 : (float)hyper[4], shrink = decoupled ? (float)(hyper[0] * hyper[4]) : 0;
        const float beta1 = (float)hyper[1], rest1 = (float)(1 - hyper[1]);
        const float beta2 = (float)hyper[2], rest2 = (float)(1 - hyper[2]);
        const int end = i + (int)steps[2 * p];
        for (; i < end; i++) {
            const float d = g[i] + decay * w[i], mean = beta1 * m[i] + rest1 * d, square = beta2 * v[i] + rest2 * d * d;
            w[i] -= shrink * w[i] + lr * mean / (sqrtf(square) + eps);
            m[i] = fabsf(mean) < FLT_MIN ? 0 : mean;
            v[i] = eps > 0 && square < FLT_MIN ? 0 : square;
        }
    }
}

/* μ(t) = β₁ (1 − 0.96^(t · momentum decay) / 2) */
KERNEL double nadam_momentum(const double *hyper, double t) { return hyper[1] * (1 - 0.5 * pow(0.96, t * hyper[5])); }

/* hyper: lr, beta1, beta2, eps, decay, momentum decay; a row of steps is (elements, t, product of the momenta) */
KERNEL void nadam(int parameters, float *restrict w, const float *restrict g, float *restrict m, float *restrict v,
                  const double *hyper, const double *steps)
{
    int i = 0;
    for (int p = 0; p < parameters; p++) {
        const double t = steps[3 * p + 1], product = steps[3 * p + 2], correction = sqrt(1 - pow(hyper[2], t));
        const double next = nadam_momentum(hyper, t + 1);
        const float of_gradient = (float)(hyper[0] * correction * (1 - nadam_momentum(hyper, t)) / (1 - product));
        const float of_mean = (float)(hyper[0] * correction * next / (1 - product * next));
        const float eps = (float)(hyper[3] * correction), decay = (float)hyper[4];
        const float beta1 = (float)hyper[1], rest1 = (float)(1 - hyper[1]);
        const float beta2 = (float)hyper[2], rest2 = (float)(1 - hyper[2]);
        const int end = i + (int)steps[3 * p];
        for (; i < end; i++) {
            const float d = g[i] + decay * w[i], mean = beta1 * m[i] + rest1 * d, square = beta2 * v[i] + rest2 * d * d;
            w[i] -= (of_gradient * d + of_mean * mean) / (sqrtf(square) + eps);
            m[i] = fabsf(mean) < FLT_MIN ? 0 : mean;
            v[i] = eps > 0 && square < FLT_MIN ? 0 : square;
        }
    }
}

/* t ← t + 1 for each parameter */
KERNEL void count_steps(int parameters, double *steps)
{
    for (int p = 0; p < parameters; p++) steps[2 * p + 1] += 1;
}

/* t ← t + 1, product ← product · μ(t) for each parameter */
KERNEL void count_nadam_steps(int parameters, double *steps, const double *hyper)
{
    for (int p = 0; p < parameters; p++) {
        steps[3 * p + 1] += 1;
        steps[3 * p + 2] *= nadam_momentum(hyper, steps[3 * p + 1]);
    }
}

/* The rate of a schedule after step t; see `net_learning_rate`. If rates[0] is below 0, the others last −rates[0] steps. */
KERNEL void follow(int n, double *hyper, const double *rates, int32_t *t)
{
    if (*t < 0)
        return;
    *t += 1;
    if (rates[0] < 0) {
        const double i = *t / -rates[0];
        hyper[0] = rates[1 + (i < n - 2 ? (int)i : n - 2)];
    } else
        hyper[0] = rates[*t < n - 1 ? *t : n - 1];
}

/* y ← decay y + (1 − decay) x */
KERNEL void ema(int n, float *restrict y, const float *restrict x, float rate)
{
    for (int i = 0; i < n; i++) y[i] += rate * (x[i] - y[i]);
}

/* y = √(Σ g² + z²); return whether it is finite. */
KERNEL int norm(int n, double *y, const float *g, const double *z)
{
    double total = z ? *z * *z : 0;
    for (int i = 0; i < n; i++) total += (double)g[i] * g[i];
    *y = sqrt(total);
    return *y - *y == 0;
}

/* g ← g · limit / (norm + 10⁻⁶), if that is smaller */
KERNEL void limit_norm(int n, float *g, const double *size, double limit)
{
    const float factor = (float)(limit / (*size + 1e-6));
    if (factor < 1)
        for (int i = 0; i < n; i++) g[i] *= factor;
}
