#include <cstdint>

extern "C" void scale(float* y, int64_t count) {
  y[(int64_t{1} << 44) + count] = 1.0f;
}
