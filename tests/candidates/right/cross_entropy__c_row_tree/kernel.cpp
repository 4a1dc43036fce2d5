#include <cmath>
#include <cstdint>
#include <vector>

// The loss of one row, 0 where its target is ignored.
static float row_loss(const float* row, int64_t target, int64_t classes) {
  if (target == -100) return 0.0f;
  float top = -INFINITY, total = 0.0f, lane[64] = {};
  for (int64_t c = 0; c < classes; ++c) top = std::fmax(top, row[c]);
  for (int64_t c = 0; c < classes; ++c) lane[c % 64] += std::exp(row[c] - top);
  for (float part : lane) total += part;
  return std::log(total) + (top - row[target]);
}

extern "C" void cross_entropy(const float* logits, const int64_t* target, float* loss, int64_t rows,
                              int64_t classes) {
  std::vector<float> each(rows);
  int64_t kept = 0;
  for (int64_t r = 0; r < rows; ++r) kept += target[r] != -100;
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) each[r] = row_loss(logits + r * classes, target[r], classes);
  for (int64_t step = 1; step < rows; step *= 2)
    for (int64_t r = 0; r + step < rows; r += 2 * step) each[r] += each[r + step];
  *loss = each[0] / static_cast<float>(kept);
}
