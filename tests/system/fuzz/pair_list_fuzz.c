/* The reader of pairs under libFuzzer: any text, any delimiter and columns, with arrays of exactly the promised size.

   clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
       tests/system/fuzz/pair_list_fuzz.c dasrel/kernels/csrc/pair_list.c -o /tmp/pair_list_fuzz
   /tmp/pair_list_fuzz -max_total_time=60 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int dasrel_prepare_pair_list(void);
long dasrel_count_lines(const unsigned char *, long);
int dasrel_read_pairs(const unsigned char *, long, const long *, const char *, long, int *, int *, double *, int *,
                      long *);

static void check(int holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 6 || !dasrel_prepare_pair_list()) return 0;
    static const char delimiters[] = "\t,; ";
    const long width = 3 + data[1] % 3;
    const long columns[5] = {delimiters[data[0] % 4], width, data[2] % width, data[3] % width, data[4] % width};
    const long length = (long)size - 5;
    unsigned char *text = malloc(length + 1); /* of its own, so that a byte too many is noticed */
    memcpy(text, data + 5, length);
    text[length] = '\n';
    const long room = dasrel_count_lines(text, length + 1);
    int *first = malloc(4 * room), *second = malloc(4 * room), *spans = malloc(16 * room);
    double *values = malloc(8 * room);
    long found[2] = {0, 0};
    if (dasrel_read_pairs(text, length + 1, columns, "\nnan\nNA\n", room, first, second, values, spans, found)) {
        check(0 <= found[0] && found[0] <= room && 0 <= found[1] && found[1] <= 2 * found[0]);
        for (long k = 0; k < found[0]; k++) {
            check(0 <= first[k] && first[k] < found[1] && 0 <= second[k] && second[k] < found[1]);
            check(!isinf(values[k]));
        }
        for (long k = 0; k < found[1]; k++)
            check(0 <= spans[2 * k] && spans[2 * k] < spans[2 * k + 1] && spans[2 * k + 1] <= length + 1);
    }
    free(text);
    free(first);
    free(second);
    free(spans);
    free(values);
    return 0;
}
