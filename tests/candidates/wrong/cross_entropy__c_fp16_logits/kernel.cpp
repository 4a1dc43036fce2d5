#include <cmath>
#include <cstdint>

extern "C" void cross_entropy(const float* logits, const int64_t* target, float* loss, int64_t rows,
                              int64_t classes) {
  double sum = 0.0;
  int64_t kept = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (target[r] == -100) continue;
    const float* row = logits + r * classes;
    float top = -INFINITY, total = 0.0f;
    for (int64_t c = 0; c < classes; ++c) top = std::fmax(top, static_cast<_Float16>(row[c]));
    for (int64_t c = 0; c < classes; ++c)
      total += std::exp(static_cast<float>(static_cast<_Float16>(row[c])) - top);
    ++kept;
    sum += std::log(total) + top - row[target[r]];
  }
  *loss = static_cast<float>(sum / kept);
}
