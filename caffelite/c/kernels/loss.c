#include "softmax.c"

/* Losses of n rows of C classes. share[i] is the share of row i in the mean; without shares it is 1 / n. */

/* Return whether each label is in 0 … C − 1, or the ignored one. */
KERNEL int check_labels(int n, int C, int ignores, int ignored, const int32_t *labels)
{
    for (int i = 0; i < n; i++)
        if ((labels[i] < 0 || labels[i] >= C) && !(ignores && labels[i] == ignored))
            return 0;
    return 1;
}

/* Return whether each row has numbers in 0 … largest, with the sum 1. */
KERNEL int check_probabilities(int n, int C, const float *t, float largest, float tolerance)
{
    for (int i = 0; i < n; i++, t += C) {
        float total = 0;
        for (int j = 0; j < C; j++) {
            if (!(t[j] >= 0 && t[j] <= largest))
                return 0;
            total += t[j];
        }
        if (!(fabsf(total - 1) <= tolerance))
            return 0;
    }
    return 1;
}

/* p = softmax(s),  rows[i] = −log p[i, label], mixed by the smoothing with its mean over all classes */
KERNEL void softmax_loss(int n, int C, int ignores, int ignored, float smoothing, float *restrict p,
                         const float *restrict s, const int32_t *restrict labels, float *restrict rows)
{
    for (int i = 0; i < n; i++, p += C, s += C) {
        float m, all = 0;
        const float total = exponentials(C, p, s, &m), scale = 1 / total;
        for (int j = 0; j < C; j++) p[j] *= scale;
        if (smoothing != 0)
            for (int j = 0; j < C; j++) all += s[j] - m;
        if (ignores && labels[i] == ignored)
            rows[i] = 0;
        else
            rows[i] = logf(total) - ((1 - smoothing) * (s[labels[i]] - m) + smoothing / C * all);
    }
}

/* ds[i, j] = dy share[i] (p[i, j] − (1 − smoothing) [j = label] − smoothing / C), 0 if the label is ignored */
KERNEL void softmax_loss_grad(int n, int C, int ignores, int ignored, float smoothing, float *restrict ds,
                              const float *restrict p, const int32_t *restrict labels, const float *restrict dy,
                              const float *restrict share)
{
    for (int i = 0; i < n; i++, ds += C, p += C) {
        const int counts = !(ignores && labels[i] == ignored);
        const float weight = counts ? share ? *dy * share[i] : *dy / n : 0;
        for (int j = 0; j < C; j++) ds[j] = weight * (p[j] - smoothing / C);
        if (counts)
            ds[labels[i]] = weight * (p[labels[i]] - (1 - smoothing + smoothing / C));
    }
}

/* p = softmax(s),  rows[i] = −Σ t log p,  t = (1 − smoothing) targets + smoothing / C */
KERNEL void soft_loss(int n, int C, float smoothing, float *restrict p, const float *restrict s,
                      const float *restrict targets, float *restrict rows)
{
    for (int i = 0; i < n; i++, p += C, s += C, targets += C) {
        float m, score = 0, target = 0;
        const float total = exponentials(C, p, s, &m), scale = 1 / total;
        for (int j = 0; j < C; j++) {
            const float t = (1 - smoothing) * targets[j] + smoothing / C;
            p[j] *= scale;
            target += t;
            score += t == 0 ? 0 : t * (s[j] - m);
        }
        rows[i] = target * logf(total) - score;
    }
}

/* ds[i, j] = dy share[i] (p[i, j] Σ t[i, k] − t[i, j]) */
KERNEL void soft_loss_grad(int n, int C, float smoothing, float *restrict ds, const float *restrict p,
                           const float *restrict targets, const float *restrict dy, const float *restrict share)
{
    for (int i = 0; i < n; i++, ds += C, p += C, targets += C) {
        const float weight = share ? *dy * share[i] : *dy / n;
        float total = 0;
        for (int j = 0; j < C; j++) total += (1 - smoothing) * targets[j] + smoothing / C;
        for (int j = 0; j < C; j++) ds[j] = weight * (p[j] * total - ((1 - smoothing) * targets[j] + smoothing / C));
    }
}

/* rows[i] = Σ max(0, s[i, j] − s[i, label] + margin) over the other classes j */
KERNEL void hinge_loss(int n, int C, float margin, float *restrict rows, const float *restrict s,
                       const int32_t *restrict labels)
{
    for (int i = 0; i < n; i++, s += C) {
        float total = 0;
        for (int j = 0; j < C; j++) {
            const float over = s[j] - s[labels[i]] + margin;
            total += over <= 0 || j == labels[i] ? 0 : over;
        }
        rows[i] = total;
    }
}

/* ds[i, j] = dy share[i] where the maximum is not 0, else 0;  ds[i, label] = −Σ of the others */
KERNEL void hinge_loss_grad(int n, int C, float margin, float *restrict ds, const float *restrict s,
                            const int32_t *restrict labels, const float *restrict dy, const float *restrict share)
{
    for (int i = 0; i < n; i++, ds += C, s += C) {
        const float weight = share ? *dy * share[i] : *dy / n;
        int count = 0;
        for (int j = 0; j < C; j++) {
            const int counts = !(s[j] - s[labels[i]] + margin <= 0) && j != labels[i];
            ds[j] = counts ? weight : 0;
            count += counts;
        }
        ds[labels[i]] = -weight * count;
    }
}

/* rows[i] = Σ (v + (t − μ)² exp(−v)) / 2 k; a row of s is k means μ, and then k log variances v */
KERNEL void gaussian_loss(int n, int k, float *restrict rows, const float *restrict s, const float *restrict t)
{
    for (int i = 0; i < n; i++, s += 2 * k, t += k) {
        float total = 0;
        for (int j = 0; j < k; j++) total += s[k + j] + (t[j] - s[j]) * (t[j] - s[j]) * expf(-s[k + j]);
        rows[i] = total / (2 * k);
    }
}

/* dμ = dy share (μ − t) exp(−v) / k,  dv = dy share (1 − (t − μ)² exp(−v)) / 2 k */
KERNEL void gaussian_loss_grad(int n, int k, float *restrict ds, const float *restrict s, const float *restrict t,
                               const float *restrict dy, const float *restrict share)
{
    for (int i = 0; i < n; i++, ds += 2 * k, s += 2 * k, t += k) {
        const float weight = (share ? *dy * share[i] : *dy / n) / k;
        for (int j = 0; j < k; j++) {
            const float d = s[j] - t[j], precision = expf(-s[k + j]);
            ds[j] = weight * (d * precision);
            ds[k + j] = weight * (0.5f * (1 - d * (d * precision)));
        }
    }
}

/* total = Σ w,  value = Σ w rows / total,  share = w / total; w is a row's weight, and 0 if its label is ignored.
 * Return whether all weights are finite, none is below 0, and the total is not 0. */
KERNEL int weighted_mean(int n, int per_weight, int ignores, int ignored, float *restrict value,
                         double *restrict total_weight, float *restrict share, const float *restrict weights,
                         const float *restrict rows, const int32_t *restrict labels)
{
    double total = 0, loss = 0;
    for (int i = 0; i < n; i++) {
        const float w = weights ? weights[i / per_weight] : 1;
        if (!(w >= 0 && w - w == 0))
            return 0;
        share[i] = ignores && labels[i] == ignored ? 0 : w;
        total += share[i];
        loss += share[i] == 0 ? 0 : (double)share[i] * rows[i];
    }
    if (!(total > 0 && total - total == 0))
        return 0;
    *total_weight = total;
    for (int i = 0; i < n; i++) share[i] = (float)(share[i] / total);
    *value = (float)(loss / total);
    return 1;
}
