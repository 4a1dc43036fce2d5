// The part of CUDA's driver that tensor maps need; included by runtime.cpp.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <string>

extern "C" void kernelproof_refuse(const char* what);

namespace {
// Fills the 128 bytes of a tensor map; gives a CUresult. The same as `ENCODER` in maps.py.
using Encoder = int (*)(void* made, uint64_t address, int kind, int axes, const uint64_t* sizes,
                        const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                        int interleave, int swizzle, int fill);
Encoder encoder = nullptr;
}  // namespace

extern "C" {

void kernelproof_set_encoder(Encoder given) { encoder = given; }

CUresult cuTensorMapEncodeTiled(CUtensorMap* made, CUtensorMapDataType kind, cuuint32_t axes,
                                void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const int status =
      encoder ? encoder(made, reinterpret_cast<uint64_t>(address), kind, static_cast<int>(axes), sizes,
                        strides, box, steps, interleave, swizzle, fill)
              : 1;
  return static_cast<CUresult>(status);
}

static cudaError_t entry_point(const char* name, void** found) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) {
    static std::string words;
    words = std::string(name) + " of the driver is not taken over";
    kernelproof_refuse(words.c_str());
  }
  *found = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  if (result) *result = cudaDriverEntryPointSuccess;
  return entry_point(name, found);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (result) *result = cudaDriverEntryPointSuccess;
  return entry_point(name, found);
}

}  // extern "C"
