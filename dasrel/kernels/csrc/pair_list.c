/* Lists of pairs in text: lines of fields become numbers of names and values, and these become records sorted by block.

   A general CSV reader makes a string of every name and a table of the strings; both cost more than parsing the lines.
   Here a name is looked up where it lies in the text, in a hash table of the names met so far, and is known by its
   number from then on. Only plain lines are understood: one delimiter, no quotes, no blank name, and as value a number
   or a word for "no value". Text with anything else is refused as a whole, and the caller parses it in another way that
   can say what is wrong with it.

   Nothing is read outside the text. Decimals become the nearest double, as with strtod. */

#define _GNU_SOURCE
#include <float.h>
#include <limits.h>
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef unsigned char byte;

static locale_t plain_locale;

/* 1 if the functions below work on this machine, else 0. To be called once, before all others. */
int dasrel_prepare_pair_list(void)
{
    const int one = 1;
    if (*(const byte *)&one != 1) return 0; /* names are compared in words, the first byte of which is the lowest */
    if (sizeof(long) != 8 || FLT_EVAL_METHOD != 0) return 0; /* arrays are of 64 bits; doubles are rounded as doubles */
    if (!plain_locale) plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return plain_locale != (locale_t)0;
}

/* Count the lines of a text: its newlines. */
long dasrel_count_lines(const byte *text, long size)
{
    long lines = 0;
    while (size) {
        long some = size < 255 * 64 ? size : 255 * 64;
        byte counts[64] = {0}; /* none of which can overflow */
        long whole = some / 64 * 64;
        for (long k = 0; k < whole; k += 64)
            for (int i = 0; i < 64; i++) counts[i] += text[k + i] == '\n';
        for (int i = 0; i < 64; i++) lines += counts[i];
        for (long k = whole; k < some; k++) lines += text[k] == '\n';
        text += some;
        size -= some;
    }
    return lines;
}

/* ---- names ---- */

/* A name by its first and its last eight bytes, which are all there is of most names, and where it was first met. */
typedef struct {
    uint64_t head, tail;
    int start, length;
} name_t;

typedef struct {
    const byte *text, *end;
    name_t *names;
    int *slots; /* number of a name + 1, or 0 */
    long count, room, mask;
} table_t;

/* The eight bytes at p, or what there is of them before `stop`; zeros follow. */
static inline uint64_t word(const byte *p, const byte *stop, const byte *end)
{
    uint64_t x = 0;
    if (stop - p >= 8) {
        memcpy(&x, p, 8);
    } else if (end - p >= 8) {
        memcpy(&x, p, 8);
        x &= (UINT64_C(1) << 8 * (stop - p)) - 1;
    } else {
        memcpy(&x, p, stop - p);
    }
    return x;
}

static inline name_t name_at(const table_t *table, const byte *p, const byte *stop)
{
    name_t name = {word(p, stop, table->end), 0, (int)(p - table->text), (int)(stop - p)};
    name.tail = name.length > 8 ? word(stop - 8, stop, table->end) : name.head;
    return name;
}

static inline int same(const table_t *table, const name_t *a, const name_t *b)
{
    if (a->head != b->head || a->tail != b->tail || a->length != b->length) return 0;
    return a->length <= 16 || !memcmp(table->text + a->start + 8, table->text + b->start + 8, a->length - 16);
}

static inline uint64_t hash_of(const table_t *table, const name_t *name)
{
    const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = (name->head ^ (name->tail << 29 | name->tail >> 35) ^ (uint64_t)name->length) * factor;
    for (int k = 8; k + 8 < name->length; k += 8) { /* what lies between head and tail, or overlaps the tail */
        uint64_t x;
        memcpy(&x, table->text + name->start + k, 8);
        hash = (hash ^ (hash >> 32) ^ x) * factor;
    }
    hash ^= hash >> 29;
    hash *= factor;
    return hash ^ hash >> 32;
}

/* Twice as many places, four for each name, so that most names are at the first that is looked at. 0: no memory. */
static int grow(table_t *table)
{
    long places = table->room ? 8 * table->room : 4096, room = places / 4;
    name_t *names = realloc(table->names, room * sizeof(name_t));
    if (!names) return 0;
    table->names = names;
    int *slots = calloc(places, sizeof(int));
    if (!slots) return 0;
    free(table->slots);
    table->slots = slots;
    table->room = room;
    table->mask = places - 1;
    for (long k = 0; k < table->count; k++) {
        long place = hash_of(table, names + k) & table->mask;
        while (slots[place]) place = (place + 1) & table->mask;
        slots[place] = (int)k + 1;
    }
    return 1;
}

/* The number of a name, a new one if it was not met before; `guess` is looked at first. -1: no memory. */
static inline int number_of(table_t *table, const byte *p, const byte *stop, int guess)
{
    name_t name = name_at(table, p, stop);
    if (guess < table->count && same(table, &name, table->names + guess)) return guess;
    long place = hash_of(table, &name) & table->mask;
    for (int k; (k = table->slots[place]); place = (place + 1) & table->mask)
        if (same(table, &name, table->names + k - 1)) return k - 1;
    table->names[table->count] = name;
    table->slots[place] = (int)++table->count;
    int number = (int)table->count - 1;
    return table->count < table->room || grow(table) ? number : -1;
}

/* ---- values ---- */

static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
#if LDBL_MANT_DIG == 64
static const long double long_tens[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                        1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                        1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
#endif

/* digits * 10^power to the nearest double, where that takes a single rounding; else 0. */
static inline int scaled(uint64_t digits, long power, double *value)
{
    if (digits >> 53 == 0 && power >= -22 && power <= 22) { /* both exact, so that one operation rounds once */
        *value = power < 0 ? (double)digits / tens[-power] : (double)digits * tens[power];
        return 1;
    }
#if LDBL_MANT_DIG == 64
    /* Likewise with 64 bits. To round once more is safe unless the result lies just half way between two doubles. */
    if (power >= -27 && power <= 27) {
        long double x = power < 0 ? digits / long_tens[-power] : digits * long_tens[power];
        uint64_t bits;
        memcpy(&bits, &x, 8);
        *value = (double)x;
        return (bits & 0x7ff) != 0x400;
    }
#endif
    return 0;
}

/* Whether eight bytes are digits, and what they say, the first of them in the low byte. */
static inline int are_digits(uint64_t x)
{
    const uint64_t high = UINT64_C(0xf0f0f0f0f0f0f0f0), zeros = UINT64_C(0x3030303030303030);
    return (x & high) == zeros && ((x + UINT64_C(0x0606060606060606)) & high) == zeros;
}

static inline uint64_t eight_digits(uint64_t x)
{
    x -= UINT64_C(0x3030303030303030);
    x = (x * 10 + (x >> 8)) & UINT64_C(0x00ff00ff00ff00ff); /* pairs of digits, then fours, then all */
    x = (x * 100 + (x >> 16)) & UINT64_C(0x0000ffff0000ffff);
    return (x * 10000 + (x >> 32)) & UINT64_C(0xffffffff);
}

/* Append the digits that follow, and return where they end. */
static inline const byte *take_digits(const byte *p, const byte *stop, uint64_t *digits)
{
    for (uint64_t x; stop - p >= 8; p += 8) {
        memcpy(&x, p, 8);
        if (!are_digits(x)) break;
        *digits = *digits * 100000000 + eight_digits(x);
    }
    for (; p < stop && (byte)(*p - '0') < 10; p++) *digits = *digits * 10 + (*p - '0');
    return p;
}

/* The number written from p to `stop`, before which there are eight bytes at least; 0 if it is none, or not finite. */
static inline int decimal(const byte *p, const byte *stop, double *value)
{
    if (stop - p > 2 && stop - p <= 10 && p[1] == '.' && (byte)(*p - '0') < 10) { /* as most are: 0.123456 */
        const int count = (int)(stop - p) - 2, others = 64 - 8 * count;
        uint64_t x;
        memcpy(&x, stop - 8, 8);
        if (others) x = x >> others << others | UINT64_C(0x3030303030303030) >> (64 - others);
        if (!are_digits(x)) goto any;
        *value = (double)((uint64_t)(*p - '0') * (uint64_t)tens[count] + eight_digits(x)) / tens[count];
        return 1;
    }
any:;
    const byte *begin = p, *from;
    const int negative = p < stop && *p == '-';
    if (p < stop && (*p == '-' || *p == '+')) p++;
    uint64_t digits = 0;
    long power = 0, exponent = 0, count = 0;
    p = take_digits(from = p, stop, &digits);
    count = p - from;
    if (p < stop && *p == '.') {
        p = take_digits(from = p + 1, stop, &digits);
        power = from - p;
        count += p - from;
    }
    if (!count) return 0;
    if (p < stop && (*p | 0x20) == 'e') {
        int down = ++p < stop && *p == '-';
        if (p < stop && (*p == '-' || *p == '+')) p++;
        from = p;
        for (; p < stop && (byte)(*p - '0') < 10; p++)
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0'); /* more make no difference */
        if (p == from) return 0;
        power += down ? -exponent : exponent;
    }
    if (p != stop) return 0;
    double found = 0;
    if (count > 19 || (digits && !scaled(digits, power, &found))) { /* of more than 19 digits not all may have fitted */
        char copy[128], *end;
        if (stop - begin >= (long)sizeof copy) return 0;
        memcpy(copy, begin, stop - begin);
        copy[stop - begin] = 0;
        *value = strtod_l(copy, &end, plain_locale);
        return end == copy + (stop - begin) && *value - *value == 0;
    }
    *value = negative ? -found : found;
    return 1;
}

/* The same for a number at the very beginning of a text. */
static int short_decimal(const byte *p, const byte *stop, double *value)
{
    byte copy[128] = {0};
    if (stop - p > 100) return 0;
    memcpy(copy + 8, p, stop - p);
    return decimal(copy + 8, copy + 8 + (stop - p), value);
}

/* Whether a field is one of the words that mean that there is no value: each of them ends in a newline. */
static int is_missing(const byte *p, const byte *stop, const char *words)
{
    for (const char *next; (next = strchr(words, '\n')); words = next + 1)
        if (next - words == stop - p && !memcmp(words, p, stop - p)) return 1;
    return 0;
}

/* ---- lines ---- */

/* The places of a text where a field or a line ends, found 64 bytes at a time. */
typedef struct {
    const byte *here, *end;
    uint64_t marks; /* of the 64 bytes that begin here, those that are left */
    byte delimiter;
} ends_t;

#ifndef __SSE2__
/* A bit for each of eight bytes, the lowest for the first of them: 1 where both words have the same byte. */
static inline uint64_t equal_bytes(uint64_t x, uint64_t y)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    x ^= y;
    x = ~(((x & low) + low) | x | low); /* the highest bit of each byte that is 0; no byte carries into the next */
    return (x >> 7) * UINT64_C(0x0102040810204080) >> 56; /* these eight bits side by side */
}
#endif

/* A bit for each of the 64 bytes from p on, as far as there are so many: 1 for a delimiter or a newline. */
static inline uint64_t marks_at(const byte *p, const byte *end, byte delimiter)
{
    uint64_t marks = 0;
    if (end - p < 64) {
        for (int k = 0; k < 64 && k < end - p; k++) marks |= (uint64_t)(p[k] == delimiter || p[k] == '\n') << k;
        return marks;
    }
#ifdef __SSE2__ /* every x86-64; a third faster there than the way below */
    const __m128i one = _mm_set1_epi8((char)delimiter), other = _mm_set1_epi8('\n');
    for (int k = 0; k < 64; k += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(p + k));
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(x, one), _mm_cmpeq_epi8(x, other));
        marks |= (uint64_t)_mm_movemask_epi8(found) << k;
    }
#else
    const uint64_t ones = UINT64_C(0x0101010101010101), one = ones * delimiter, other = ones * '\n';
    for (int k = 0; k < 64; k += 8) {
        uint64_t x;
        memcpy(&x, p + k, 8);
        marks |= (equal_bytes(x, one) | equal_bytes(x, other)) << k;
    }
#endif
    return marks;
}

/* The next end. There must be one: the text ends in a newline. */
static inline const byte *next_end(ends_t *ends)
{
    while (!ends->marks) {
        ends->here += 64;
        ends->marks = marks_at(ends->here, ends->end, ends->delimiter);
    }
    const byte *found = ends->here + __builtin_ctzll(ends->marks);
    ends->marks &= ends->marks - 1;
    return found;
}

/* Whether a name is empty, or made of blanks. */
static inline int is_blank(const byte *p, const byte *stop)
{
    while (p < stop && (*p == ' ' || (*p >= '\t' && *p <= '\r'))) p++;
    return p == stop;
}

#define MOST_FIELDS 256

/* Where the pairs of a text are: `width` fields a line, of which these three are the objects and the value. */
typedef struct {
    long delimiter, width, first, second, value;
    const char *missing;
} layout_t;

/* Read all lines; first[k], second[k] and values[k] of the k-th are set, NaN for no value. `room` is how many lines
   there is room for. The number of lines, or -1 where something is not plain. */
static long read_lines(const layout_t *layout, table_t *table, long room, int *first, int *second, double *values)
{
    const byte *p = table->text, *end = table->end, *fields[MOST_FIELDS + 1];
    const byte delimiter = (byte)layout->delimiter;
    const long width = layout->width;
    ends_t ends = {p, end, marks_at(p, end, delimiter), delimiter};
    long rows = 0;
    int one = 0, other = 0;
    while (p < end) {
        const byte *stop = next_end(&ends);
        if (*p == '#' || (*stop == '\n' && (stop == p || (stop == p + 1 && *p == '\r')))) { /* no pair in this line */
            while (*stop != '\n') stop = next_end(&ends);
            p = stop + 1;
            continue;
        }
        fields[0] = p;
        for (long k = 1; k < width; k++, stop = next_end(&ends)) {
            if (*stop == '\n') return -1;
            fields[k] = stop + 1;
        }
        if (*stop != '\n' || rows == room) return -1;
        p = stop + 1;
        fields[width] = p - (stop[-1] == '\r'); /* where the next would begin; the line is not empty */
        const byte *a = fields[layout->first], *a_stop = fields[layout->first + 1] - 1;
        const byte *b = fields[layout->second], *b_stop = fields[layout->second + 1] - 1;
        const byte *x = fields[layout->value], *x_stop = fields[layout->value + 1] - 1;
        if (is_blank(a, a_stop) || is_blank(b, b_stop)) return -1;
        /* Lists in order: the same first object again, and the second that was met after the last one. */
        one = number_of(table, a, a_stop, one);
        if (one < 0) return -1;
        other = number_of(table, b, b_stop, other + 1);
        if (other < 0) return -1;
        first[rows] = one;
        second[rows] = other;
        while (x < x_stop && *x == ' ') x++;
        while (x < x_stop && x_stop[-1] == ' ') x_stop--;
        if (!(x - table->text >= 8 ? decimal(x, x_stop, values + rows) : short_decimal(x, x_stop, values + rows))) {
            if (!is_missing(x, x_stop, layout->missing)) return -1;
            values[rows] = __builtin_nan("");
        }
        rows++;
    }
    return rows;
}

/* Whether there are no bytes in a text that mean more than themselves: quotes, zeros, returns but at a line's end. */
static int is_plain(const byte *text, long size)
{
    const byte *p = text, *end = text + size;
    while ((p = memchr(p, '\r', end - p)))
        if (*++p != '\n') return 0; /* there is a byte after it: the last one is a newline */
    return !memchr(text, '"', size) && !memchr(text, 0, size);
}

/* Read a text that ends in a newline. Names are numbered as they are met, the first object of a line before the second;
   spans (count, 2) says where each begins and ends. There is room for so many lines, and for twice as many names. found
   holds the numbers of lines and of names. 0 if the text is not plain, and then nothing is known of it. */
int dasrel_read_pairs(const byte *text, long size, const long *columns, const char *missing, long room, int *first,
                      int *second, double *values, int *spans, long *found)
{
    if (size < 1 || size > INT_MAX / 2 || text[size - 1] != '\n') return 0;
    layout_t layout = {columns[0], columns[1], columns[2], columns[3], columns[4], missing};
    if (layout.width > MOST_FIELDS) return 0;
    if (layout.delimiter < 1 || layout.delimiter > 127 || layout.delimiter == '\n' || !is_plain(text, size)) return 0;
    table_t table = {text, text + size, 0, 0, 0, 0, 0};
    long rows = grow(&table) ? read_lines(&layout, &table, room, first, second, values) : -1;
    for (long k = 0; rows >= 0 && k < table.count; k++) {
        spans[2 * k] = table.names[k].start;
        spans[2 * k + 1] = table.names[k].start + table.names[k].length;
    }
    found[0] = rows;
    found[1] = table.count;
    free(table.names);
    free(table.slots);
    return rows >= 0;
}

/* ---- records ---- */

typedef struct {
    int row, column;
    double value;
} record_t;

/* Pairs by the codes of their names. For a code of the first and of the second column, numbers[0] and numbers[1] hold
   the number of the object, blocks[0] and blocks[1] the row or column of blocks in which it lies; there are n_blocks by
   n_blocks of them. */
typedef struct {
    const int *first, *second;
    const double *values;
    long rows;
    const int *numbers[2];
    const int *blocks[2];
    long n_blocks;
} pairs_t;

/* Add to counts (n_blocks, n_blocks) how many of the pairs belong to each block, without those that have no value.
   own[i] becomes 1 for each object that has a value with itself, ways[0] and ways[1] for a pair above and one below
   the diagonal. */
void dasrel_count_pairs_by_block(const pairs_t *given, long *restrict counts, byte *restrict own, byte *restrict ways)
{
    const pairs_t pairs = *given;
    int above = 0, below = 0;
    for (long k = 0; k < pairs.rows; k++) {
        const int a = pairs.first[k], b = pairs.second[k];
        if (pairs.values[k] != pairs.values[k]) continue;
        const int row = pairs.numbers[0][a], column = pairs.numbers[1][b];
        counts[pairs.blocks[0][a] * pairs.n_blocks + pairs.blocks[1][b]]++;
        above |= row < column;
        below |= row > column;
        if (row == column) own[row] = 1;
    }
    ways[0] |= above;
    ways[1] |= below;
}

/* Write each pair that has a value to the next place of its block; `next` (n_blocks, n_blocks) holds these places. */
void dasrel_sort_pairs_by_block(const pairs_t *given, long *restrict next, record_t *restrict records)
{
    const pairs_t pairs = *given;
    for (long k = 0; k < pairs.rows; k++) {
        const int a = pairs.first[k], b = pairs.second[k];
        if (pairs.values[k] != pairs.values[k]) continue;
        long place = next[pairs.blocks[0][a] * pairs.n_blocks + pairs.blocks[1][b]]++;
        records[place] = (record_t){pairs.numbers[0][a], pairs.numbers[1][b], pairs.values[k]};
    }
}
