#include <cstdint>

extern "C" void scale(volatile float* y, int64_t) {
  while (y[0] != 12345.0f) {
  }
}
