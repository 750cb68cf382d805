/* A libnvidia-ml.so.1 with as many GPUs as a test asks for, for the real nvidia-ml-py binding.
 *
 * Set by the environment, read at every call:
 *   FAKE_NVML_GPUS        number of GPUs (0)
 *   FAKE_NVML_INIT        what nvmlInit returns (0; 9 is NVML_ERROR_DRIVER_NOT_LOADED)
 *   FAKE_NVML_DEAD        index of a GPU that is lost from the start
 *   FAKE_NVML_LOST        index of a GPU that falls off the bus ...
 *   FAKE_NVML_LOST_AFTER  ... after it was asked this often for its utilisation
 * Set when it is compiled: -DNO_POWER leaves out nvmlDeviceGetPowerUsage, as an old driver does.
 *
 * GPU 1 has no temperature sensor (NVML_ERROR_NOT_SUPPORTED).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

typedef struct { int index; int asked; } Device;
typedef struct { unsigned int gpu, memory; } Utilisation;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} Pci;

static Device devices[8] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}};

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int lost(const Device *d) {
    return d->index == number("FAKE_NVML_LOST", -1) && d->asked > number("FAKE_NVML_LOST_AFTER", 0);
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return number("FAKE_NVML_INIT", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "535.161.08");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = number("FAKE_NVML_GPUS", 0);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device) {
    if ((int)index >= number("FAKE_NVML_GPUS", 0)) return INVALID;
    if ((int)index == number("FAKE_NVML_DEAD", -1)) return GPU_IS_LOST;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *d, char *text, unsigned int size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-00000000000%d", d->index);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *d, char *text, unsigned int size) {
    (void)d;
    snprintf(text, size, "Tesla V100-SXM2-16GB");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *d, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:3%d:00.0", d->index);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *d, Utilisation *rates) {
    d->asked++;
    if (lost(d)) return GPU_IS_LOST;
    rates->gpu = 97 + d->index;
    rates->memory = 40 + d->index;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *memory) {
    if (lost(d)) return GPU_IS_LOST;
    memory->total = 16ULL << 30;
    memory->used = 10ULL << 30;
    memory->free = 6ULL << 30;
    return SUCCESS;
}

#ifndef NO_POWER
int nvmlDeviceGetPowerUsage(Device *d, unsigned int *milliwatts) {
    if (lost(d)) return GPU_IS_LOST;
    *milliwatts = 250500 + d->index;
    return SUCCESS;
}
#endif

int nvmlDeviceGetClockInfo(Device *d, int kind, unsigned int *mhz) {
    if (lost(d)) return GPU_IS_LOST;
    *mhz = kind == 1 ? 1530 : 877; /* 1 is NVML_CLOCK_SM */
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned int *celsius) {
    (void)sensor;
    if (lost(d)) return GPU_IS_LOST;
    if (d->index == 1) return NOT_SUPPORTED;
    *celsius = 61;
    return SUCCESS;
}
