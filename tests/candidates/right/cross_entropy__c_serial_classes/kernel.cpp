#include <cmath>
#include <cstdint>

// The loss of one row, 0 where its target is ignored.
static float row_loss(const float* row, int64_t target, int64_t classes) {
  if (target == -100) return 0.0f;
  float top = -INFINITY, total = 0.0f;
  for (int64_t c = 0; c < classes; ++c) top = std::fmax(top, row[c]);
  for (int64_t c = 0; c < classes; ++c) total += std::exp(row[c] - top);
  return std::log(total) + (top - row[target]);
}

extern "C" void cross_entropy(const float* logits, const int64_t* target, float* loss, int64_t rows,
                              int64_t classes) {
  double sum = 0.0;
  int64_t kept = 0;
  for (int64_t r = 0; r < rows; ++r) {
    sum += row_loss(logits + r * classes, target[r], classes);
    kept += target[r] != -100;
  }
  *loss = static_cast<float>(sum / static_cast<double>(kept));
}
