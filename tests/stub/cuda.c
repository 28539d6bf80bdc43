// A stub of CUDA: TensorFlow's own GPU code runs on it where there is no GPU.
//
// One object stands for the driver, the runtime, their libraries and NVML. Memory is the host's; it
// is counted for each card, and refused once a card is full. Copies are made. Kernels are not run:
// no number that a model computes means anything, nor does any time. What TensorFlow looks up
// beyond the names below is generated, and returns 0 (conftest.py).
//
// The environment describes the cards:
//   STUB_LEDGER      a file in which all processes write down what they hold
//   STUB_CARDS       their number
//   STUB_MIB         the memory of each
//   STUB_NAME        their model
//   STUB_CAPABILITY  their compute capability
//   STUB_UNIFIED     if set, NVML does not tell their memory, as for cards that share the host's
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101 };
enum { INVALID_PTX = 218, INVALID_HANDLE = 400 };
enum { NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };
enum { MOST_CARDS = 8, MOST_PROCESSES = 64, MOST_BLOCKS = 4096 };

static const size_t MIB = 1 << 20;
static const size_t CONTEXT_BYTES = 300 << 20;  // that each process holds of a card that it uses

typedef unsigned long long u64;


// The cards

static char contexts[MOST_CARDS];  // their addresses are the cards' contexts, and handles in NVML
static _Thread_local int current = -1;

static long setting(const char *name, long usual) {
  const char *text = getenv(name);
  return text == NULL ? usual : atol(text);
}

static int card_count(void) {
  return (int)setting("STUB_CARDS", 1);
}

static size_t card_bytes(void) {
  return (size_t)setting("STUB_MIB", 16384) * MIB;
}

static const char *card_name(void) {
  const char *name = getenv("STUB_NAME");
  return name == NULL ? "a stub" : name;
}

static void read_capability(int *major, int *minor) {
  const char *text = getenv("STUB_CAPABILITY");
  *major = 9;
  *minor = 0;
  if (text != NULL) {
    sscanf(text, "%d.%d", major, minor);
  }
}

// TensorFlow's wheels have no code for newer cards (2.21).
static int has_kernels(void) {
  int major;
  int minor;
  read_capability(&major, &minor);
  return major <= 9;
}

static int card_of(const char *context) {
  return (int)(context - contexts);
}

// The cards that CUDA_VISIBLE_DEVICES names by number or UUID. CUDA does not read on behind an
// unknown one.
static int list_visible(int *cards) {
  const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  if (chosen == NULL) {
    while (count < card_count()) {
      cards[count] = count;
      count++;
    }
    return count;
  }
  char names[1024];
  char *rest = NULL;
  snprintf(names, sizeof names, "%s", chosen);
  for (char *name = strtok_r(names, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
    char *digits = strncmp(name, "GPU-", 4) == 0 ? name + 4 : name;
    char *end = digits;
    long card = strtol(digits, &end, 10);
    if (end == digits || card < 0 || card >= card_count() || count == MOST_CARDS) {
      break;
    }
    cards[count] = (int)card;
    count++;
  }
  return count;
}

static int visible_count(void) {
  int cards[MOST_CARDS];
  return list_visible(cards);
}

static int visible_card(int ordinal) {
  int cards[MOST_CARDS];
  return ordinal >= 0 && ordinal < list_visible(cards) ? cards[ordinal] : -1;
}

static int ordinal_of(int card) {
  int ordinal = 0;
  while (ordinal < visible_count() && visible_card(ordinal) != card) {
    ordinal++;
  }
  return ordinal;
}


// The ledger: what each process holds of each card. The process of an entry has locked the byte of
// the entry's number. The kernel takes that lock away when the process ends, however it ends, as a
// driver takes its memory.

typedef struct {
  pid_t pid;
  size_t held[MOST_CARDS];
} entry;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static entry *ledger;
static int ledger_file;
static entry *own;
static pid_t own_pid;

static void open_ledger(void) {
  const char *path = getenv("STUB_LEDGER");
  size_t bytes = MOST_PROCESSES * sizeof(entry);
  if (ledger != NULL) {
    return;
  }
  ledger_file = open(path == NULL ? "" : path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (ledger_file < 0 || ftruncate(ledger_file, (off_t)bytes) != 0) {
    fprintf(stderr, "the stub of CUDA cannot open the file that STUB_LEDGER names\n");
    abort();
  }
  ledger = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ledger_file, 0);
}

// Ask for the lock of an entry (F_SETLK), or who has it (F_GETLK).
static int control_lock(int number, int command, struct flock *lock) {
  *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
  return fcntl(ledger_file, command, lock);
}

static int is_of_living(int number) {
  struct flock lock;
  if (own == &ledger[number] && own_pid == getpid()) {
    return 1;
  }
  control_lock(number, F_GETLK, &lock);
  return lock.l_type != F_UNLCK;
}

static entry *own_entry(void) {
  struct flock lock;
  open_ledger();
  if (own != NULL && own_pid == getpid()) {
    return own;
  }
  for (int number = 0; number < MOST_PROCESSES; number++) {
    if (control_lock(number, F_SETLK, &lock) == 0) {
      own = &ledger[number];
      own_pid = getpid();
      *own = (entry){.pid = own_pid};
      return own;
    }
  }
  fprintf(stderr, "the ledger of the stub of CUDA is full\n");
  abort();
}

static size_t used_bytes(int card) {
  size_t used = 0;
  open_ledger();
  for (int number = 0; number < MOST_PROCESSES; number++) {
    if (ledger[number].held[card] > 0 && is_of_living(number)) {
      used += ledger[number].held[card];
    }
  }
  return used;
}

static void enter_context(int card) {
  pthread_mutex_lock(&mutex);
  if (own_entry()->held[card] == 0) {
    own_entry()->held[card] = CONTEXT_BYTES;
  }
  pthread_mutex_unlock(&mutex);
}


// Memory

typedef struct {
  char *address;
  size_t bytes;
  int card;
} block;

static block blocks[MOST_BLOCKS];
static int block_count;

static block *find_block(const char *address) {
  for (int number = 0; number < block_count; number++) {
    block *each = &blocks[number];
    if (address >= each->address && address < each->address + each->bytes) {
      return each;
    }
  }
  return NULL;
}

static int allocate_locked(char **address, size_t bytes, int card) {
  if (used_bytes(card) + bytes > card_bytes() || block_count == MOST_BLOCKS) {
    return OUT_OF_MEMORY;
  }
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (*address == MAP_FAILED) {
    return OUT_OF_MEMORY;
  }
  blocks[block_count] = (block){*address, bytes, card};
  block_count++;
  own_entry()->held[card] += bytes;
  return SUCCESS;
}

static int allocate(char **address, size_t bytes) {
  pthread_mutex_lock(&mutex);
  int result = allocate_locked(address, bytes > 0 ? bytes : 1, current < 0 ? 0 : current);
  pthread_mutex_unlock(&mutex);
  return result;
}

static int release(char *address) {
  pthread_mutex_lock(&mutex);
  block *freed = find_block(address);
  if (freed != NULL) {
    munmap(freed->address, freed->bytes);
    own_entry()->held[freed->card] -= freed->bytes;
    block_count--;
    *freed = blocks[block_count];
  }
  pthread_mutex_unlock(&mutex);
  return SUCCESS;
}

static int copy(void *to, const void *from, size_t bytes) {
  memmove(to, from, bytes);
  return SUCCESS;
}

static int read_memory(size_t *free_bytes, size_t *total_bytes, int card) {
  pthread_mutex_lock(&mutex);
  *total_bytes = card_bytes();
  *free_bytes = *total_bytes - used_bytes(card);
  pthread_mutex_unlock(&mutex);
  return SUCCESS;
}


// Answers that many functions give

// What a handle of the stub stands for does not exist: only its address is compared.
static void *new_handle(void) {
  static atomic_uintptr_t last = 4096;
  return (void *)atomic_fetch_add(&last, 64);
}

#define MAKES_A_HANDLE(name) \
  int name(void **handle) {  \
    *handle = new_handle();  \
    return SUCCESS;          \
  }
#define ANSWERS(name, number) \
  int name(int *answer) {     \
    *answer = number;         \
    return SUCCESS;           \
  }
#define ANSWERS_OF(name, number)         \
  int name(void *handle, int *answer) {  \
    *answer = number;                    \
    return SUCCESS;                      \
  }
#define NOT_SUPPORTED(name)     \
  int name(void) {              \
    return NVML_NOT_SUPPORTED;  \
  }


// The driver: devices

// By CUdevice_attribute of cuda.h, those of an H200, because TensorFlow divides by some of them.
static const int attributes[128] = {
    [1] = 1024,         // threads in a block
    [2] = 1024,         // a block, in x
    [3] = 1024,         // in y
    [4] = 64,           // in z
    [5] = 2147483647,   // a grid, in x
    [6] = 65535,        // in y
    [7] = 65535,        // in z
    [8] = 49152,        // bytes that a block shares
    [9] = 65536,        // bytes of constants
    [10] = 32,          // threads in a warp
    [12] = 65536,       // registers in a block
    [13] = 1980000,     // kHz
    [14] = 512,         // alignment of textures
    [15] = 1,           // copies while it computes
    [16] = 132,         // multiprocessors
    [31] = 1,           // runs kernels at once
    [36] = 3201000,     // kHz of its memory
    [37] = 6144,        // bits of its bus
    [38] = 50 << 20,    // bytes of its cache
    [39] = 2048,        // threads on a multiprocessor
    [40] = 3,           // engines that copy
    [41] = 1,           // one space of addresses with the host
    [81] = 233472,      // bytes that a multiprocessor shares
    [82] = 65536,       // its registers
    [83] = 1,           // managed memory
    [97] = 232448,      // bytes that a block shares if it asks
    [106] = 32,         // blocks on a multiprocessor
};

static int read_attribute(int *value, int number, int card) {
  int major;
  int minor;
  read_capability(&major, &minor);
  *value = number >= 0 && number < 128 ? attributes[number] : 0;
  if (number == 33) {  // its number on the PCI bus
    *value = card + 1;
  }
  if (number == 75) {
    *value = major;
  }
  if (number == 76) {
    *value = minor;
  }
  return SUCCESS;
}

int cuInit(unsigned flags) {
  return visible_count() > 0 ? SUCCESS : NO_DEVICE;
}

ANSWERS(cuDriverGetVersion, 12090)

int cuDeviceGetCount(int *count) {
  *count = visible_count();
  return SUCCESS;
}

int cuDeviceGet(int *card, int ordinal) {
  *card = visible_card(ordinal);
  return *card < 0 ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetName(char *name, int size, int card) {
  snprintf(name, size, "%s", card_name());
  return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int card) {
  *bytes = card_bytes();
  return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int size, int card) {
  snprintf(text, size, "0000:%02x:00.0", card + 1);
  return SUCCESS;
}

int cuDeviceGetUuid(char *uuid, int card) {
  memset(uuid, card + 1, 16);
  return SUCCESS;
}

int cuDeviceGetUuid_v2(char *uuid, int card) {
  return cuDeviceGetUuid(uuid, card);
}

int cuDeviceGetAttribute(int *value, int number, int card) {
  return read_attribute(value, number, card);
}

int cuDeviceComputeCapability(int *major, int *minor, int card) {
  read_capability(major, minor);
  return SUCCESS;
}

ANSWERS(cuDeviceCanAccessPeer, 0)
ANSWERS(cuDeviceGetP2PAttribute, 0)


// The driver: contexts

int cuDevicePrimaryCtxGetState(int card, unsigned *flags, int *is_active) {
  *flags = 0;
  *is_active = 0;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(char **context, int card) {
  enter_context(card);
  *context = &contexts[card];
  return SUCCESS;
}

int cuCtxGetCurrent(char **context) {
  *context = current < 0 ? NULL : &contexts[current];
  return SUCCESS;
}

int cuCtxSetCurrent(char *context) {
  current = context == NULL ? -1 : card_of(context);
  return SUCCESS;
}

int cuCtxPushCurrent_v2(char *context) {
  return cuCtxSetCurrent(context);
}

int cuCtxPopCurrent_v2(char **context) {
  return context == NULL ? SUCCESS : cuCtxGetCurrent(context);
}

int cuCtxGetDevice(int *card) {
  *card = current < 0 ? 0 : current;
  return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (least != NULL) {
    *least = 0;
  }
  if (greatest != NULL) {
    *greatest = -5;
  }
  return SUCCESS;
}

int cuCtxGetApiVersion(void *context, unsigned *version) {
  *version = 12090;
  return SUCCESS;
}

int cuCtxGetId(void *context, u64 *id) {
  *id = 1;
  return SUCCESS;
}


// The driver: memory

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  return read_memory(free_bytes, total_bytes, current < 0 ? 0 : current);
}

int cuMemAlloc_v2(char **address, size_t bytes) {
  return allocate(address, bytes);
}

int cuMemAllocManaged(char **address, size_t bytes, unsigned flags) {
  return allocate(address, bytes);
}

int cuMemFree_v2(char *address) {
  return release(address);
}

// of the host
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  return posix_memalign(address, 4096, bytes > 0 ? bytes : 1) == 0 ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFreeHost(void *address) {
  free(address);
  return SUCCESS;
}

int cuMemHostGetDevicePointer_v2(void **seen, void *address, unsigned flags) {
  *seen = address;
  return SUCCESS;
}

int cuMemGetAddressRange_v2(char **address, size_t *bytes, char *within) {
  pthread_mutex_lock(&mutex);
  block *found = find_block(within);
  if (address != NULL) {
    *address = found == NULL ? within : found->address;
  }
  if (bytes != NULL) {
    *bytes = found == NULL ? 0 : found->bytes;
  }
  pthread_mutex_unlock(&mutex);
  return SUCCESS;
}

int cuPointerGetAttribute(void *value, int attribute, char *address) {
  enum { MEMORY_TYPE = 2, ORDINAL = 9, OF_A_DEVICE = 2 };
  pthread_mutex_lock(&mutex);
  block *found = find_block(address);
  if (attribute == MEMORY_TYPE) {
    *(int *)value = OF_A_DEVICE;
  } else if (attribute == ORDINAL) {
    *(int *)value = found == NULL ? 0 : ordinal_of(found->card);
  } else {
    *(void **)value = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) {
  return copy(to, from, bytes);
}

int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return copy(to, from, bytes);
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes) {
  return copy(to, from, bytes);
}

int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return copy(to, from, bytes);
}

int cuMemcpyDtoD_v2(void *to, const void *from, size_t bytes) {
  return copy(to, from, bytes);
}

int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  return copy(to, from, bytes);
}

int cuMemcpyPeerAsync(
    void *to, void *its_context, const void *from, void *context, size_t bytes, void *stream) {
  return copy(to, from, bytes);
}


// The driver: streams, events and kernels

MAKES_A_HANDLE(cuStreamCreate)
MAKES_A_HANDLE(cuStreamCreateWithPriority)
MAKES_A_HANDLE(cuEventCreate)
MAKES_A_HANDLE(cuLibraryLoadData)
MAKES_A_HANDLE(cuLibraryGetKernel)
MAKES_A_HANDLE(cuKernelGetFunction)
ANSWERS_OF(cuStreamGetPriority, 0)
ANSWERS_OF(cuStreamIsCapturing, 0)
ANSWERS_OF(cuStreamGetCaptureInfo_v2, 0)
ANSWERS(cuOccupancyMaxActiveBlocksPerMultiprocessor, 2)
ANSWERS(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 2)

int cuOccupancyMaxPotentialBlockSize(int *blocks, int *threads) {
  *blocks = 132;
  *threads = 256;
  return SUCCESS;
}

int cuEventElapsedTime(float *milliseconds) {
  *milliseconds = 1;
  return SUCCESS;
}

int cuEventElapsedTime_v2(float *milliseconds) {
  return cuEventElapsedTime(milliseconds);
}

static int load(void **module) {
  *module = new_handle();
  return has_kernels() ? SUCCESS : INVALID_PTX;
}

int cuModuleLoadData(void **module, const void *image) {
  return load(module);
}

int cuModuleLoadDataEx(void **module, const void *image) {
  return load(module);
}

int cuModuleLoadFatBinary(void **module, const void *image) {
  return load(module);
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = new_handle();
  return has_kernels() ? SUCCESS : INVALID_HANDLE;
}

int cuModuleGetGlobal_v2(void **address, size_t *bytes, void *module, const char *name) {
  static char variable[1 << 20];
  if (address != NULL) {
    *address = variable;
  }
  if (bytes != NULL) {
    *bytes = sizeof variable;
  }
  return SUCCESS;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum { THREADS_IN_A_BLOCK = 0 };
  *value = attribute == THREADS_IN_A_BLOCK ? 1024 : 0;
  return SUCCESS;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int card) {
  return cuFuncGetAttribute(value, attribute, kernel);
}

int cuLaunchKernel(void) {
  return has_kernels() ? SUCCESS : INVALID_HANDLE;
}

int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  function(data);
  return SUCCESS;
}

int cuStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data) {
  function(stream, SUCCESS, data);
  return SUCCESS;
}

int cuGetErrorName(int error, const char **name) {
  *name = "CUDA_ERROR_UNKNOWN";
  if (error == OUT_OF_MEMORY) {
    *name = "CUDA_ERROR_OUT_OF_MEMORY";
  }
  if (error == INVALID_PTX) {
    *name = "CUDA_ERROR_INVALID_PTX";
  }
  if (error == INVALID_HANDLE) {
    *name = "CUDA_ERROR_INVALID_HANDLE";
  }
  return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
  *text = error == OUT_OF_MEMORY ? "out of memory" : "an error of the stub";
  return SUCCESS;
}


// The runtime

// The beginning of cudaDeviceProp (CUDA 12); what divides by a number of the rest must not find 0.
typedef struct {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t bytes;
  size_t shared_bytes;
  int registers;
  int warp_size;
  size_t pitch;
  int threads;
  int block[3];
  int grid[3];
  int clock;
  size_t constant_bytes;
  int major;
  int minor;
  size_t texture_alignment;
  size_t texture_pitch;
  int overlaps;
  int multiprocessors;
  int has_timeout;
  int is_integrated;
  int maps_host_memory;
  int compute_mode;
  int rest[156];
} properties;

int cudaGetDeviceProperties_v2(properties *found, int ordinal) {
  *found = (properties){
      .bytes = card_bytes(),
      .shared_bytes = 49152,
      .registers = 65536,
      .warp_size = 32,
      .threads = 1024,
      .block = {1024, 1024, 64},
      .grid = {2147483647, 65535, 65535},
      .clock = 1980000,
      .constant_bytes = 65536,
      .texture_alignment = 512,
      .texture_pitch = 32,
      .overlaps = 1,
      .multiprocessors = 132,
  };
  snprintf(found->name, sizeof found->name, "%s", card_name());
  read_capability(&found->major, &found->minor);
  for (int number = 0; number < 156; number++) {
    found->rest[number] = 1024;
  }
  return SUCCESS;
}

int cudaGetDeviceCount(int *count) {
  return cuDeviceGetCount(count);
}

int cudaSetDevice(int ordinal) {
  int card = visible_card(ordinal);
  if (card < 0) {
    return INVALID_DEVICE;
  }
  enter_context(card);
  current = card;
  return SUCCESS;
}

int cudaGetDevice(int *ordinal) {
  *ordinal = current < 0 ? 0 : ordinal_of(current);
  return SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int number, int ordinal) {
  return read_attribute(value, number, visible_card(ordinal));
}

ANSWERS(cudaDriverGetVersion, 12090)
ANSWERS(cudaRuntimeGetVersion, 12050)
ANSWERS(cudaOccupancyMaxActiveBlocksPerMultiprocessor, 2)
ANSWERS(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 2)
ANSWERS_OF(cudaStreamIsCapturing, 0)
MAKES_A_HANDLE(cudaStreamCreate)
MAKES_A_HANDLE(cudaStreamCreateWithFlags)
MAKES_A_HANDLE(cudaEventCreate)
MAKES_A_HANDLE(cudaEventCreateWithFlags)

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  return read_memory(free_bytes, total_bytes, current < 0 ? 0 : current);
}

int cudaMalloc(char **address, size_t bytes) {
  return allocate(address, bytes);
}

int cudaFree(char *address) {
  return release(address);
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  return copy(to, from, bytes);
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return copy(to, from, bytes);
}

int cudaGetSymbolAddress(void **address, const void *symbol) {
  return cuModuleGetGlobal_v2(address, NULL, NULL, NULL);
}

// The beginning of cudaFuncAttributes.
typedef struct {
  size_t shared_bytes;
  size_t constant_bytes;
  size_t local_bytes;
  int threads;
  int registers;
} function_properties;

int cudaFuncGetAttributes(function_properties *found, const void *function) {
  *found = (function_properties){.threads = 1024, .registers = 32};
  return SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **function, u64 flags, int *status) {
  enum { NOT_FOUND = 1 };
  *function = NULL;
  if (status != NULL) {
    *status = NOT_FOUND;
  }
  return SUCCESS;
}

const char *cudaGetErrorName(int error) {
  return "an error of the stub";
}

const char *cudaGetErrorString(int error) {
  return "an error of the stub";
}


// The libraries

MAKES_A_HANDLE(cublasCreate_v2)
MAKES_A_HANDLE(cublasLtCreate)
MAKES_A_HANDLE(cudnnCreate)
MAKES_A_HANDLE(cusolverDnCreate)
MAKES_A_HANDLE(cusparseCreate)
ANSWERS_OF(cublasGetVersion_v2, 120500)
ANSWERS_OF(cublasGetMathMode, 0)
ANSWERS_OF(cublasGetPointerMode_v2, 0)
ANSWERS_OF(cusparseGetVersion, 12500)

int cublasGetStream_v2(void *handle, void **stream) {
  *stream = NULL;
  return SUCCESS;
}

size_t cublasLtGetVersion(void) {
  return 120500;
}

size_t cudnnGetVersion(void) {
  return 91000;
}

size_t cudnnGetCudartVersion(void) {
  return 12050;
}

int cudnnGetProperty(int part, int *number) {
  static const int version[] = {9, 10, 0};
  *number = version[part];
  return SUCCESS;
}

const char *cudnnGetErrorString(int error) {
  return "an error of the stub";
}

#define WORKSPACE_OF_NOTHING(name)                                                        \
  int name(void *handle, void *a, void *b, void *c, void *d, int algorithm, size_t *bytes) { \
    *bytes = 0;                                                                           \
    return SUCCESS;                                                                       \
  }
WORKSPACE_OF_NOTHING(cudnnGetConvolutionForwardWorkspaceSize)
WORKSPACE_OF_NOTHING(cudnnGetConvolutionBackwardDataWorkspaceSize)
WORKSPACE_OF_NOTHING(cudnnGetConvolutionBackwardFilterWorkspaceSize)


// NVML

NOT_SUPPORTED(nvmlDeviceGetMemoryInfo_v2)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)

int nvmlInit_v2(void) {
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
  return SUCCESS;
}

int nvmlShutdown(void) {
  return SUCCESS;
}

const char *nvmlErrorString(int error) {
  return error == NVML_NOT_SUPPORTED ? "Not Supported" : "an error of the stub";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  snprintf(text, size, "575.00");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)card_count();
  return SUCCESS;
}

static int find_card(int card, char **handle) {
  if (card < 0 || card >= card_count()) {
    return NVML_NOT_FOUND;
  }
  *handle = &contexts[card];
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, char **handle) {
  return find_card((int)index, handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, char **handle) {
  int card = -1;
  sscanf(uuid, "GPU-%d", &card);
  return find_card(card, handle);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, char **handle) {
  unsigned bus = 0;
  sscanf(text, "%*x:%x", &bus);
  return find_card((int)bus - 1, handle);
}

int nvmlDeviceGetName(char *handle, char *text, unsigned size) {
  snprintf(text, size, "%s", card_name());
  return SUCCESS;
}

int nvmlDeviceGetUUID(char *handle, char *text, unsigned size) {
  snprintf(text, size, "GPU-%d", card_of(handle));
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(char *handle, int *major, int *minor) {
  read_capability(major, minor);
  return SUCCESS;
}

typedef struct {
  u64 total;
  u64 free;
  u64 used;
} nvml_memory;

int nvmlDeviceGetMemoryInfo(char *handle, nvml_memory *memory) {
  size_t free_bytes;
  size_t total_bytes;
  if (getenv("STUB_UNIFIED") != NULL) {
    return NVML_NOT_SUPPORTED;
  }
  read_memory(&free_bytes, &total_bytes, card_of(handle));
  *memory = (nvml_memory){total_bytes, free_bytes, total_bytes - free_bytes};
  return SUCCESS;
}

typedef struct {
  unsigned pid;
  u64 bytes;
  unsigned instance;
  unsigned compute_instance;
} nvml_process;

int nvmlDeviceGetComputeRunningProcesses_v3(char *handle, unsigned *count, nvml_process *found) {
  int card = card_of(handle);
  unsigned room = *count;
  *count = 0;
  pthread_mutex_lock(&mutex);
  open_ledger();
  for (int number = 0; number < MOST_PROCESSES; number++) {
    if (ledger[number].held[card] == 0 || !is_of_living(number)) {
      continue;
    }
    if (*count < room) {
      found[*count] = (nvml_process){(unsigned)ledger[number].pid, ledger[number].held[card], 0, 0};
    }
    *count += 1;
  }
  pthread_mutex_unlock(&mutex);
  return *count > room ? NVML_INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(char *handle, unsigned *count, nvml_process *found) {
  *count = 0;
  return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(char *handle, u64 *reasons) {
  *reasons = 0;
  return SUCCESS;
}
