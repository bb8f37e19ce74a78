/* y = x Wᵀ + b for a few rows x, as quickly as W can be read.

W comes in panels of 32 outputs, in which the 32 weights of one input lie side by side: every load of weights serves all
rows, sums stay in registers, and nothing is summed across a register. A sum has the same order for any number of rows
and threads, so a row's answer does not depend on what stands beside it.

On a machine that others use too, a thread that is waited for may not be running, and then takes a hundred times as
long to come as to do its part. Where that has happened, the next products are done alone. */

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define PANEL 32
typedef float lanes __attribute__((vector_size(64), aligned(4)));

typedef struct {
    const float *x, *panels, *bias;
    float *y;
    size_t in, out;
    int rows, relu;
} Task;

static __attribute__((noinline)) void leave(const Task *t, const float *sums, size_t first, int together)
{
    for (int r = 0; r < t->rows; r++)
        for (int p = 0; p < together; p++) {
            size_t start = (first + p) * PANEL, left = t->out - start, count = left < PANEL ? left : PANEL;
            const float *sum = sums + (r * together + p) * PANEL;
            float *y = t->y + r * t->out + start;
            for (size_t j = 0; j < count; j++) {
                float value = t->bias ? sum[j] + t->bias[start + j] : sum[j];
                y[j] = t->relu && value < 0.0f ? 0.0f : value;
            }
        }
}

/* R rows by T panels: so many sums at once that the next addition need not wait for the last. */
#define SUMS(R, T) \
    static __attribute__((noinline)) void sums_##R##_##T(const Task *t, size_t first) \
    { \
        lanes sums[R][T][2] = {0}; \
        size_t in = t->in; \
        const float *x = t->x, *w = t->panels + first * in * PANEL; \
        for (size_t i = 0; i < in; i++) \
            _Pragma("GCC unroll 4") for (int p = 0; p < T; p++) { \
                const lanes *at = (const lanes *)(w + (p * in + i) * PANEL); \
                lanes low = at[0], high = at[1]; \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) { \
                    sums[r][p][0] += x[r * in + i] * low; \
                    sums[r][p][1] += x[r * in + i] * high; \
                } \
            } \
        leave(t, (const float *)sums, first, T); \
    }

SUMS(1, 4) SUMS(1, 1) SUMS(2, 2) SUMS(2, 1) SUMS(3, 2) SUMS(3, 1) SUMS(4, 2) SUMS(4, 1) SUMS(5, 2) SUMS(5, 1)
SUMS(6, 1) SUMS(7, 1) SUMS(8, 1)

#define ROWS(R, T) \
    case R: \
        for (; p + T <= end; p += T) sums_##R##_##T(t, p); \
        for (; p < end; p++) sums_##R##_1(t, p); \
        break;

static void part(const Task *t, size_t p, size_t end)
{
    switch (t->rows) { ROWS(1, 4) ROWS(2, 2) ROWS(3, 2) ROWS(4, 2) ROWS(5, 2) ROWS(6, 1) ROWS(7, 1) ROWS(8, 1) }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static atomic_int alone; /* products still to be done by one thread */

#define MANY 2000
#define LONG(numbers) (200e3 + 0.4 * (numbers)) /* ns; usual are 0.03 ns a number */

void product(const float *x, const float *panels, const float *bias, float *y, int rows, size_t in, size_t out,
             int relu, int threads)
{
    Task task = {x, panels, bias, y, in, out, rows, relu};
    size_t count = (out + PANEL - 1) / PANEL;
    if (threads > 1 && atomic_load_explicit(&alone, memory_order_relaxed) > 0) {
        atomic_fetch_sub_explicit(&alone, 1, memory_order_relaxed);
        threads = 1;
    }
    if (threads == 1) {
        part(&task, 0, count);
        return;
    }
    double begun = now();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        part(&task, count * t / threads, count * (t + 1) / threads);
    if (now() - begun > LONG((double)rows * in * out))
        atomic_store_explicit(&alone, MANY, memory_order_relaxed);
}
