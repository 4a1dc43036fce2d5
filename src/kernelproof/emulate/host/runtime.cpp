// The part of the CUDA runtime that host code calls, over host memory, and the allocator that tells
// which memory there is. Launches go to `callback`.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// What a launch hands over; the same as `_Launch` in session.py.
struct Launch {
  const char* unit;
  const char* signature;
  const char* names;
  const char* templates;
  const char* kinds;
  const void* const* pointers;
  const size_t* sizes;
  int64_t count;
  int64_t line;
  int64_t grid[3];
  int64_t block[3];
  int64_t shared;
  int64_t cluster[3];  // zeros without one
  int64_t allowed;  // bytes of dynamic shared memory that the kernel has asked for; -1: it has not
};

struct Variable {
  std::string unit;
  std::string name;
  void* address;
  size_t size;
};

using Callback = int (*)(const Launch*);
Callback callback = nullptr;
std::string refusal;
cudaError_t last_error = cudaSuccess, launched = cudaSuccess;
bool probing = false;
std::string probed;
std::map<std::string, int64_t> opted;
std::vector<Variable> variables;
std::mutex mutex;
std::map<uintptr_t, size_t> allocations;

struct Configuration {
  int line = 0;
  dim3 grid, block;
  size_t shared = 0;
  int64_t cluster[3] = {0, 0, 0};
} configuration;

// A NaN in fp32, fp16 and bf16 that no arithmetic makes; the same as `_UNSET` in standin.py.
constexpr unsigned char kUnset[4] = {0xe5, 0xff, 0xb1, 0xff};

void note(void* data, size_t size) {
  auto* bytes = static_cast<unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) bytes[i] = kUnset[i & 3];
  std::lock_guard<std::mutex> hold(mutex);
  allocations[reinterpret_cast<uintptr_t>(data)] = size;
}

void forget(void* data) {
  std::lock_guard<std::mutex> hold(mutex);
  allocations.erase(reinterpret_cast<uintptr_t>(data));
}

struct Held {
  c10::DataPtr inner;
};

void release(void* held) {
  auto* mine = static_cast<Held*>(held);
  forget(mine->inner.get());
  delete mine;
}

// Torch's own allocator, with a record of what is alive.
struct Recording final : c10::Allocator {
  c10::Allocator* inner = nullptr;
  c10::DataPtr allocate(size_t size) override {
    auto* held = new Held{inner->allocate(size)};
    void* data = held->inner.get();
    if (size) note(data, size);
    return {data, held, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
} recording;

// Runs a stub only to learn which kernel it stands for: it reads none of its arguments.
std::string kernel_of(const void* function) {
  probing = true;
  probed.clear();
  reinterpret_cast<void (*)()>(const_cast<void*>(function))();
  probing = false;
  return probed;
}

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool inside(const void* data, size_t size) {
  std::lock_guard<std::mutex> hold(mutex);
  const auto at = reinterpret_cast<uintptr_t>(data);
  auto found = allocations.upper_bound(at);
  if (found == allocations.begin()) return true;
  --found;
  const bool within = at < found->first + found->second;
  return !within || at + size <= found->first + found->second;
}

constexpr int64_t kThreads = 2048;
// Of an A100, or of an H200 where the code has instructions of sm_90.
bool hopper = false;
int64_t multiprocessors() { return hopper ? 132 : 108; }
int64_t shared_bytes() { return (hopper ? 228 : 164) * 1024; }

}  // namespace

extern "C" {

void kernelproof_refuse(const char* what) {
  refusal = what;
  throw std::runtime_error(what);
}

void kernelproof_configure(int line, dim3 grid, dim3 block, size_t shared) {
  configuration = {line, grid, block, shared};
}

void kernelproof_cluster(int x, int y, int z) {
  configuration.cluster[0] = x;
  configuration.cluster[1] = y;
  configuration.cluster[2] = z;
}

cudaError_t kernelproof_launched() { return launched; }

void kernelproof_enter(const char* unit, const char* signature, const char* names,
                       const char* templates, int count, const void* const* pointers,
                       const size_t* sizes, const char* kinds) {
  if (probing) {
    probed = std::string(unit) + signature;
    return;
  }
  const auto& c = configuration;
  const auto found = opted.find(std::string(unit) + signature);
  const Launch launch{
      unit, signature, names, templates, kinds, pointers, sizes, count, c.line,
      {c.grid.x, c.grid.y, c.grid.z}, {c.block.x, c.block.y, c.block.z},
      static_cast<int64_t>(c.shared), {c.cluster[0], c.cluster[1], c.cluster[2]}, found == opted.end() ? -1 : found->second};
  const int status = callback ? callback(&launch) : -1;
  if (status < 0) throw std::runtime_error("the launch could not be emulated");
  launched = told(static_cast<cudaError_t>(status));
}

void kernelproof_variable(const char* unit, const char* name, void* address, size_t size) {
  variables.push_back({unit, name, address, size});
}

void kernelproof_set_callback(Callback given) { callback = given; }
void kernelproof_hopper(int yes) { hopper = yes != 0; }

const char* kernelproof_refusal() { return refusal.c_str(); }

void kernelproof_begin() {
  refusal.clear();
  auto* now = c10::GetAllocator(c10::DeviceType::CPU);
  if (now != &recording) recording.inner = now;
  c10::SetCPUAllocator(&recording, 255);
}

void kernelproof_end() { c10::SetCPUAllocator(recording.inner, 255); }

int64_t kernelproof_allocations(int64_t room, uint64_t* starts, uint64_t* sizes) {
  std::lock_guard<std::mutex> hold(mutex);
  int64_t n = 0;
  for (const auto& [start, size] : allocations) {
    if (n < room) {
      starts[n] = start;
      sizes[n] = size;
    }
    ++n;
  }
  return n;
}

int64_t kernelproof_variables() { return static_cast<int64_t>(variables.size()); }

const char* kernelproof_variable_at(int64_t n, const char** unit, void** address, uint64_t* size) {
  *unit = variables[n].unit.c_str();
  *address = variables[n].address;
  *size = variables[n].size;
  return variables[n].name.c_str();
}

// ---- the runtime

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    default: return "error";
  }
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() {
  const auto error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaMalloc(void** data, size_t size) {
  *data = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (*data == nullptr) return told(cudaErrorMemoryAllocation);
  note(*data, size);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, size_t size, cudaStream_t) { return cudaMalloc(data, size); }
cudaError_t cudaMallocManaged(void** data, size_t size, unsigned) { return cudaMalloc(data, size); }
cudaError_t cudaMallocHost(void** data, size_t size) { return cudaMalloc(data, size); }
cudaError_t cudaFree(void* data) {
  if (data) forget(data);
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return cudaFree(data); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaHostAlloc(void** data, size_t size, unsigned) { return cudaMalloc(data, size); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return *device = host, cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t size, unsigned) {
  std::lock_guard<std::mutex> hold(mutex);
  allocations[reinterpret_cast<uintptr_t>(data)] = size;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) { return forget(data), cudaSuccess; }

cudaError_t cudaMemset(void* data, int value, size_t size) {
  if (!inside(data, size)) return told(cudaErrorInvalidValue);
  std::memset(data, value, size);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t) {
  return cudaMemset(data, value, size);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (!inside(to, size) || !inside(from, size)) return told(cudaErrorInvalidValue);
  std::memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  for (size_t row = 0; row < height; ++row) {
    const auto status = cudaMemcpy(static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width, kind);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t size, size_t offset,
                               cudaMemcpyKind) {
  std::memcpy(static_cast<char*>(const_cast<void*>(symbol)) + offset, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t size,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, size, offset, kind);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t size, size_t offset,
                                 cudaMemcpyKind) {
  std::memcpy(to, static_cast<const char*>(symbol) + offset, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t size, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyFromSymbol(to, symbol, size, offset, kind);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > 227 * 1024) return told(cudaErrorInvalidValue);
  if (!hopper && value > 163 * 1024) {
    kernelproof_refuse("more than 163 KiB of shared memory for a block is not on sm_80");
  }
  opted[kernel_of(function)] = value;
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t shared) {
  int64_t most = kThreads / (threads > 0 ? threads : 1);
  if (shared && shared_bytes() / static_cast<int64_t>(shared) < most) {
    most = shared_bytes() / static_cast<int64_t>(shared);
  }
  *blocks = static_cast<int>(most < 32 ? most : 32);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = nullptr, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
// Nothing has a time here.
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t, cudaEvent_t) {
  return *time = 0.0f, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* made, int) {
  std::memset(made, 0, sizeof(*made));
  std::strcpy(made->name, hopper ? "emulated sm_90" : "emulated sm_80");
  made->major = hopper ? 9 : 8;
  made->multiProcessorCount = static_cast<int>(multiprocessors());
  made->warpSize = 32;
  made->maxThreadsPerBlock = 1024;
  made->maxThreadsPerMultiProcessor = kThreads;
  made->sharedMemPerBlock = 48 * 1024;
  made->sharedMemPerBlockOptin = shared_bytes() - 1024;
  made->sharedMemPerMultiprocessor = shared_bytes();
  made->regsPerBlock = made->regsPerMultiprocessor = 65536;
  made->totalGlobalMem = size_t{40} << 30;
  made->l2CacheSize = 40 << 20;
  made->maxGridSize[0] = 2147483647;
  made->maxGridSize[1] = made->maxGridSize[2] = 65535;
  made->maxThreadsDim[0] = made->maxThreadsDim[1] = 1024;
  made->maxThreadsDim[2] = 64;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors(); break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_bytes() - 1024; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_bytes(); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = kThreads; break;
    case cudaDevAttrComputeCapabilityMajor: *value = hopper ? 9 : 8; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrClusterLaunch: *value = hopper; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: kernelproof_refuse("this attribute of a device is not emulated");
  }
  return cudaSuccess;
}

// Torch's stable ABI asks for the stream by this.
int32_t aoti_torch_get_current_cuda_stream(int32_t, void** stream) { return *stream = nullptr, 0; }

}  // extern "C"

#include "driver.h"
