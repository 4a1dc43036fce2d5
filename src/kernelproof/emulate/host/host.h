// What a candidate's host code is compiled against where there is no GPU: the CUDA runtime's own
// headers for its types, and stand-ins for torch's CUDA headers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// nvcc includes these before every source.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

// Words before a kernel's name that the runtime's headers define for nvcc only.
#undef __launch_bounds__
#undef __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__

extern "C" {
// Keeps grid, block, shared bytes and line for the stub that is called next.
void kernelproof_configure(int line, dim3 grid, dim3 block, size_t shared);
// A stub's arguments: `pointers[i]` has `sizes[i]` bytes; `kinds[i]` is 'p' for a pointer.
void kernelproof_enter(const char* unit, const char* signature, const char* names,
                       const char* templates, int count, const void* const* pointers,
                       const size_t* sizes, const char* kinds);
// Blocks per cluster of the launch that has been configured.
void kernelproof_cluster(int x, int y, int z);
cudaError_t kernelproof_launched();
void kernelproof_variable(const char* unit, const char* name, void* address, size_t size);
[[noreturn]] void kernelproof_refuse(const char* what);
}

namespace kernelproof {

inline int configure(int line, dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr) {
  kernelproof_configure(line, grid, block, shared);
  return 0;
}

template <class... T>
void enter(const char* unit, const char* signature, const char* names, const char* templates,
           const T&... values) {
  const void* pointers[] = {static_cast<const void*>(&values)..., nullptr};
  const size_t sizes[] = {sizeof(T)..., 0};
  const char kinds[] = {(std::is_pointer_v<T> ? 'p' : 'v')..., 0};
  kernelproof_enter(unit, signature, names, templates, sizeof...(T), pointers, sizes, kinds);
}

// Launches with attributes. What they say of streams and of dependent launches changes no value.
template <class... P, class... A>
cudaError_t launch(int line, const cudaLaunchConfig_t* how, void (*kernel)(P...), A&&... given) {
  kernelproof_configure(line, how->gridDim, how->blockDim, how->dynamicSmemBytes);
  for (unsigned n = 0; n < how->numAttrs; ++n) {
    if (how->attrs[n].id == cudaLaunchAttributeClusterDimension) {
      const auto& c = how->attrs[n].val.clusterDim;
      kernelproof_cluster(c.x, c.y, c.z);
    }
  }
  kernel(static_cast<P>(std::forward<A>(given))...);
  return kernelproof_launched();
}

template <class... P, std::size_t... I>
void call(void (*kernel)(P...), void** given, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<P>*>(given[I])...);
}
template <class... P>
cudaError_t cooperate(int line, void (*kernel)(P...), dim3 grid, dim3 block, void** given,
                      size_t shared = 0, cudaStream_t = nullptr) {
  kernelproof_configure(line, grid, block, shared);
  call(kernel, given, std::index_sequence_for<P...>());
  return kernelproof_launched();
}
inline cudaError_t cooperate(int, const void*, dim3, dim3, void**, size_t = 0,
                             cudaStream_t = nullptr) {
  kernelproof_refuse("a cooperative launch of an untyped pointer is not emulated; give the kernel");
}

struct Variable {
  Variable(const char* unit, const char* name, const void* address, size_t size) {
    kernelproof_variable(unit, name, const_cast<void*>(address), size);
  }
};

inline void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(error));
  }
}

}  // namespace kernelproof

// Forms that the runtime's header has for nvcc only. A variable's address stands for its symbol.
template <class T>
cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, size_t size, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return cudaMemcpyToSymbol(static_cast<const void*>(&symbol), from, size, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, size_t size,
                                    size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice,
                                    cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, size, offset);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t size, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return cudaMemcpyFromSymbol(to, static_cast<const void*>(&symbol), size, offset, kind);
}
template <class... T>
cudaError_t cudaFuncSetAttribute(void (*kernel)(T...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... T>
cudaError_t cudaFuncSetCacheConfig(void (*)(T...), cudaFuncCache) {
  return cudaSuccess;
}

#define cudaLaunchKernelEx(...) ::kernelproof::launch(__LINE__, __VA_ARGS__)
#define cudaLaunchCooperativeKernel(...) ::kernelproof::cooperate(__LINE__, __VA_ARGS__)

#ifndef KERNELPROOF_STABLE
#include <c10/core/Device.h>
#include <optional>

namespace c10::cuda {

struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
  int device_index() const { return 0; }
  void synchronize() const {}
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
inline int current_device() { return 0; }
inline int device_count() { return 1; }
inline void set_device(int) {}
inline void device_synchronize() {}

struct CUDAGuard {
  explicit CUDAGuard(int) {}
  explicit CUDAGuard(c10::Device) {}
  void set_index(int) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<c10::Device>) {}
  explicit OptionalCUDAGuard(c10::Device) {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream) {}
};

}  // namespace c10::cuda

namespace at::cuda {

using namespace c10::cuda;
inline cudaDeviceProp* getDeviceProperties(int = 0) {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp made;
    kernelproof::check(cudaGetDeviceProperties(&made, 0));
    return made;
  }();
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(); }
inline bool is_available() { return true; }

}  // namespace at::cuda

#define C10_CUDA_CHECK(...) ::kernelproof::check(__VA_ARGS__)
#define AT_CUDA_CHECK(...) ::kernelproof::check(__VA_ARGS__)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ::kernelproof::check(cudaGetLastError())
#define TORCH_CUDA_KERNEL_LAUNCH_CHECK() ::kernelproof::check(cudaGetLastError())
#endif
