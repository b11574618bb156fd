/* Fuzz target of the decoder.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Ipackages/slotpack/csrc \
 *     tests/slotpack/native/fuzz_decode.c packages/slotpack/csrc/frame.c packages/slotpack/csrc/encode.c -o fuzz_decode
 *   ./fuzz_decode -max_len=65536 tests/slotpack/golden
 *
 * With -DREPLAY (any compiler) it becomes a program that runs the files named on its command line instead.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    slotpack_header header;
    if (slotpack_read_header(data, size, &header) != SLOTPACK_OK || header.raw_bytes > 1u << 20)
        return 0;
    uint8_t *raw = malloc(header.raw_bytes);
    if (raw != NULL)
        slotpack_decode(data, size, &header, raw);
    free(raw);
    return 0;
}

#ifdef REPLAY
int main(int count, char **paths)
{
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(paths[i], "rb");
        if (file == NULL)
            return 1;
        fseek(file, 0, SEEK_END);
        const size_t size = (size_t)ftell(file);
        rewind(file);
        uint8_t *data = malloc(size ? size : 1);
        if (data == NULL || fread(data, 1, size, file) != size)
            return 1;
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    printf("replayed %d files\n", count - 1);
    return 0;
}
#endif
