/* Depthwise convolutions with windows of 3 × 3 pixels and stride 1, channels last, and the gradient of their weights:
 *
 *   y[i] = Σ_k Σ_l w[k, l] x[i + k, l]        dw[k, l] = Σ_i dy[i] x[i + k, l]
 *
 * A vector holds one pixel of as many channels as it has lanes. y is computed line by line. Of the nine pixels in the
 * window of y[i + 1], six are also in the window of y[i]. So the window stays in registers and slides along the line:
 * each step loads three new pixels, where a loop over the taps would load nine.
 *
 * At an end of the line, part of the window lies outside of x. There, and for channels that do not fill a vector, each
 * pixel is loaded from memory. Both ways add the same products in the same order, so they give the same bits.
 */
#ifndef CAFFELITE_DEPTHWISE_H
#define CAFFELITE_DEPTHWISE_H
#include "lanes.h"

enum { SIDE = 3 }; /* of the window, in pixels */

/* One line of y, for the channels begin … end − 1. All strides are in elements. `along` is the stride from a pixel of the
 * line to the next, or from a tap to the next; `across` is that of the other axis of the images. Tap (a, b) of the window
 * lies a pixels along the line and b pixels across it. */
typedef struct {
    ptrdiff_t begin, end;
    ptrdiff_t outputs, inputs; /* pixels of the line in y and in x */
    ptrdiff_t padding;         /* the window of output i begins at input i − padding */
    ptrdiff_t first, last;     /* across the line, the taps first … last − 1 lie inside of x */
    int is_down;               /* whether the line is a column of the image, and not a row */
    const void *x;             /* the pixel under tap (padding, 0) of output 0 */
    ptrdiff_t x_along, x_across;
    void *w; /* weights; or dw, to which the line's sums are added */
    ptrdiff_t w_along, w_across;
    void *y; /* y, or dy */
    ptrdiff_t y_along;
    const void *bias, *mask; /* or NULL. Where the mask, which lies as y does, is not above 0, y is 0 */
    int relu;                /* store max(y, 0) */
} DepthwiseLine;

/* The outputs of a line whose windows lie inside of x along the line are numbers begin … end − 1. */
INLINE ptrdiff_t slide_begin(const DepthwiseLine *s)
{
    const ptrdiff_t begin = s->padding > 0 ? s->padding : 0;
    return begin < s->outputs ? begin : s->outputs;
}
INLINE ptrdiff_t slide_end(const DepthwiseLine *s)
{
    const ptrdiff_t begin = slide_begin(s), end = s->inputs - SIDE + s->padding + 1;
    return end < begin ? begin : end < s->outputs ? end : s->outputs;
}

/* The window of output i begins at this pixel along the line. Its taps first … last − 1 lie inside of x. */
typedef struct {
    ptrdiff_t at, first, last;
} TapsInside;
INLINE TapsInside taps_inside(const DepthwiseLine *s, ptrdiff_t i)
{
    const ptrdiff_t at = i - s->padding, behind = s->inputs - at;
    const ptrdiff_t first = at < 0 ? -at : 0, last = behind < SIDE ? behind : SIDE;
    return (TapsInside){at, first, last > first ? last : first};
}

#define DEFINE_DEPTHWISE(real)                                                                                               \
    /* What follows the sum: bias, ReLU, and the gradient of a ReLU. NaN is below nothing. */                                \
    INLINE void store_pixel_##real(const DepthwiseLine *s, ptrdiff_t c, ptrdiff_t i, vector_##real sum,                      \
                                   const int IS_PART, int lanes)                                                             \
    {                                                                                                                        \
        if (s->bias)                                                                                                         \
            sum += load_##real((const real *)s->bias + c, IS_PART, lanes);                                                   \
        if (s->relu)                                                                                                         \
            sum = (vector_##real)(~(lanes_##real)(sum < 0) & (lanes_##real)sum);                                             \
        if (s->mask) {                                                                                                       \
            const vector_##real mask = load_##real((const real *)s->mask + i * s->y_along + c, IS_PART, lanes);              \
            sum = (vector_##real)(~(lanes_##real)(mask <= 0) & (lanes_##real)sum);                                           \
        }                                                                                                                    \
        if (IS_PART)                                                                                                         \
            store_first_##real((real *)s->y + i * s->y_along + c, sum, lanes);                                               \
        else                                                                                                                 \
            *(vector_##real *)((real *)s->y + i * s->y_along + c) = sum;                                                     \
    }                                                                                                                        \
                                                                                                                             \
    /* Outputs begin … end − 1 at channel c, tap by tap: the rows of the window from the first, in each its columns. */      \
    INLINE void pixels_##real(const int IS_PART, const DepthwiseLine *line, ptrdiff_t c, int lanes, ptrdiff_t begin,         \
                              ptrdiff_t end)                                                                                 \
    {                                                                                                                        \
        const DepthwiseLine s = *line;                                                                                       \
        for (ptrdiff_t i = begin; i < end; i++) {                                                                            \
            const TapsInside along = taps_inside(&s, i), across = {0, s.first, s.last};                                      \
            const TapsInside rows = s.is_down ? along : across, columns = s.is_down ? across : along;                        \
            vector_##real sum = {0};                                                                                         \
            for (ptrdiff_t k = rows.first; k < rows.last; k++)                                                               \
                for (ptrdiff_t l = columns.first; l < columns.last; l++) {                                                   \
                    const ptrdiff_t a = s.is_down ? k : l, b = s.is_down ? l : k;                                            \
                    const real *w = (const real *)s.w + a * s.w_along + b * s.w_across + c;                                  \
                    const real *x = (const real *)s.x + (along.at + a) * s.x_along + b * s.x_across + c;                     \
                    sum += load_##real(w, IS_PART, lanes) * load_##real(x, IS_PART, lanes);                                  \
                }                                                                                                            \
            store_pixel_##real(&s, c, i, sum, IS_PART, lanes);                                                               \
        }                                                                                                                    \
    }                                                                                                                        \
                                                                                                                             \
    INLINE void load_pixels_##real(const int FIRST, const int LAST, vector_##real *pixels, const real *x,                    \
                                   ptrdiff_t across)                                                                         \
    {                                                                                                                        \
        UNROLL_FOR (int b = FIRST; b < LAST; b++) pixels[b] = *(const vector_##real *)(x + b * across);                      \
    }                                                                                                                        \
                                                                                                                             \
    /* The same for a whole vector of channels, where all of the window along the line and its taps FIRST … LAST − 1   \
     * across the line lie inside of x. */ \
    INLINE void slide_##real(const int IS_DOWN, const int FIRST, const int LAST, const DepthwiseLine *line,                  \
                             ptrdiff_t c, ptrdiff_t begin, ptrdiff_t end)                                                    \
    {                                                                                                                        \
        if (begin == end) /* there may be no pixels to begin with */                                                         \
            return;                                                                                                          \
        const DepthwiseLine s = *line;                                                                                       \
        const real *x = (const real *)s.x + (begin - s.padding) * s.x_along + c;                                             \
        vector_##real w[SIDE][SIDE], v[SIDE][SIDE]; /* along and across the line */                                          \
        UNROLL_FOR (int a = 0; a < SIDE; a++)                                                                                \
            load_pixels_##real(FIRST, LAST, w[a], (const real *)s.w + a * s.w_along + c, s.w_across);                        \
        UNROLL_FOR (int a = 0; a < SIDE - 1; a++, x += s.x_along)                                                            \
            load_pixels_##real(FIRST, LAST, v[a], x, s.x_across);                                                            \
        for (ptrdiff_t i = begin; i < end; i++, x += s.x_along) {                                                            \
            vector_##real sum = {0};                                                                                         \
            load_pixels_##real(FIRST, LAST, v[SIDE - 1], x, s.x_across);                                                     \
            UNROLL_FOR (int k = IS_DOWN ? 0 : FIRST; k < (IS_DOWN ? SIDE : LAST); k++)                                       \
                UNROLL_FOR (int l = IS_DOWN ? FIRST : 0; l < (IS_DOWN ? LAST : SIDE); l++)                                   \
                    sum += w[IS_DOWN ? k : l][IS_DOWN ? l : k] * v[IS_DOWN ? k : l][IS_DOWN ? l : k];                        \
            store_pixel_##real(&s, c, i, sum, 0, 0);                                                                         \
            UNROLL_FOR (int b = FIRST; b < LAST; b++) {                                                                      \
                v[0][b] = v[1][b];                                                                                           \
                v[1][b] = v[2][b];                                                                                           \
            }                                                                                                                \
        }                                                                                                                    \
    }                                                                                                                        \
                                                                                                                             \
    INLINE void line_of_vector_##real(const int IS_DOWN, const DepthwiseLine *s, ptrdiff_t c)                                \
    {                                                                                                                        \
        const ptrdiff_t begin = slide_begin(s);                                                                              \
        ptrdiff_t end = slide_end(s);                                                                                        \
        pixels_##real(0, s, c, 0, 0, begin);                                                                                 \
        if (s->first == 0 && s->last == SIDE)                                                                                \
            slide_##real(IS_DOWN, 0, SIDE, s, c, begin, end);                                                                \
        else if (s->first == 1 && s->last == SIDE)                                                                           \
            slide_##real(IS_DOWN, 1, SIDE, s, c, begin, end);                                                                \
        else if (s->first == 0 && s->last == SIDE - 1)                                                                       \
            slide_##real(IS_DOWN, 0, SIDE - 1, s, c, begin, end);                                                            \
        else                                                                                                                 \
            end = begin;                                                                                                     \
        pixels_##real(0, s, c, 0, end, s->outputs);                                                                          \
    }                                                                                                                        \
                                                                                                                             \
    static void depthwise_line_##real(const DepthwiseLine *s)                                                                \
    {                                                                                                                        \
        ptrdiff_t c = s->begin;                                                                                              \
        for (; c + LANES_OF_##real <= s->end; c += LANES_OF_##real)                                                          \
            if (s->is_down)                                                                                                  \
                line_of_vector_##real(1, s, c);                                                                              \
            else                                                                                                             \
                line_of_vector_##real(0, s, c);                                                                              \
        if (c < s->end)                                                                                                      \
            pixels_##real(1, s, c, (int)(s->end - c), 0, s->outputs);                                                        \
    }

#define DEFINE_DEPTHWISE_GRAD(real)                                                                                      \
    /* dw[a, b] += sums[a, b], taps FIRST … LAST − 1 across the line */                                                  \
    INLINE void add_sums_##real(const int IS_PART, ptrdiff_t first, ptrdiff_t last, const DepthwiseLine *s,              \
                                ptrdiff_t c, int lanes, vector_##real(*sums)[SIDE])                                      \
    {                                                                                                                    \
        for (int a = 0; a < SIDE; a++)                                                                                   \
            for (ptrdiff_t b = first; b < last; b++) {                                                                   \
                real *to = (real *)s->w + a * s->w_along + b * s->w_across + c;                                          \
                const vector_##real sum = load_##real(to, IS_PART, lanes) + sums[a][b];                                  \
                if (IS_PART)                                                                                             \
                    store_first_##real(to, sum, lanes);                                                                  \
                else                                                                                                     \
                    *(vector_##real *)to = sum;                                                                          \
            }                                                                                                            \
    }                                                                                                                    \
                                                                                                                         \
    /* What the outputs begin … end − 1 add to the line's sums, tap by tap. */                                           \
    INLINE void pixels_grad_##real(const int IS_PART, const DepthwiseLine *line, ptrdiff_t c, int lanes,                 \
                                   ptrdiff_t begin, ptrdiff_t end, vector_##real(*sums)[SIDE])                           \
    {                                                                                                                    \
        const DepthwiseLine s = *line;                                                                                   \
        for (ptrdiff_t i = begin; i < end; i++) {                                                                        \
            const TapsInside along = taps_inside(&s, i);                                                                 \
            const vector_##real dy = load_##real((const real *)s.y + i * s.y_along + c, IS_PART, lanes);                 \
            for (ptrdiff_t a = along.first; a < along.last; a++)                                                         \
                for (ptrdiff_t b = s.first; b < s.last; b++) {                                                           \
                    const real *x = (const real *)s.x + (along.at + a) * s.x_along + b * s.x_across + c;                 \
                    sums[a][b] += load_##real(x, IS_PART, lanes) * dy;                                                   \
                }                                                                                                        \
        }                                                                                                                \
    }                                                                                                                    \
                                                                                                                         \
    /* The same for a whole vector of channels and windows inside of x along the line. */                                \
    INLINE void slide_grad_##real(const int FIRST, const int LAST, const DepthwiseLine *line, ptrdiff_t c,               \
                                  ptrdiff_t begin, ptrdiff_t end, vector_##real(*sums)[SIDE])                            \
    {                                                                                                                    \
        if (begin == end) /* there may be no pixels to begin with */                                                     \
            return;                                                                                                      \
        const DepthwiseLine s = *line;                                                                                   \
        const real *x = (const real *)s.x + (begin - s.padding) * s.x_along + c;                                         \
        vector_##real g[SIDE][SIDE], v[SIDE][SIDE];                                                                      \
        UNROLL_FOR (int a = 0; a < SIDE; a++)                                                                            \
            UNROLL_FOR (int b = FIRST; b < LAST; b++) g[a][b] = sums[a][b];                                              \
        UNROLL_FOR (int a = 0; a < SIDE - 1; a++, x += s.x_along)                                                        \
            load_pixels_##real(FIRST, LAST, v[a], x, s.x_across);                                                        \
        for (ptrdiff_t i = begin; i < end; i++, x += s.x_along) {                                                        \
            const vector_##real dy = *(const vector_##real *)((const real *)s.y + i * s.y_along + c);                    \
            load_pixels_##real(FIRST, LAST, v[SIDE - 1], x, s.x_across);                                                 \
            UNROLL_FOR (int a = 0; a < SIDE; a++)                                                                        \
                UNROLL_FOR (int b = FIRST; b < LAST; b++) g[a][b] += v[a][b] * dy;                                       \
            UNROLL_FOR (int b = FIRST; b < LAST; b++) {                                                                  \
                v[0][b] = v[1][b];                                                                                       \
                v[1][b] = v[2][b];                                                                                       \
            }                                                                                                            \
        }                                                                                                                \
        UNROLL_FOR (int a = 0; a < SIDE; a++)                                                                            \
            UNROLL_FOR (int b = FIRST; b < LAST; b++) sums[a][b] = g[a][b];                                              \
    }                                                                                                                    \
                                                                                                                         \
    /* dw += what this line adds to it. A sum begins with 0 for each line: sums of few numbers, added up, are more     \
     * exact than one long sum. */ \
    static void depthwise_line_grad_##real(const DepthwiseLine *s)                                                       \
    {                                                                                                                    \
        const ptrdiff_t begin = slide_begin(s);                                                                          \
        ptrdiff_t c = s->begin;                                                                                          \
        for (; c < s->end; c += LANES_OF_##real) {                                                                       \
            const int lanes = s->end - c < LANES_OF_##real ? (int)(s->end - c) : LANES_OF_##real;                        \
            vector_##real sums[SIDE][SIDE] = {{{0}}};                                                                    \
            ptrdiff_t end = slide_end(s);                                                                                \
            if (lanes < LANES_OF_##real) {                                                                               \
                pixels_grad_##real(1, s, c, lanes, 0, s->outputs, sums);                                                 \
                add_sums_##real(1, s->first, s->last, s, c, lanes, sums);                                                \
                break;                                                                                                   \
            }                                                                                                            \
            pixels_grad_##real(0, s, c, 0, 0, begin, sums);                                                              \
            if (s->first == 0 && s->last == SIDE)                                                                        \
                slide_grad_##real(0, SIDE, s, c, begin, end, sums);                                                      \
            else if (s->first == 1 && s->last == SIDE)                                                                   \
                slide_grad_##real(1, SIDE, s, c, begin, end, sums);                                                      \
            else if (s->first == 0 && s->last == SIDE - 1)                                                               \
                slide_grad_##real(0, SIDE - 1, s, c, begin, end, sums);                                                  \
            else                                                                                                         \
                end = begin;                                                                                             \
            pixels_grad_##real(0, s, c, 0, end, s->outputs, sums);                                                       \
            add_sums_##real(0, s->first, s->last, s, c, 0, sums);                                                        \
        }                                                                                                                \
    }

DEFINE_DEPTHWISE(float)
DEFINE_DEPTHWISE(double)
DEFINE_DEPTHWISE_GRAD(float)
DEFINE_DEPTHWISE_GRAD(double)

#define depthwise_line(x, arguments) FOR_TYPE(depthwise_line, x)(arguments)
#define depthwise_line_grad(x, arguments) FOR_TYPE(depthwise_line_grad, x)(arguments)
#endif
