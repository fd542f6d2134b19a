/* Runs all C functions on normal and on edge inputs, and compares them with plain loops.

   Compiled together with the sources: with sanitizers for this machine, and for AArch64 to run under an emulator. Every
   array is a heap block of just its size, so that a sanitizer sees each access outside of it. Prints the instruction
   set and ends with 0 if all is well; else says what is not, and ends with 1. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const int *first, *second;
    const double *values;
    long rows;
    const int *numbers[2];
    const int *blocks[2];
    long n_blocks;
} pairs_t;

typedef struct {
    int row, column;
    double value;
} record_t;

int dasrel_library_version(void);
const char *dasrel_instruction_set(void);
int dasrel_prepare_pair_list(void);
long dasrel_count_lines(const unsigned char *text, long size);
int dasrel_read_pairs(const unsigned char *text, long size, const long *columns, const char *missing, long room,
                      int *first, int *second, double *values, int *spans, long *found);
void dasrel_count_pairs_by_block(const pairs_t *pairs, long *counts, unsigned char *own, unsigned char *ways);
void dasrel_sort_pairs_by_block(const pairs_t *pairs, long *next, record_t *records);
void dasrel_exponential_f32(const float *values, long stride, long rows, long columns, float factor, int squared,
                            float *out, long out_stride);

#define UPDATE_ROWS(REAL, NAME)                                                                                       \
    int NAME(int method, long count, long wide, REAL **rows, REAL **others, const int64_t *from,                      \
             const int64_t *other_from, const int64_t *merge, const int64_t *slots, const int32_t *a,                 \
             const int32_t *b, const double *size_a, const double *size_b, const double *height, long round,          \
             long merged, const double *before, const double *after, int32_t *near_slots, double *near_values)
UPDATE_ROWS(float, dasrel_update_rows_f32);
UPDATE_ROWS(double, dasrel_update_rows_f64);
int dasrel_keep_nearest_f32(long count, long wide, const float *x, long start, int32_t *slots, double *values);
int dasrel_keep_nearest_f64(long count, long wide, const double *x, long start, int32_t *slots, double *values);

static int failures;

#define CHECK(condition, ...)                                                                                         \
    do {                                                                                                              \
        if (!(condition) && failures++ < 20) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                           \
            fprintf(stderr, __VA_ARGS__);                                                                             \
            fputc('\n', stderr);                                                                                      \
        }                                                                                                             \
    } while (0)

static uint64_t state = 88172645463325252u;

static uint64_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static double random_number(void) { return (double)(random_bits() >> 11) / 9007199254740992.0 * 2 - 1; }

static void *block(size_t size)
{
    void *found = malloc(size ? size : 1);
    if (!found) exit(2);
    return found;
}

/* ---- products and checks, for both precisions ---- */

#define TESTS(REAL, SUFFIX, EPSILON)                                                                                  \
    int dasrel_add_products_##SUFFIX(const REAL *, long, long, long, long, const REAL *, long, const REAL *, long,    \
                                     double *, long, double *, long);                                                 \
    int dasrel_label_sums_##SUFFIX(const REAL *, long, long, long, const int *, long, const int64_t *, long, int,     \
                                   double *, long);                                                                   \
    int dasrel_within_sums_##SUFFIX(const REAL *, long, long, long, const uint16_t *, long, const uint16_t *, long,   \
                                    long, long, double *, long);                                                      \
    void dasrel_nearest_##SUFFIX(const REAL *, long, long, long, const int64_t *, const int64_t *, int64_t, int64_t,  \
                                 int, long, double *, int64_t *, double *, int64_t *, REAL *);                        \
    int dasrel_copy_and_check_##SUFFIX(const REAL *, long, long, long, const REAL *, long, REAL *, long, double *,    \
                                       REAL *);                                                                       \
                                                                                                                      \
    static REAL *numbers_##SUFFIX(long count)                                                                         \
    {                                                                                                                 \
        REAL *x = block((size_t)count * sizeof(REAL));                                                                \
        for (long i = 0; i < count; i++) x[i] = (REAL)random_number();                                                \
        return x;                                                                                                     \
    }                                                                                                                 \
                                                                                                                      \
    /* Partitions into 2 clusters, 1 and 40; `transposed` sums columns of the panel by label, else rows. */           \
    static void label_sums_##SUFFIX(long rows, long columns, long padding, int transposed)                            \
    {                                                                                                                 \
        const long stride = columns + padding, n = transposed ? columns : rows, across = transposed ? rows : columns; \
        const int64_t first[] = {0, 2, 3, 43};                                                                        \
        REAL *panel = numbers_##SUFFIX((rows - 1) * stride + columns);                                                \
        int *labels = block((size_t)(3 * n) * sizeof(int));                                                           \
        double *sums = block((size_t)(43 * across) * 8), *plain = block((size_t)(43 * across) * 8);                   \
        for (long p = 0; p < 3; p++)                                                                                  \
            for (long i = 0; i < n; i++)                                                                              \
                labels[p * n + i] = (int)(first[p] + (int64_t)(random_bits() % (uint64_t)(first[p + 1] - first[p]))); \
        for (long i = 0; i < 43 * across; i++) sums[i] = plain[i] = 1;                                                \
        for (long p = 0; p < 3; p++)                                                                                  \
            for (long i = 0; i < n; i++)                                                                              \
                for (long j = 0; j < across; j++)                                                                     \
                    plain[labels[p * n + i] * across + j] += panel[transposed ? j * stride + i : i * stride + j];     \
        int done = dasrel_label_sums_##SUFFIX(panel, stride, rows, columns, labels, n, first, 3, transposed, sums,    \
                                              across);                                                                \
        CHECK(done == 1, #SUFFIX " %ld x %ld", rows, columns);                                                        \
        for (long i = 0; i < 43 * across; i++)                                                                        \
            CHECK(fabs(sums[i] - plain[i]) <= 256 * EPSILON * (double)n,                                              \
                  #SUFFIX " %ld x %ld, transposed %d: %g, not %g",                                                    \
                  rows, columns, transposed, sums[i], plain[i]);                                                      \
        free(panel), free(labels), free(sums), free(plain);                                                           \
    }                                                                                                                 \
                                                                                                                      \
    /* Every list is that of a loop over all values; few values are different, so that many are equal. */             \
    static void nearest_##SUFFIX(long rows, long columns, long padding, long k, int levels)                           \
    {                                                                                                                 \
        const long stride = columns + padding, sides[] = {rows, columns};                                             \
        const uint64_t before_this = state; /* other tests keep their numbers */                                      \
        REAL *panel = numbers_##SUFFIX((rows - 1) * stride + columns);                                                \
        for (long i = 0; i < (rows - 1) * stride + columns; i++) panel[i] = (REAL)(random_bits() % (uint64_t)levels); \
        int64_t *at[2], *names[2];                                                                                    \
        double *values[2];                                                                                            \
        REAL *most = block((size_t)columns * sizeof(REAL));                                                           \
        for (int s = 0; s < 2; s++) {                                                                                 \
            at[s] = block((size_t)sides[s] * 8);                                                                      \
            names[s] = block((size_t)(sides[s] * k) * 8), values[s] = block((size_t)(sides[s] * k) * 8);              \
            for (long i = 0; i < sides[s]; i++) at[s][i] = i;                                                         \
            for (long i = 0; i < sides[s] * k; i++) values[s][i] = INFINITY, names[s][i] = -1;                        \
        }                                                                                                             \
        dasrel_nearest_##SUFFIX(panel, stride, rows, columns, at[0], at[1], 0, rows, 0, k, values[0], names[0],       \
                                values[1], names[1], most);                                                           \
        for (int s = 0; s < 2; s++)                                                                                   \
            for (long i = 0; i < sides[s]; i++)                                                                       \
                for (long j = 0; j < sides[1 - s]; j++) {                                                             \
                    const REAL x = s ? panel[j * stride + i] : panel[i * stride + j];                                 \
                    long before = 0;                                                                                  \
                    for (long m = 0; m < sides[1 - s]; m++) {                                                         \
                        const REAL y = s ? panel[m * stride + i] : panel[i * stride + m];                             \
                        before += y < x || (y == x && m < j);                                                         \
                    }                                                                                                 \
                    const int64_t name = s ? j : rows + j;                                                            \
                    CHECK(before >= k || (values[s][i * k + before] == x && names[s][i * k + before] == name),        \
                          #SUFFIX " %ld x %ld, k %ld: neighbour %ld of %ld", rows, columns, k, j, i);                 \
                }                                                                                                     \
        for (int s = 0; s < 2; s++) free(at[s]), free(names[s]), free(values[s]);                                     \
        free(panel), free(most);                                                                                      \
        state = before_this;                                                                                          \
    }                                                                                                                 \
                                                                                                                      \
    /* Three partitions into so many clusters. */                                                                     \
    static void within_sums_##SUFFIX(long rows, long columns, long padding, long clusters)                            \
    {                                                                                                                 \
        const long stride = columns + padding;                                                                        \
        REAL *panel = numbers_##SUFFIX((rows - 1) * stride + columns);                                                \
        uint16_t *down = block((size_t)(3 * rows) * 2), *across = block((size_t)(3 * columns) * 2);                   \
        double *sums = block((size_t)(3 * clusters) * 8), *plain = block((size_t)(3 * clusters) * 8);                 \
        for (long i = 0; i < 3 * rows; i++) down[i] = (uint16_t)(random_bits() % (uint64_t)clusters);                 \
        for (long j = 0; j < 3 * columns; j++) across[j] = (uint16_t)(random_bits() % (uint64_t)clusters);            \
        for (long k = 0; k < 3 * clusters; k++) sums[k] = plain[k] = 1;                                               \
        for (long p = 0; p < 3; p++)                                                                                  \
            for (long i = 0; i < rows; i++)                                                                           \
                for (long j = 0; j < columns; j++)                                                                    \
                    if (down[p * rows + i] == across[p * columns + j])                                                \
                        plain[p * clusters + down[p * rows + i]] += panel[i * stride + j];                            \
        int done = dasrel_within_sums_##SUFFIX(panel, stride, rows, columns, down, rows, across, columns, 3, clusters,\
                                               sums, clusters);                                                       \
        CHECK(done == 1, #SUFFIX " %ld x %ld", rows, columns);                                                        \
        for (long k = 0; k < 3 * clusters; k++)                                                                       \
            CHECK(fabs(sums[k] - plain[k]) <= 4 * EPSILON * (double)(rows * columns), #SUFFIX " %ld x %ld: %g, not %g",\
                  rows, columns, sums[k], plain[k]);                                                                  \
        free(panel), free(down), free(across), free(sums), free(plain);                                               \
    }                                                                                                                 \
                                                                                                                      \
    /* ways: 1 for the sums of rows, 2 for those of columns, 3 for both */                                            \
    static void products_##SUFFIX(long rows, long columns, long padding, long k, int ways)                            \
    {                                                                                                                 \
        const long stride = columns + padding;                                                                        \
        REAL *tile = numbers_##SUFFIX((rows - 1) * stride + columns);                                                 \
        REAL *u = numbers_##SUFFIX(k * rows), *v = numbers_##SUFFIX(k * columns);                                     \
        double *down = block((size_t)(k * rows) * 8), *across = block((size_t)(k * columns) * 8);                     \
        for (long i = 0; i < k * rows; i++) down[i] = 1;                                                              \
        for (long i = 0; i < k * columns; i++) across[i] = 1;                                                         \
        int done = dasrel_add_products_##SUFFIX(tile, stride, rows, columns, k, ways & 2 ? u : 0, rows,               \
                                                ways & 1 ? v : 0, columns, ways & 1 ? down : 0, rows,                 \
                                                ways & 2 ? across : 0, columns);                                      \
        CHECK(done == 1, #SUFFIX " %ld x %ld, k = %ld", rows, columns, k);                                            \
        for (long j = 0; j < k; j++) {                                                                                \
            for (long r = 0; r < rows; r++) {                                                                         \
                double sum = 0, size = 0;                                                                             \
                for (long c = 0; (ways & 1) && c < columns; c++) {                                                    \
                    double x = (double)tile[r * stride + c] * (double)v[j * columns + c];                             \
                    sum += x;                                                                                         \
                    size += fabs(x);                                                                                  \
                }                                                                                                     \
                CHECK(fabs(down[j * rows + r] - 1 - sum) <= 2050 * EPSILON * size + 1e-15,                            \
                      #SUFFIX " %ld x %ld, k = %ld, row %ld: %g, not %g", rows, columns, k, r,                        \
                      down[j * rows + r] - 1, sum);                                                                   \
            }                                                                                                         \
            for (long c = 0; c < columns; c++) {                                                                      \
                double sum = 0, size = 0;                                                                             \
                for (long r = 0; (ways & 2) && r < rows; r++) {                                                       \
                    double x = (double)tile[r * stride + c] * (double)u[j * rows + r];                                \
                    sum += x;                                                                                         \
                    size += fabs(x);                                                                                  \
                }                                                                                                     \
                CHECK(fabs(across[j * columns + c] - 1 - sum) <= 200 * EPSILON * size + 1e-15,                        \
                      #SUFFIX " %ld x %ld, k = %ld, column %ld: %g, not %g", rows, columns, k, c,                     \
                      across[j * columns + c] - 1, sum);                                                              \
            }                                                                                                         \
        }                                                                                                             \
        free(tile), free(u), free(v), free(down), free(across);                                                       \
    }                                                                                                                 \
                                                                                                                      \
    /* flaw: 0 none, 1 NaN on both sides, 2 a value that differs from its mirror, 3 no mirror, 4 infinities */        \
    static void checks_##SUFFIX(long rows, long columns, long padding, int flaw)                                      \
    {                                                                                                                 \
        const long stride = columns + padding, size = (rows - 1) * stride + columns;                                  \
        const long bad_row = (long)(random_bits() % (uint64_t)rows);                                                  \
        const long bad_column = (long)(random_bits() % (uint64_t)columns);                                            \
        REAL *source = numbers_##SUFFIX(size), *out = numbers_##SUFFIX(size), range[2] = {INFINITY, -INFINITY};       \
        REAL *mirror = block((size_t)(rows * columns) * sizeof(REAL));                                                \
        double *sums = block((size_t)columns * 8);                                                                    \
        if (flaw == 1) source[bad_row * stride + bad_column] = NAN;                                                   \
        if (flaw == 4) source[bad_row * stride + bad_column] = bad_row % 2 ? INFINITY : -INFINITY;                    \
        for (long r = 0; r < rows; r++)                                                                               \
            for (long c = 0; c < columns; c++) mirror[c * rows + r] = source[r * stride + c];                         \
        if (flaw == 2) mirror[bad_column * rows + bad_row] += 1;                                                      \
        for (long c = 0; c < columns; c++) sums[c] = 0;                                                               \
        int equal = dasrel_copy_and_check_##SUFFIX(source, stride, rows, columns, flaw == 3 ? 0 : mirror, rows, out,  \
                                                   stride, sums, range);                                              \
        CHECK(equal == (flaw != 1 && flaw != 2), #SUFFIX " %ld x %ld, flaw %d: %d", rows, columns, flaw, equal);      \
        REAL least = INFINITY, largest = -INFINITY;                                                                   \
        for (long c = 0; equal && c < columns; c++) {                                                                 \
            double sum = 0;                                                                                           \
            for (long r = 0; r < rows; r++) {                                                                         \
                REAL x = source[r * stride + c];                                                                      \
                CHECK(!memcmp(out + r * stride + c, &x, sizeof x), #SUFFIX " copy at %ld, %ld", r, c);                \
                sum += x;                                                                                             \
                least = x < least ? x : least;                                                                        \
                largest = x > largest ? x : largest;                                                                  \
            }                                                                                                         \
            CHECK(sums[c] == sum, #SUFFIX " %ld x %ld: sum of column %ld", rows, columns, c);                         \
        }                                                                                                             \
        CHECK(!equal || (range[0] == least && range[1] == largest), #SUFFIX " %ld x %ld: range", rows, columns);      \
        free(source), free(out), free(mirror), free(sums);                                                            \
    }                                                                                                                 \
                                                                                                                      \
    static void vectors_##SUFFIX(void)                                                                                \
    {                                                                                                                 \
        /* on both sides of 12 and 192 rows, of pieces of 256 columns, of strips of 2,048 and 4,096, of vectors */    \
        static const long shapes[][2] = {{1, 1},     {3, 8},      {7, 5},     {12, 16},   {13, 17},  {24, 256},       \
                                         {25, 259},  {191, 64},   {193, 65},  {385, 33},  {26, 4361}};                \
        static const long ks[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 16, 17, 32};                                            \
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)                                                   \
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)                                                       \
                products_##SUFFIX(shapes[s][0], shapes[s][1], (long)(s % 3), ks[i], (int)((s + i) % 3) + 1);          \
        /* on both sides of blocks of 128 and 256 rows, of 64 columns, and of vectors */                                \
        static const long blocks[][2] = {{1, 1},    {1, 9},    {9, 1},    {3, 5},    {8, 8},                          \
                                         {33, 64},  {255, 70}, {256, 65}, {257, 63}, {300, 200}};                     \
        for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++)                                                   \
            for (int way = 0; way < 2; way++) label_sums_##SUFFIX(blocks[s][0], blocks[s][1], (long)(s % 3), way);    \
        label_sums_##SUFFIX(513, 66, 3, 0), label_sums_##SUFFIX(66, 513, 3, 1);                                       \
        for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++)                                                   \
            for (int k = 1; k < 60; k += 29) within_sums_##SUFFIX(blocks[s][0], blocks[s][1], (long)(s % 3), k);      \
        for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++)                                                   \
            for (int k = 1; k < 60; k += 17) nearest_##SUFFIX(blocks[s][0], blocks[s][1], s % 3, k, 9 + 999 * k);        \
        for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++)                                                   \
            for (int flaw = 0; flaw < 5; flaw++)                                                                      \
                for (int often = 0; often < 4; often++) checks_##SUFFIX(blocks[s][0], blocks[s][1], often, flaw);     \
    }

TESTS(float, f32, FLT_EPSILON)
TESTS(double, f64, DBL_EPSILON)

/* ---- lists of pairs ---- */

static const char missing[] = "\nNA\nnan\n"; /* the empty word, and two others */

typedef struct {
    long rows, names;
    int *first, *second, *spans;
    double *values;
} list_t;

/* Read a text from a block of just its size; 0 if it is refused. */
static int read_list(const char *text, long size, long delimiter, long room, list_t *list)
{
    unsigned char *copy = block((size_t)size);
    long columns[] = {delimiter, 3, 0, 1, 2}, found[2] = {0, 0};
    memcpy(copy, text, (size_t)size);
    *list = (list_t){.first = block((size_t)room * 4), .second = block((size_t)room * 4),
                     .spans = block((size_t)room * 16), .values = block((size_t)room * 8)};
    int done = dasrel_read_pairs(copy, size, columns, missing, room, list->first, list->second, list->values,
                                 list->spans, found);
    list->rows = found[0];
    list->names = found[1];
    free(copy);
    return done;
}

static void free_list(list_t *list) { free(list->first), free(list->second), free(list->spans), free(list->values); }

static void decimals(void)
{
    static const struct {
        const char *text;
        double value;
    } known[] = {
        {"0", 0}, {"1", 1}, {"-2", -2}, {"+3.5", 3.5}, {"0.123456", 0.123456}, {".5", .5}, {"7.", 7.},
        {"0.12345678", 0.12345678}, {"0.123456789", 0.123456789}, {"1e5", 1e5}, {"1E-5", 1E-5}, {"2.5e+22", 2.5e+22},
        {"123456789012345678", 123456789012345678.}, {"12345678901234567890123", 12345678901234567890123.},
        {"9007199254740993", 9007199254740993.}, {"1.7976931348623157e308", 1.7976931348623157e308},
        {"5e-324", 5e-324}, {"2.2250738585072011e-308", 2.2250738585072011e-308}, {"0.1000000000000000055", 0.1},
        {"6.02214076e23", 6.02214076e23}, {"1e-400", 0}, {"  4 ", 4}, {"0e99999999999", 0},
    };
    static const char *const refused[] = {"1e999", "x", "1x", "--1", "1e", "e5", ".", "0x10", "inf", "1 2", "1.2.3"};
    char line[256];
    list_t list;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int begins = 0; begins < 2; begins++) { /* with the name before it short, and long */
            long size = sprintf(line, "%s,b,%s\n", begins ? "a name of some length" : "a", known[i].text);
            int done = read_list(line, size, ',', 1, &list);
            CHECK(done && list.rows == 1 && list.values[0] == known[i].value, "%s", known[i].text);
            free_list(&list);
        }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        long size = sprintf(line, "a,b,%s\n", refused[i]);
        CHECK(!read_list(line, size, ',', 1, &list), "%s", refused[i]);
        free_list(&list);
    }
}

/* Many names, of all lengths, told from each other and numbered as they are met. */
static void names(void)
{
    enum { COUNT = 5000 };
    char *text = block(COUNT * 200), *p = text;
    list_t list;
    for (int k = 0; k < COUNT; k++) {
        p += sprintf(p, "%.*s%d\t", k % 60, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123456789", k);
        p += sprintf(p, "%.*s%d\t0.5\r\n", k / 2 % 60, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123456789",
                     k / 2);
    }
    CHECK(dasrel_count_lines((unsigned char *)text, p - text) == COUNT, "lines");
    int done = read_list(text, p - text, '\t', COUNT, &list);
    CHECK(done && list.rows == COUNT && list.names == COUNT, "%ld names", list.names);
    for (int k = 0; done && k < COUNT; k++) {
        CHECK(list.first[k] == k && list.second[k] == k / 2 && list.values[k] == 0.5, "line %d", k);
        const char *name = text + list.spans[2 * k];
        CHECK(list.spans[2 * k + 1] - list.spans[2 * k] >= k % 60 + 1 && strtol(name + k % 60, 0, 10) == k, "name %d", k);
    }
    free_list(&list);
    CHECK(!read_list(text, p - text, '\t', COUNT - 1, &list), "more lines than there is room for");
    free_list(&list);
    CHECK(!read_list(text, p - text - 1, '\t', COUNT, &list), "no newline at the end");
    free_list(&list);
    CHECK(!read_list(text, 0, '\t', 1, &list), "no text");
    free_list(&list);
    free(text);
}

/* Texts with random bytes in them are read or refused, but never by looking outside of them. */
static void mutations(void)
{
    static const char plain[] = "# a comment, of some length\n\nfirst,second,0.25\nsecond,third,NA\r\nthird,first,\n"
                                "x,a much longer name than the others have,-1.5e-3\nx,y,12345678901234567890\n";
    static const char odd[] = ",\n\r\"# .-+eE0NA\t";
    for (int often = 0; often < 20000; often++) {
        char text[sizeof plain];
        list_t list;
        long size = 1 + (long)(random_bits() % (sizeof plain - 1));
        memcpy(text, plain + sizeof plain - 1 - size, (size_t)size);
        for (int changes = (int)(random_bits() % 4); changes; changes--)
            text[random_bits() % (uint64_t)size] =
                often % 2 ? odd[random_bits() % sizeof odd] : (char)(random_bits() % 256);
        const long room = dasrel_count_lines((unsigned char *)text, size);
        if (read_list(text, size, ',', room, &list)) {
            CHECK(list.rows <= room && list.names <= 2 * list.rows, "%ld lines, %ld names", list.rows, list.names);
            for (long k = 0; k < list.rows; k++)
                CHECK(list.first[k] < list.names && list.second[k] < list.names, "codes of line %ld", k);
            for (long k = 0; k < list.names; k++)
                CHECK(0 <= list.spans[2 * k] && list.spans[2 * k] < list.spans[2 * k + 1] &&
                          list.spans[2 * k + 1] <= size, "name %ld", k);
        }
        free_list(&list);
    }
}

static void blocks_of_pairs(void)
{
    enum { PAIRS = 1000, OBJECTS = 40, BLOCKS = 4 };
    int *first = block(PAIRS * sizeof(int)), *second = block(PAIRS * sizeof(int));
    int *numbers = block(OBJECTS * sizeof(int)), *blocks = block(OBJECTS * sizeof(int));
    double *values = block(PAIRS * sizeof(double));
    long counts[BLOCKS * BLOCKS] = {0}, next[BLOCKS * BLOCKS], begin[BLOCKS * BLOCKS], kept = 0;
    unsigned char own[OBJECTS] = {0}, ways[2] = {0}, own_found[OBJECTS] = {0};
    for (int i = 0; i < OBJECTS; i++) {
        numbers[i] = (i * 7) % OBJECTS;
        blocks[i] = numbers[i] / (OBJECTS / BLOCKS);
    }
    for (int k = 0; k < PAIRS; k++) {
        first[k] = (int)(random_bits() % OBJECTS);
        second[k] = (int)(random_bits() % OBJECTS);
        values[k] = k % 10 ? k : NAN;
        if (k % 10 && first[k] == second[k]) own[numbers[first[k]]] = 1;
        kept += k % 10 != 0;
    }
    pairs_t pairs = {first, second, values, PAIRS, {numbers, numbers}, {blocks, blocks}, BLOCKS};
    dasrel_count_pairs_by_block(&pairs, counts, own_found, ways);
    CHECK(!memcmp(own, own_found, OBJECTS) && ways[0] == 1 && ways[1] == 1, "objects with themselves");
    long total = 0;
    for (int b = 0; b < BLOCKS * BLOCKS; b++) {
        begin[b] = next[b] = total;
        total += counts[b];
    }
    CHECK(total == kept, "%ld pairs", total);
    record_t *records = block((size_t)total * sizeof(record_t));
    dasrel_sort_pairs_by_block(&pairs, next, records);
    for (int b = 0; b < BLOCKS * BLOCKS; b++)
        for (long i = begin[b]; i < begin[b] + counts[b]; i++) {
            const int k = (int)records[i].value; /* which pair it was */
            CHECK(records[i].row == numbers[first[k]] && records[i].column == numbers[second[k]], "pair %d", k);
            CHECK(blocks[first[k]] * BLOCKS + blocks[second[k]] == b, "block of pair %d", k);
            CHECK(i == begin[b] || records[i - 1].value < records[i].value, "order of block %d", b);
        }
    free(first), free(second), free(numbers), free(blocks), free(values), free(records);
}

static void exponentials(void)
{
    enum { ROWS = 7 };
    for (long columns = 1; columns < 40; columns++)
        for (int squared = 0; squared < 2; squared++) {
            const size_t size = (size_t)(ROWS * columns) * sizeof(float);
            float *x = block(size), *y = block(size);
            for (long k = 0; k < ROWS * columns; k++) x[k] = (float)(random_number() * 30);
            dasrel_exponential_f32(x, columns, ROWS, columns, squared ? -0.09f : 2.5f, squared, y, columns);
            for (long k = 0; k < ROWS * columns; k++) {
                const float z = (squared ? x[k] * x[k] : x[k]) * (squared ? -0.09f : 2.5f);
                const double exact = exp((double)z);
                CHECK(fabs(y[k] - exact) <= 2.4e-7 * exact, "exp(%g) is not %g", z, y[k]);
            }
            dasrel_exponential_f32(x, columns, ROWS, columns, squared ? -0.09f : 2.5f, squared, x, columns);
            CHECK(!memcmp(x, y, size), "in place, %ld columns", columns);
            free(x), free(y);
        }
}

/* Inner products of kernels with proximity matrices, in both precisions; Gaussian kernels in float32 only. */

#define ALIGNMENTS(REAL, SUFFIX, TOLERANCE)                                                                           \
    int dasrel_alignment_##SUFFIX(const REAL *, long, long, long, long, long, const float *, int, const REAL *, long, \
                                  const REAL *, long, const int64_t *, long, double *, double *, double *, double *,  \
                                  long, double *, long);                                                              \
    static void alignments_##SUFFIX(int gaussian)                                                                     \
    {                                                                                                                 \
        enum { WIDTHS = 3, PARTITIONS = 5 };                                                                          \
        const int64_t first[PARTITIONS + 1] = {0, 1, 3, 3 + 4, 7 + 2, 9 + 6};                                         \
        const float factors[WIDTHS] = {-0.5f, -3, -40};                                                               \
        const long shapes[][2] = {{1, 1}, {3, 63}, {4, 64}, {5, 65}, {9, 200}, {270, 3}};                             \
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {                                                 \
            const long rows = shapes[s][0], columns = shapes[s][1], all = first[PARTITIONS];                          \
            const long given = gaussian ? 1 : WIDTHS;                                                                 \
            REAL *K = block((size_t)(given * rows * columns) * sizeof(REAL));                                         \
            REAL *U = block((size_t)(all * rows) * sizeof(REAL)), *V = block((size_t)(all * columns) * sizeof(REAL)); \
            double *down = calloc((size_t)(WIDTHS * rows), 8), *across = calloc((size_t)(WIDTHS * columns), 8);       \
            double dots[WIDTHS * PARTITIONS] = {0}, squares[WIDTHS] = {0}, own[PARTITIONS] = {0};                     \
            for (long k = 0; k < given * rows * columns; k++) K[k] = (REAL)fabs(random_number());                     \
            for (long k = 0; k < all * rows; k++) U[k] = (REAL)fabs(random_number());                                 \
            for (long k = 0; k < all * columns; k++) V[k] = (REAL)fabs(random_number());                              \
            CHECK(dasrel_alignment_##SUFFIX(K, gaussian ? 0 : rows * columns, columns, WIDTHS, rows, columns,         \
                                            gaussian ? factors : 0, 1, U, rows, V, columns, first, PARTITIONS, dots,  \
                                            squares, own, down, rows, across, columns), "no memory");                 \
            double exact[WIDTHS * PARTITIONS] = {0}, of_K[WIDTHS] = {0}, of_P[PARTITIONS] = {0};                      \
            for (long i = 0; i < rows; i++)                                                                           \
                for (long j = 0; j < columns; j++) {                                                                  \
                    double P[PARTITIONS] = {0};                                                                       \
                    for (int p = 0; p < PARTITIONS; p++) {                                                            \
                        for (int64_t c = first[p]; c < first[p + 1]; c++)                                             \
                            P[p] += fmin((double)U[c * rows + i], (double)V[c * columns + j]);                        \
                        of_P[p] += P[p] * P[p];                                                                       \
                    }                                                                                                 \
                    for (int w = 0; w < WIDTHS; w++) {                                                                \
                        const double x = (double)K[(gaussian ? 0 : w * rows * columns) + i * columns + j];            \
                        const double k = gaussian ? exp((double)factors[w] * x * x) : x;                              \
                        of_K[w] += k * k;                                                                             \
                        down[w * rows + i] -= k;                                                                      \
                        across[w * columns + j] -= k;                                                                 \
                        for (int p = 0; p < PARTITIONS; p++) exact[w * PARTITIONS + p] += k * P[p];                   \
                    }                                                                                                 \
                }                                                                                                     \
            for (int k = 0; k < WIDTHS * PARTITIONS; k++)                                                             \
                CHECK(fabs(dots[k] - exact[k]) <= TOLERANCE * exact[k], "product %d of %ld x %ld", k, rows, columns); \
            for (int w = 0; w < WIDTHS; w++) CHECK(fabs(squares[w] - of_K[w]) <= TOLERANCE * of_K[w], "width %d", w); \
            for (int p = 0; p < PARTITIONS; p++) CHECK(fabs(own[p] - of_P[p]) <= TOLERANCE * of_P[p], "<P, P> %d", p);\
            for (long k = 0; k < WIDTHS * rows; k++) CHECK(fabs(down[k]) <= TOLERANCE * columns, "row %ld", k);       \
            for (long k = 0; k < WIDTHS * columns; k++) CHECK(fabs(across[k]) <= TOLERANCE * rows, "column %ld", k);  \
            free(K), free(U), free(V), free(down), free(across);                                                      \
        }                                                                                                             \
    }

ALIGNMENTS(float, f32, 3e-6)
ALIGNMENTS(double, f64, 1e-13)

/* Rows of clusters, in both precisions. Objects are single but for slot 1, which slot 4 was merged into; now slot 5 is
   merged into slot 2. Row 0 has seen neither merge, rows 2 and 5, which become one, the first. */

static double joined(int method, double x, double y, double a, double b, double c, double height)
{
    if (method == 0) return fmin(x, y);
    if (method == 1) return fmax(x, y);
    if (method == 2) return x + y;
    return method == 3 ? 0.5 * (x + y) : ((a + c) * x + (b + c) * y - c * height) / (a + b + c);
}

#define LISTED 16 /* clusters of a list */

/* Whether a list has the nearest clusters of a row, which is changed. */
static int has_nearest(const int32_t *slots, const double *values, double *x, long n)
{
    for (int k = 0; k < LISTED; k++) {
        long best = -1;
        for (long j = 0; j < n; j++)
            if (x[j] < (best < 0 ? INFINITY : x[best])) best = j;
        if (slots[k] != best || values[k] != (best < 0 ? INFINITY : x[best])) return 0;
        if (best >= 0) x[best] = INFINITY;
    }
    return 1;
}

#define ROWS_OF_CLUSTERS(REAL, NAME, UPDATE, KEEP, TOLERANCE)                                                         \
    static void NAME(void)                                                                                            \
    {                                                                                                                 \
        for (long n = 6; n < 600; n += n < 40 ? 1 : 97)                                                               \
            for (int method = 0; method < 5; method++) {                                                              \
                REAL *rows[3], *others[3] = {0};                                                                      \
                double *plain[3];                                                                                     \
                for (int t = 0; t < 3; t++) {                                                                         \
                    rows[t] = malloc((size_t)n * sizeof(REAL));                                                       \
                    plain[t] = malloc((size_t)n * sizeof(double));                                                    \
                    for (long j = 0; j < n; j++) plain[t][j] = rows[t][j] = (REAL)(1.5 + random_number());            \
                }                                                                                                     \
                double *before = malloc((size_t)n * sizeof(double)), *after = malloc((size_t)n * sizeof(double));     \
                for (long j = 0; j < n; j++) before[j] = after[j] = 1;                                                \
                before[1] = after[1] = 2, before[4] = after[4] = 1, after[2] = 2;                                     \
                const int32_t a[] = {1, 2}, b[] = {4, 5};                                                             \
                const double one[] = {1, 1}, height[] = {0.25, 0.375};                                                \
                const int64_t from[] = {0, 1}, other_from[] = {0, 1}, merge[] = {-1, 1}, slots[] = {0, 2};            \
                rows[1][4] = rows[2][4] = (REAL)INFINITY, plain[1][4] = plain[2][4] = INFINITY;                       \
                rows[0][0] = (REAL)INFINITY, plain[0][0] = INFINITY;                                                  \
                others[1] = rows[2];                                                                                  \
                int32_t near_slots[2 * LISTED];                                                                       \
                double near_values[2 * LISTED];                                                                       \
                CHECK(UPDATE(method, 2, n, rows, others, from, other_from, merge, slots, a, b, one, one, height, 1,   \
                             2, before, after, near_slots, near_values), "no memory");                                \
                double *x = plain[0];                                                                                 \
                for (int k = 0; k < 2; k++) {                                                                         \
                    x[a[k]] = joined(method, x[a[k]], x[b[k]], 1, 1, 1, height[k]);                                   \
                    x[b[k]] = INFINITY;                                                                               \
                }                                                                                                     \
                double *u = plain[1], *v = plain[2];                                                                  \
                for (long j = 0; j < n; j++) u[j] = joined(method, u[j], v[j], 1, 1, before[j], height[1]);           \
                u[2] = u[4] = u[5] = INFINITY;                                                                        \
                for (int t = 0; t < 2; t++) {                                                                         \
                    for (long j = 0; j < n; j++)                                                                      \
                        CHECK(plain[t][j] == (double)rows[t][j] || fabs(plain[t][j] - (double)rows[t][j]) < TOLERANCE, \
                              "method %d, row %d of %ld, %ld", method, t, n, j);                                      \
                    for (long j = 0; j < n; j++)                                                                      \
                        plain[t][j] = method == 2 ? rows[t][j] / ((t + 1) * after[j]) : (double)rows[t][j];           \
                    CHECK(has_nearest(near_slots + t * LISTED, near_values + t * LISTED, plain[t], n),                \
                          "method %d, %ld: nearest", method, n);                                                      \
                }                                                                                                     \
                for (int k = 0; k < LISTED; k++) near_slots[k] = -1, near_values[k] = INFINITY;                       \
                for (long j = 0; j < n; j++) plain[0][j] = rows[0][j];                                                \
                CHECK(KEEP(1, n - n / 3, rows[0] + n / 3, n / 3, near_slots, near_values), "no memory");              \
                CHECK(KEEP(1, n / 3, rows[0], 0, near_slots, near_values), "no memory");                              \
                CHECK(has_nearest(near_slots, near_values, plain[0], n), "%ld: nearest of two blocks", n);            \
                for (int t = 0; t < 3; t++) free(rows[t]), free(plain[t]);                                            \
                free(before), free(after);                                                                            \
            }                                                                                                         \
    }

ROWS_OF_CLUSTERS(float, rows_f32, dasrel_update_rows_f32, dasrel_keep_nearest_f32, 1e-6)
ROWS_OF_CLUSTERS(double, rows_f64, dasrel_update_rows_f64, dasrel_keep_nearest_f64, 1e-14)

int main(void)
{
    printf("%s-%d\n", dasrel_instruction_set(), dasrel_library_version());
    if (*dasrel_instruction_set()) {
        vectors_f32();
        vectors_f64();
        exponentials();
        alignments_f32(0);
        alignments_f32(1);
        alignments_f64(0);
        rows_f32();
        rows_f64();
    }
    if (!dasrel_prepare_pair_list()) return fputs("no lists of pairs on this machine\n", stderr), 1;
    decimals();
    names();
    mutations();
    blocks_of_pairs();
    if (failures) fprintf(stderr, "%d failures\n", failures);
    return failures != 0;
}
