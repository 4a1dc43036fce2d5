// What wide.cu and wide_keys.cu share.

#pragma once

#include "chunks.cuh"

// What wide_keys.cu makes of a chunk, as a slot of wide.cu takes it: panels of q and k with their gates, A,
// the product of the gates of each row, and the first unsafe step.
template <class Element, int K, bool PRECISE>
struct Record {
  // As in `Config` of chunks.cuh: planes of q and k with gates, of A, of the state and v.
  static constexpr bool FINE = !same<Element, bfloat>;
  static constexpr int TERMS = same<Element, float> ? 3 : FINE || PRECISE ? 2 : 1;
  static constexpr int LEFT = FINE ? TERMS : 1, RIGHT = TERMS, SUMMED = TERMS;
  static constexpr int STEPS = TERMS > 1 ? 32 : 64;
  static constexpr float SAFEST = STEPS == 64 ? 1.875f : 3.6f;  // STEPS gates of this size make 2^59
  static constexpr int PLANE = STEPS * 128, PANEL = RIGHT * PLANE, KEY_TILE = K / 64 * PANEL;
  // A: rows of 128 bytes; of 32 steps they have two planes.
  static constexpr int PRODUCTS_SIZE = STEPS == 64 ? SUMMED * PLANE : (SUMMED + 1) / 2 * PLANE;
  static constexpr int Q = 0, KEYS = KEY_TILE, PRODUCTS = 2 * KEY_TILE, DECAYS = PRODUCTS + PRODUCTS_SIZE;
  static constexpr int UNSAFE = DECAYS + 4 * K, BYTES = UNSAFE + 128;
  static __device__ constexpr int plane_at(int plane) { return STEPS == 64 ? plane * PLANE : plane / 2 * PLANE + plane % 2 * 64; }
  // Of the products at (t, s) and (t, s + 1).
  static __device__ __forceinline__ int product_place(int plane, int t, int s) {
    const int at = plane_at(plane) % PLANE + s * 2;
    return PRODUCTS + plane_at(plane) / PLANE * PLANE + t * 128 + (at ^ (t & 7) << 4);
  }
};
