// c (16 x 8) = a (16 x 16) b (8 x 16)^T in fp16 with fp32 sums, one warp.
#include <cuda_fp16.h>
extern "C" __global__ void tensor_core(const __half* a, const __half* b, float* c) {
  __shared__ __align__(16) __half sa[16 * 16], sb[8 * 16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 32; i += 32)
    reinterpret_cast<uint4*>(sa)[i] = reinterpret_cast<const uint4*>(a)[i];
  if (lane < 16) reinterpret_cast<uint4*>(sb)[lane] = reinterpret_cast<const uint4*>(b)[lane];
  __syncwarp();
  unsigned ra[4], rb[2];
  const unsigned pa = (unsigned)__cvta_generic_to_shared(sa + lane % 16 * 16 + lane / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
  const unsigned pb = (unsigned)__cvta_generic_to_shared(sb + lane % 8 * 16 + lane / 8 % 2 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
  float d[4] = {};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  for (int e = 0; e < 4; ++e) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = d[e];
}
