/* A CUDA driver for machines without one: it does nothing, and notes the last launch.

   With it the host's side of a launch runs as on a GPU: numba's dispatcher, cuda.core and all of
   `fast`. Whatever it is asked beside what stands here it answers with success. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define OK 0
#define COMPUTE_CAPABILITY_MAJOR 75
#define COMPUTE_CAPABILITY_MINOR 76

typedef int Result;

/* The beginning of CUlaunchConfig. */
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
} Config;

static void *const context = (void *)0x1000;

/* What was launched; how many words of its arguments are noted is the reader's to say. */
long num_launches;
unsigned launched_grid[3], launched_block[3];
int64_t launched_stream;
int num_words;
int64_t words[256];

/* Return a handle that nothing else has. */
static void *new_handle(void) {
    static intptr_t last = 0x10000;
    return (void *)(last += 16);
}

static Result succeed(void) { return OK; }

static Result cuDriverGetVersion(int *version) { *version = 13000; return OK; }
static Result cuDeviceGetCount(int *count) { *count = 1; return OK; }
static Result cuDeviceGet(int *device, int index) { *device = index; return OK; }
static Result cuCtxGetDevice(int *device) { *device = 0; return OK; }
static Result cuCtxGetCurrent(void **current) { *current = context; return OK; }
static Result cuCtxPopCurrent(void **popped) { *popped = context; return OK; }
static Result cuDevicePrimaryCtxRetain(void **primary) { *primary = context; return OK; }
static Result cuStreamGetCtx(void *stream, void **its) { (void)stream; *its = context; return OK; }
static Result cuLibraryLoadData(void **library) { *library = new_handle(); return OK; }
static Result cuLibraryGetKernel(void **kernel) { *kernel = new_handle(); return OK; }
static Result cuKernelGetFunction(void **function) { *function = new_handle(); return OK; }

static Result cuDeviceGetAttribute(int *value, int attribute) {
    *value = attribute == COMPUTE_CAPABILITY_MAJOR ? 9 : attribute == COMPUTE_CAPABILITY_MINOR ? 0 : 1;
    return OK;
}

static Result cuLaunchKernelEx(const Config *config, void *function, void **arguments) {
    (void)function;
    num_launches++;
    launched_stream = (intptr_t)config->stream;
    for (int i = 0; i < 3; i++) {
        launched_grid[i] = config->grid[i];
        launched_block[i] = config->block[i];
    }
    for (int i = 0; i < num_words; i++)
        words[i] = *(int64_t *)arguments[i];
    return OK;
}

static const struct {
    const char *name;
    void *function;
} functions[] = {
#define HAS(name) {#name, (void *)name}
    HAS(cuDriverGetVersion),       HAS(cuDeviceGetCount),    HAS(cuDeviceGet),
    HAS(cuCtxGetDevice),           HAS(cuCtxGetCurrent),     HAS(cuCtxPopCurrent),
    HAS(cuDevicePrimaryCtxRetain), HAS(cuStreamGetCtx),      HAS(cuLibraryLoadData),
    HAS(cuLibraryGetKernel),       HAS(cuKernelGetFunction), HAS(cuDeviceGetAttribute),
    HAS(cuLaunchKernelEx),
};

static int is_same(const char *one, const char *other) {
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

Result cuInit(unsigned flags) { (void)flags; return OK; }

Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    *function = (void *)succeed;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (is_same(name, functions[i].name))
            *function = functions[i].function;
    if (status)
        *status = 0;
    return OK;
}

Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
