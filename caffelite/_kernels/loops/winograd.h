/* Winograd's convolution of one tile: fewer multiplications than there are pairs of a pixel and a tap.
 *
 * Four neighbouring outputs of a window of three taps need six pixels d. The direct convolution makes 4 · 3 = 12
 * multiplications. Six are enough. Take the pixels and the taps g as coefficients of polynomials: then a convolution is a
 * product of polynomials, and a polynomial is known if its values at enough points are known. So
 *
 *   y = Aᵀ [(G g) ⊙ (Bᵀ d)]          F(4, 3): 4 outputs, 3 taps, α = 4 + 3 − 1 = 6 points
 *
 * G evaluates the taps at each point, Bᵀ does it with the pixels, ⊙ multiplies value by value, and Aᵀ goes back from the
 * values to the outputs. In two axes, each matrix is applied to the columns and then to the rows:
 *
 *   Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A   F(4 × 4, 3 × 3): 36 multiplications instead of 144
 *
 * The matrices cost additions. They pay because each is used often: Bᵀ d B serves all output channels, G g Gᵀ serves all
 * tiles, and Aᵀ […] A comes after the sum over the input channels. So ⊙ becomes 36 matrix products, and nearly all the
 * time is spent there.
 *
 * The gradient of x is a convolution of dy with the window turned round. The gradient of the window is the transposed
 * formula, summed over all tiles:
 *
 *   dg = Gᵀ [Σ (Bᵀ d B) ⊙ (A dY Aᵀ)] G
 *
 * The points are 0, 1, −1, ½, −2 and ∞. (∞ stands for the highest coefficient.) The values contain powers of the points:
 * sums of large powers cancel, and each cancellation loses digits. With 0, ±1, ±2 the error is two to four times as
 * large. ½ and −2 are better than ½ and −½, too: the farther apart the points are, the smaller are the numbers in G.
 * All points are powers of 2, so A multiplies without rounding. A window of 5 taps takes 0, ±1, ±½, ±2 and ∞.
 *
 * S. Winograd, "Arithmetic complexity of computations", SIAM 1980. A. Lavin and S. Gray, "Fast algorithms for
 * convolutional neural networks", 2015, arXiv:1509.09308. B. Barabasz, A. Anderson, K. Soodhalter and D. Gregg, "Error
 * analysis and improving the accuracy of Winograd convolution for deep neural networks", 2020, arXiv:1803.10986.
 *
 * Here are the matrices and what happens to one tile. The loops over tiles and the products are in winograd.pyx.
 */
#ifndef CAFFELITE_WINOGRAD_H
#define CAFFELITE_WINOGRAD_H
#include "lanes.h"

/* Row j of Bᵀ has the coefficients of the polynomial that is 0 at all points but p_j, lowest power first. Row j of A has
 * the powers of p_j, and row j of G too, divided by that polynomial's value at p_j. The last rows are those of ∞.
 * tests/kernels/test_winograd.py derives all of them from the points. */
/* clang-format off */
static const float BT_3[6][6] = {
    {1, -1.5, -2, 1.5, 1, 0},
    {0, -1, 0.5, 2.5, 1, 0},
    {0, 1, -2.5, 0.5, 1, 0},
    {0, -2, -1, 2, 1, 0},
    {0, 0.5, -1, -0.5, 1, 0},
    {0, 1, -1.5, -2, 1.5, 1},
};
static const float G_3[6][3] = {
    {1, 0, 0},
    {1. / 3, 1. / 3, 1. / 3},
    {-1. / 3, 1. / 3, -1. / 3},
    {-16. / 15, -8. / 15, -4. / 15},
    {1. / 15, -2. / 15, 4. / 15},
    {0, 0, 1},
};
static const float A_3[6][4] = {
    {1, 0, 0, 0},
    {1, 1, 1, 1},
    {1, -1, 1, -1},
    {1, 0.5, 0.25, 0.125},
    {1, -2, 4, -8},
    {0, 0, 0, 1},
};

static const float BT_5[8][8] = {
    {-1, 0, 5.25, 0, -5.25, 0, 1, 0},
    {0, 1, 1, -4.25, -4.25, 1, 1, 0},
    {0, -1, 1, 4.25, -4.25, -1, 1, 0},
    {0, 2, 4, -2.5, -5, 0.5, 1, 0},
    {0, -2, 4, 2.5, -5, -0.5, 1, 0},
    {0, 0.5, 0.25, -2.5, -1.25, 2, 1, 0},
    {0, -0.5, 0.25, 2.5, -1.25, -2, 1, 0},
    {0, -1, 0, 5.25, 0, -5.25, 0, 1},
};
static const float G_5[8][5] = {
    {-1, 0, 0, 0, 0},
    {-2. / 9, -2. / 9, -2. / 9, -2. / 9, -2. / 9},
    {-2. / 9, 2. / 9, -2. / 9, 2. / 9, -2. / 9},
    {32. / 45, 16. / 45, 8. / 45, 4. / 45, 2. / 45},
    {32. / 45, -16. / 45, 8. / 45, -4. / 45, 2. / 45},
    {1. / 90, 1. / 45, 2. / 45, 4. / 45, 8. / 45},
    {1. / 90, -1. / 45, 2. / 45, -4. / 45, 8. / 45},
    {0, 0, 0, 0, 1},
};
static const float A_5[8][4] = {
    {1, 0, 0, 0},
    {1, 1, 1, 1},
    {1, -1, 1, -1},
    {1, 0.5, 0.25, 0.125},
    {1, -0.5, 0.25, -0.125},
    {1, 2, 4, 8},
    {1, -2, 4, -8},
    {0, 0, 0, 1},
};
/* clang-format on */

/* Along an axis on which the window has only one tap, a tile is one pixel, and all matrices are 1. */
#define OUTPUTS(taps) ((taps) == 1 ? 1 : 4)
#define POINTS(taps) ((taps) == 1 ? 1 : (taps) + 3)
enum { MAX_POINTS = 36 };

/* ---- a matrix times vectors ---- */

typedef enum { BT, G, A, AT, GT } Matrix;
#define ROWS_OF(matrix, taps) ((matrix) == AT ? OUTPUTS(taps) : (matrix) == GT ? (taps) : POINTS(taps))
#define COLUMNS_OF(matrix, taps) ((matrix) == A ? OUTPUTS(taps) : (matrix) == G ? (taps) : POINTS(taps))

/* y[i] = Σ m[i, j] x[j], where x[j] are vectors x_step apart. The compiler knows m: it drops terms of 0, and multiplies
 * with nothing that is 1. A sum begins with such a term if there is one. */
INLINE void combine(const int ROWS, const int COLUMNS, const float *m, const int m_row, const int m_column,
                    vector_float *y, const int y_step, const vector_float *x, const int x_step)
{
    UNROLL_FOR (int i = 0; i < ROWS; i++) {
        int first = -1;
        UNROLL_FOR (int j = COLUMNS - 1; j >= 0; j--)
            if (m[i * m_row + j * m_column] == 1 || (first < 0 && m[i * m_row + j * m_column] != 0))
                first = j;
        vector_float sum = m[i * m_row + first * m_column] * x[first * x_step];
        UNROLL_FOR (int j = 0; j < COLUMNS; j++)
            if (j != first && m[i * m_row + j * m_column] != 0)
                sum += m[i * m_row + j * m_column] * x[j * x_step];
        y[i * y_step] = sum;
    }
}

INLINE void apply(const Matrix MATRIX, const int TAPS, vector_float *y, const int y_step, const vector_float *x,
                  const int x_step)
{
    const int rows = ROWS_OF(MATRIX, TAPS), columns = COLUMNS_OF(MATRIX, TAPS);
    if (TAPS == 1)
        y[0] = x[0];
    else if (MATRIX == BT)
        combine(rows, columns, TAPS == 3 ? &BT_3[0][0] : &BT_5[0][0], columns, 1, y, y_step, x, x_step);
    else if (MATRIX == A)
        combine(rows, columns, TAPS == 3 ? &A_3[0][0] : &A_5[0][0], columns, 1, y, y_step, x, x_step);
    else if (MATRIX == G)
        combine(rows, columns, TAPS == 3 ? &G_3[0][0] : &G_5[0][0], columns, 1, y, y_step, x, x_step);
    else if (MATRIX == AT)
        combine(rows, columns, TAPS == 3 ? &A_3[0][0] : &A_5[0][0], 1, rows, y, y_step, x, x_step);
    else
        combine(rows, columns, TAPS == 3 ? &G_3[0][0] : &G_5[0][0], 1, rows, y, y_step, x, x_step);
}

/* y = M x Mᵀ: the matrix along the height, of a window of DOWN taps, and then along the width. Rows of x and y follow
 * each other. */
INLINE void apply_to_both_axes(const Matrix MATRIX, const int DOWN, const int ALONG, vector_float *y,
                               const vector_float *x)
{
    const int rows = ROWS_OF(MATRIX, DOWN), columns = COLUMNS_OF(MATRIX, ALONG), y_columns = ROWS_OF(MATRIX, ALONG);
    vector_float half[64];
    UNROLL_FOR (int j = 0; j < columns; j++) apply(MATRIX, DOWN, half + j, columns, x + j, columns);
    UNROLL_FOR (int i = 0; i < rows; i++) apply(MATRIX, ALONG, y + i * y_columns, 1, half + i * columns, 1);
}

/* ---- one tile ---- */

/* Images (n, h, w, channels), all channels of a pixel side by side. Steps are in elements. */
typedef struct {
    ptrdiff_t height, width, image, row, pixel;
} Images;

/* What is done to an output before it is stored. `mask` and `other` lie as y does. */
typedef struct {
    const float *bias, *mask, *other; /* or NULL: one for each channel; 0 where not above 0; to be added */
    int relu;                         /* store max(y, 0) */
} Epilogue;

INLINE vector_float load_lanes(const float *p, ptrdiff_t n) { return load_float(p, n < LANES_OF_float, (int)n); }
INLINE void store_lanes(float *p, vector_float x, ptrdiff_t n)
{
    if (n < LANES_OF_float)
        store_first_float(p, x, (int)n);
    else
        *(vector_float *)p = x;
}

/* values[k] (+ c for channel c) = the transformed pixels of the tile whose first pixel is (top, left) of image x, with
 * MATRIX Bᵀ for pixels of x and A for those of dy. The values of point k are at values + k · plane, in full vectors, zeros
 * behind the last channel. Outside of the image, pixels are `zeros`. */
INLINE void transform_pixels(const Matrix MATRIX, const int DOWN, const int ALONG, const float *x, const Images *images,
                             ptrdiff_t top, ptrdiff_t left, ptrdiff_t channels, const float *zeros, float *values,
                             ptrdiff_t plane)
{
    enum { LANES = LANES_OF_float };
    const int rows = COLUMNS_OF(MATRIX, DOWN), columns = COLUMNS_OF(MATRIX, ALONG);
    const int points_down = ROWS_OF(MATRIX, DOWN), points_along = ROWS_OF(MATRIX, ALONG);
    const float *pixel[64];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            pixel[i * columns + j] =
                (size_t)(top + i) < (size_t)images->height && (size_t)(left + j) < (size_t)images->width
                    ? x + (top + i) * images->row + (left + j) * images->pixel
                    : zeros;
    for (ptrdiff_t c = 0; c < channels; c += LANES) {
        vector_float half[64], column[8], row[8];
        UNROLL_FOR (int j = 0; j < columns; j++) {
            UNROLL_FOR (int i = 0; i < rows; i++) column[i] = load_lanes(pixel[i * columns + j] + c, channels - c);
            apply(MATRIX, DOWN, half + j, columns, column, 1);
        }
        UNROLL_FOR (int i = 0; i < points_down; i++) {
            apply(MATRIX, ALONG, row, 1, half + i * columns, 1);
            UNROLL_FOR (int j = 0; j < points_along; j++)
                *(vector_float *)(values + (i * points_along + j) * plane + c) = row[j];
        }
    }
}

/* The outputs whose first pixel is (top, left) of image y, from the sums at each point. */
INLINE void transform_sums(const int DOWN, const int ALONG, const float *sums, ptrdiff_t plane, float *y,
                           const Images *images, ptrdiff_t top, ptrdiff_t left, ptrdiff_t channels,
                           const Epilogue *epilogue)
{
    enum { LANES = LANES_OF_float };
    const int rows = OUTPUTS(DOWN), columns = OUTPUTS(ALONG), points_down = POINTS(DOWN), points_along = POINTS(ALONG);
    const ptrdiff_t down = images->height - top, along = images->width - left;
    const Epilogue f = *epilogue;
    const ptrdiff_t at = top * images->row + left * images->pixel;
    for (ptrdiff_t c = 0; c < channels; c += LANES) {
        vector_float half[64], column[8], row[4], bias = {0};
        if (f.bias)
            bias = load_lanes(f.bias + c, channels - c);
        UNROLL_FOR (int j = 0; j < points_along; j++) {
            UNROLL_FOR (int i = 0; i < points_down; i++)
                column[i] = *(const vector_float *)(sums + (i * points_along + j) * plane + c);
            apply(AT, DOWN, half + j, points_along, column, 1);
        }
        UNROLL_FOR (int i = 0; i < rows; i++) {
            apply(AT, ALONG, row, 1, half + i * points_along, 1);
            UNROLL_FOR (int j = 0; j < columns; j++)
                if (i < down && j < along) {
                    const ptrdiff_t here = at + i * images->row + j * images->pixel + c;
                    vector_float o = row[j];
                    if (f.bias)
                        o += bias;
                    if (f.relu)
                        o = (vector_float)(~(lanes_float)(o < 0) & (lanes_float)o);
                    if (f.mask)
                        o = (vector_float)(~(lanes_float)(load_lanes(f.mask + here, channels - c) <= 0)
                                           & (lanes_float)o);
                    if (f.other)
                        o += load_lanes(f.other + here, channels - c);
                    store_lanes(y + here, o, channels - c);
                }
        }
    }
}

/* u[k · plane] = G g Gᵀ of the windows of neighbouring output channels, one in each lane: tap k of lane l is at w[k][l]. */
INLINE void transform_window(const int DOWN, const int ALONG, const vector_float *w, float *u, ptrdiff_t plane)
{
    vector_float t[64];
    apply_to_both_axes(G, DOWN, ALONG, t, w);
    for (int k = 0; k < POINTS(DOWN) * POINTS(ALONG); k++) *(vector_float *)(u + k * plane) = t[k];
}

/* w = Gᵀ s G, tap after tap, from the sums over all tiles at each point. */
INLINE void transform_window_sums(const int DOWN, const int ALONG, vector_float *w, const vector_float *s)
{
    apply_to_both_axes(GT, DOWN, ALONG, w, s);
}

/* ---- the tilings ---- */

/* The tilings of windows, and their functions, as winograd.pyx calls them. */
#define DEFINE_TILING(DOWN, ALONG)                                                                                     \
    static void pixels_##DOWN##_##ALONG(const float *x, const Images *images, ptrdiff_t top, ptrdiff_t left,           \
                                        ptrdiff_t channels, const float *zeros, float *values, ptrdiff_t plane)        \
    {                                                                                                                  \
        transform_pixels(BT, DOWN, ALONG, x, images, top, left, channels, zeros, values, plane);                       \
    }                                                                                                                  \
    static void gradients_##DOWN##_##ALONG(const float *dy, const Images *images, ptrdiff_t top, ptrdiff_t left,       \
                                           ptrdiff_t channels, const float *zeros, float *values, ptrdiff_t plane)     \
    {                                                                                                                  \
        transform_pixels(A, DOWN, ALONG, dy, images, top, left, channels, zeros, values, plane);                       \
    }                                                                                                                  \
    static void sums_##DOWN##_##ALONG(const float *sums, ptrdiff_t plane, float *y, const Images *images,              \
                                      ptrdiff_t top, ptrdiff_t left, ptrdiff_t channels, const Epilogue *epilogue)     \
    {                                                                                                                  \
        transform_sums(DOWN, ALONG, sums, plane, y, images, top, left, channels, epilogue);                            \
    }                                                                                                                  \
    static void window_##DOWN##_##ALONG(const vector_float *w, float *u, ptrdiff_t plane)                              \
    {                                                                                                                  \
        transform_window(DOWN, ALONG, w, u, plane);                                                                    \
    }                                                                                                                  \
    static void window_sums_##DOWN##_##ALONG(vector_float *w, const vector_float *s)                                   \
    {                                                                                                                  \
        transform_window_sums(DOWN, ALONG, w, s);                                                                      \
    }

DEFINE_TILING(3, 3)
DEFINE_TILING(1, 3)
DEFINE_TILING(1, 5)

typedef struct {
    int points, down, along; /* α² or α; the outputs of a tile */
    void (*pixels)(const float *, const Images *, ptrdiff_t, ptrdiff_t, ptrdiff_t, const float *, float *, ptrdiff_t);
    void (*gradients)(const float *, const Images *, ptrdiff_t, ptrdiff_t, ptrdiff_t, const float *, float *,
                      ptrdiff_t);
    void (*sums)(const float *, ptrdiff_t, float *, const Images *, ptrdiff_t, ptrdiff_t, ptrdiff_t, const Epilogue *);
    void (*window)(const vector_float *, float *, ptrdiff_t);
    void (*window_sums)(vector_float *, const vector_float *);
} Tiling;

#define TILING(DOWN, ALONG)                                                                                            \
    {POINTS(DOWN) * POINTS(ALONG), OUTPUTS(DOWN),         OUTPUTS(ALONG),          pixels_##DOWN##_##ALONG,            \
     gradients_##DOWN##_##ALONG,   sums_##DOWN##_##ALONG, window_##DOWN##_##ALONG, window_sums_##DOWN##_##ALONG}
static const Tiling table[] = {TILING(3, 3), TILING(1, 3), TILING(1, 5)};

/* The tiling of a window of so many taps. */
INLINE const Tiling *get_tiling(ptrdiff_t down, ptrdiff_t along) { return &table[down == 3 ? 0 : along == 3 ? 1 : 2]; }

#endif
