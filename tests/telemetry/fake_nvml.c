/* A libnvidia-ml.so.1 with as many GPUs as a test asks for, for the real nvidia-ml-py binding.
 *
 * The file that FAKE_NVML_STATE names says what it shows, a word and its numbers per line; it is
 * read again whenever it is replaced, so a test can change things in mid-run:
 *   gpus N           number of GPUs (0)
 *   init CODE        what nvmlInit returns (0; 9 is NVML_ERROR_DRIVER_NOT_LOADED)
 *   dead I           GPU I is lost from the start
 *   lost I K         GPU I falls off the bus after it was asked K times for its utilisation
 *   mig I            GPU I is in MIG mode
 *   reasons BITS     what keeps the clocks down (4: the power cap)
 *   fail SYMBOL CODE the function returns CODE (13 is NVML_ERROR_FUNCTION_NOT_FOUND)
 *   calls PATH       append the name of every function that is asked of a lost GPU to this file
 * A function that an old library does not have at all is left out by the linker: see conftest.py.
 *
 * GPU 1 has no temperature sensor and no NVLink (NVML_ERROR_NOT_SUPPORTED). Layouts are those of
 * nvidia-ml-py's pynvml.py.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15,
    MOST = 16,
    UNSIGNED_LONG_LONG = 3,
    NVLINK_TX = 138, NVLINK_RX = 139
};

typedef struct { int index, asked; unsigned long long millijoules, kibibytes; } Device;
typedef struct { unsigned int gpu, memory; } Utilisation;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned int valueType, nvmlReturn;
    union { double dVal; unsigned long long ullVal; } value;
} FieldValue;

static Device devices[MOST];
static struct {
    int gpus, init, dead, lost, lost_after, mig, failing;
    unsigned long long reasons;
    struct { char symbol[64]; int code; } fails[MOST];
    char calls[512];
} state;

static void read_state(void) {
    static struct stat seen;
    struct stat now;
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path || stat(path, &now) || now.st_ino == seen.st_ino) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    seen = now;
    memset(&state, 0, sizeof state);
    state.dead = state.lost = state.mig = -1;
    state.reasons = 4;
    char line[600], symbol[64];
    int code;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "fail %63s %d", symbol, &code) == 2 && state.failing < MOST) {
            strcpy(state.fails[state.failing].symbol, symbol);
            state.fails[state.failing++].code = code;
        }
        sscanf(line, "gpus %d", &state.gpus);
        sscanf(line, "init %d", &state.init);
        sscanf(line, "dead %d", &state.dead);
        sscanf(line, "lost %d %d", &state.lost, &state.lost_after);
        sscanf(line, "mig %d", &state.mig);
        sscanf(line, "reasons %llu", &state.reasons);
        sscanf(line, "calls %511s", state.calls);
    }
    fclose(file);
}

/* What a function has to return before it looks at its arguments. */
static int trouble(const Device *d, const char *function) {
    read_state();
    for (int i = 0; i < state.failing; i++)
        if (!strcmp(state.fails[i].symbol, function)) return state.fails[i].code;
    if (d && d->index == state.lost && d->asked > state.lost_after) {
        FILE *file = state.calls[0] ? fopen(state.calls, "a") : NULL;
        if (file) {
            fprintf(file, "%s\n", function);
            fclose(file);
        }
        return GPU_IS_LOST;
    }
    return SUCCESS;
}
#define MEET_TROUBLE(d) \
    do { \
        int code_ = trouble(d, __func__); \
        if (code_) return code_; \
    } while (0)

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    read_state();
    return state.init;
}

int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "535.161.08");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    read_state();
    *count = state.gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device) {
    if ((int)index >= state.gpus || index >= MOST) return INVALID;
    if ((int)index == state.dead) return GPU_IS_LOST;
    *device = &devices[index];
    (*device)->index = index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *d, char *text, unsigned int size) {
    MEET_TROUBLE(d);
    snprintf(text, size, "GPU-00000000-0000-0000-0000-00000000000%d", d->index);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *d, char *text, unsigned int size) {
    MEET_TROUBLE(d);
    snprintf(text, size, "Tesla V100-SXM2-16GB");
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *d, Utilisation *rates) {
    d->asked++;
    MEET_TROUBLE(d);
    if (d->index == state.mig) return NOT_SUPPORTED;
    rates->gpu = 97 + d->index;
    rates->memory = 40 + d->index;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *memory) {
    MEET_TROUBLE(d);
    memory->total = 16ULL << 30;
    memory->used = 10ULL << 30;
    memory->free = 6ULL << 30;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *d, unsigned int *milliwatts) {
    MEET_TROUBLE(d);
    *milliwatts = 250500 + d->index;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned int *milliwatts) {
    MEET_TROUBLE(d);
    *milliwatts = 300000;
    return SUCCESS;
}

/* 250.5 J more at each question. */
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *millijoules) {
    MEET_TROUBLE(d);
    *millijoules = 7000000 + (d->millijoules += 250500);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *d, int kind, unsigned int *mhz) {
    MEET_TROUBLE(d);
    *mhz = kind == 1 ? 1380 : 877; /* 1 is NVML_CLOCK_SM */
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *bits) {
    MEET_TROUBLE(d);
    *bits = state.reasons;
    return SUCCESS;
}

/* The old name of the one above; tells of heat, so that a test sees which one was asked. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *bits) {
    MEET_TROUBLE(d);
    *bits = 0x20;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned int *celsius) {
    (void)sensor;
    MEET_TROUBLE(d);
    if (d->index == 1) return NOT_SUPPORTED;
    *celsius = 61;
    return SUCCESS;
}

/* A real one counts for 20 ms, too. */
int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned int *kilobytes_per_s) {
    MEET_TROUBLE(d);
    usleep(20000);
    *kilobytes_per_s = counter == 0 ? 1500000 : 3000000; /* 0 is NVML_PCIE_UTIL_TX_BYTES */
    return SUCCESS;
}

/* A million KiB more out and two million more in at each question. */
int nvmlDeviceGetFieldValues(Device *d, int count, FieldValue *values) {
    MEET_TROUBLE(d);
    d->kibibytes += 1000000;
    for (int i = 0; i < count; i++) {
        FieldValue *value = &values[i];
        if (value->fieldId != NVLINK_TX && value->fieldId != NVLINK_RX) return INVALID;
        value->valueType = UNSIGNED_LONG_LONG;
        value->nvmlReturn = d->index == 1 ? NOT_SUPPORTED : SUCCESS;
        value->value.ullVal = d->kibibytes * (value->fieldId == NVLINK_RX ? 2 : 1);
        if (value->scopeId != UINT32_MAX) value->value.ullVal /= 6; /* one link of six */
    }
    return SUCCESS;
}
