#include <cmath>
#include <cstdint>
#include <cstring>

struct Bf16 {
  uint16_t bits;
  Bf16() = default;
  explicit Bf16(float x) {
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    bits = static_cast<uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
};

template <typename T>
static void run(const void* px, const void* pw, void* py, int64_t rows, int64_t columns,
                float eps) {
  const T *x = static_cast<const T*>(px), *w = static_cast<const T*>(pw);
  T* y = static_cast<T*>(py);
  for (int64_t r = 0; r < rows; ++r) {
    float squares = 0.0f;
    for (int64_t c = 0; c < columns; ++c) {
      const float value = static_cast<float>(x[r * columns + c]);
      squares += value * value;
    }
    const float root = std::sqrt(squares / static_cast<float>(columns) + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[r * columns + c] =
          T(static_cast<float>(x[r * columns + c]) / root * static_cast<float>(w[c]));
  }
}

extern "C" void rms_norm(const void* x, const void* w, void* y, int64_t dtype, int64_t rows,
                         int64_t columns, float eps) {
  if (dtype == 0) run<float>(x, w, y, rows, columns, eps);
  if (dtype == 1) run<_Float16>(x, w, y, rows, columns, eps);
  if (dtype == 2) run<Bf16>(x, w, y, rows, columns, eps);
}
