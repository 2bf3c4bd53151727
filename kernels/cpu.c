/* A decode step in float32 on a CPU: products of few rows, rotation, attention; and all its layers in one call.

   cpu.py compiles this file and calls it. As in Python, the end of a name says its shape: T rows, O outputs, I inputs;
   D and F the widths of the stream and of an MLP; B sequences, H heads, K key-value heads, J queries of each, S
   positions, E numbers of a head. Slow twins: twins.py.
   The bits of a row depend neither on the other rows nor on the number of threads. Long sums of products and attention
   are added up in blocks, so that their rounding errors stay small.
   A `static` function with `omp for` shares its loop among the threads that call it, and they wait for one another at
   its end. `product`, `decode_attention` and `decode_layers` start those threads. */

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { INPUTS = 1024, POSITIONS = 256 }; /* of a block */
enum { LANES = 8, VECS = 3, PANEL = LANES * VECS, ROWS = 4, WIDE = 8 }; /* ROWS x VECS sums fill 12 of 16 registers */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

/* --- y = x W^T ---------------------------------------------------------------------------------------------------- */

/* Lay a weight out in panels of PANEL outputs, each [I, PANEL]; the last one is filled up with zeros. */
void prepack(const float *weight_OI, float *panels, long O, long I, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long o = 0; o < O; o += PANEL)
    for (long i = 0; i < I; i++)
      for (long j = 0; j < PANEL; j++) panels[o * I + i * PANEL + j] = o + j < O ? weight_OI[(o + j) * I + i] : 0;
}

/* Multiply up to ROWS rows by one panel. Meanwhile fetch from memory what the next panel will need, from `next` on:
   ROWS numbers for each input, which is a line of the cache (ROWS x ROWS numbers) for every ROWS inputs. */
static inline void multiply(const float *x_TI, long rows, const float *panel, const float *next, const float *bias,
                            float *y_TO, long columns, long O, long I) {
  const float *row[ROWS];
  for (int r = 0; r < ROWS; r++) row[r] = x_TI + (r < rows ? r : 0) * I;
  vec total[ROWS][VECS] = {0};
  for (long i = 0; i < I;) {
    long end = I - i < INPUTS ? I : i + INPUTS;
    vec sum[ROWS][VECS] = {0};
    for (; i < end; i++) {
      if (i % ROWS == 0) __builtin_prefetch(next + i * ROWS);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECS; v++) sum[r][v] += row[r][i] * *(const vec *)(panel + i * PANEL + v * LANES);
    }
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECS; v++) total[r][v] += sum[r][v];
  }
  for (long r = 0; r < rows; r++) {
    if (columns == PANEL)
      memcpy(y_TO + r * O, total[r], sizeof total[r]);
    else
      memcpy(y_TO + r * O, total[r], columns * sizeof(float));
    for (long j = 0; bias && j < columns; j++) y_TO[r * O + j] += bias[j];
  }
}

/* bias_O: NULL for none. */
static void share_product(const float *x_TI, const float *panels, const float *bias_O, float *y_TO, long T, long O,
                          long I) {
#pragma omp for
  for (long o = 0; o < O; o += PANEL) {
    const float *panel = panels + o * I;
    long columns = O - o < PANEL ? O - o : PANEL;
    for (long t = 0; t < T; t += ROWS) {
      /* Each ROWS rows fetch ROWS * I numbers of the next panel, so PANEL rows fetch all of it. */
      const float *next = t < PANEL ? panel + (PANEL + t) * I : panel;
      multiply(x_TI + t * I, T - t < ROWS ? T - t : ROWS, panel, next, bias_O ? bias_O + o : NULL, y_TO + t * O + o,
               columns, O, I);
    }
  }
}

void product(const float *x_TI, const float *panels, const float *bias_O, float *y_TO, long T, long O, long I,
             int threads) {
#pragma omp parallel num_threads(threads)
  share_product(x_TI, panels, bias_O, y_TO, T, O, I);
}

/* --- norm and SwiGLU ---------------------------------------------------------------------------------------------- */

/* Write y = h w / sqrt(mean h^2 + eps); y may be h. */
static inline void norm(const float *h_D, const float *weight_D, float *y_D, float eps, long D) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (long d = 0; d < D; d++) squares += h_D[d] * h_D[d];
  float r = 1 / sqrtf(squares / D + eps);
#pragma omp simd
  for (long d = 0; d < D; d++) y_D[d] = h_D[d] * r * weight_D[d];
}

/* Add to the stream x, and write its norm. */
static void share_norm(float *x_BD, const float *added_BD, const float *weight_D, float *y_BD, float eps, long B,
                       long D) {
#pragma omp for
  for (long b = 0; b < B; b++) {
    for (long d = b * D; d < (b + 1) * D; d++) x_BD[d] += added_BD[d];
    norm(x_BD + b * D, weight_D, y_BD + b * D, eps, D);
  }
}

/* Norm each head in place. step: from one sequence to the next. weight_E: NULL where heads have no norm. */
static void share_head_norms(float *x_BHE, const float *weight_E, float eps, long step, long B, long H, long E) {
  if (!weight_E) return;
#pragma omp for
  for (long b = 0; b < B; b++)
    for (long h = 0; h < H; h++) norm(x_BHE + b * step + h * E, weight_E, x_BHE + b * step + h * E, eps, E);
}

/* e^x for x <= 0: 2^n e^r with |r| <= ln 2 / 2, and a polynomial for e^r (Cephes, expf). Below -87 it is e^-87, and NaN
   for NaN. */
static inline float exponential(float x) {
  x = x < -87 ? -87 : x;
  float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  union { unsigned bits; float value; } power = {(unsigned)((int)n + 127) << 23};
  return (p * r * r + r + 1) * power.value;
}

static inline float sigmoid(float x) {
  float e = exponential(-fabsf(x)), above = 1 / (1 + e);
  return x < 0 ? e * above : above;
}

/* Write silu(gate) up. gate_up: [B, 2 F]. */
static void share_swiglu(const float *gate_up, float *y_BF, long B, long F) {
#pragma omp for
  for (long b = 0; b < B; b++) {
    const float *gate_F = gate_up + 2 * b * F, *up_F = gate_F + F;
#pragma omp simd
    for (long f = 0; f < F; f++) y_BF[b * F + f] = gate_F[f] * sigmoid(gate_F[f]) * up_F[f];
  }
}

/* --- attention of one new token per sequence ---------------------------------------------------------------------- */

static inline float sum_of(vec v) {
  float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
  return (a + c) + (b + d);
}

static void rotate(const float *x_E, const float *cos_E, const float *sin_E, float *out_E, long E) {
  for (long e = 0; e < E / 2; e++) {
    float first = x_E[e], second = x_E[e + E / 2];
    out_E[e] = first * cos_E[e] - second * sin_E[e];
    out_E[e + E / 2] = second * cos_E[e + E / 2] + first * sin_E[e + E / 2];
  }
}

/* Write rotated keys, and values, at each sequence's position in the cache; write rotated queries to out_BHE.
   `step` leads from one row of the inputs to the next; slot and head from one slot, and one head of it, to the next. */
static void share_rotation(const float *q_BHE, const float *k_BKE, const float *v_BKE, const float *cos_BE,
                           const float *sin_BE, const long *position_B, float *k_BKSE, float *v_BKSE, float *out_BHE,
                           long step, long slot, long head, long B, long K, long H, long E) {
#pragma omp for
  for (long b = 0; b < B; b++) {
    const float *cos_E = cos_BE + b * E, *sin_E = sin_BE + b * E;
    long place = b * slot + position_B[b] * E;
    for (long k = 0; k < K; k++) {
      rotate(k_BKE + b * step + k * E, cos_E, sin_E, k_BKSE + place + k * head, E);
      memcpy(v_BKSE + place + k * head, v_BKE + b * step + k * E, E * sizeof(float));
    }
    for (long h = 0; h < H; h++) rotate(q_BHE + b * step + h * E, cos_E, sin_E, out_BHE + (b * H + h) * E, E);
  }
}

/* Turn scores into e^(score - largest), and return their sum. */
static float weigh(float *score_S, long S) {
  float largest = score_S[0], total = 0;
  for (long s = 1; s < S; s++) largest = score_S[s] > largest ? score_S[s] : largest;
  for (long s = 0; s < S; s++) score_S[s] = exponential(score_S[s] - largest);
  for (long s = 0; s < S;) {
    long end = S - s < POSITIONS ? S : s + POSITIONS;
    float sum = 0;
    for (; s < end; s++) sum += score_S[s];
    total += sum;
  }
  return total;
}

/* Average `vecs` vectors of S values with these weights, whose sum is `weights`. Many vectors at once, because each
   addition waits for the last one. */
static inline __attribute__((always_inline)) void average(const float *weight_S, float weights, const float *v_SE,
                                                          float *out_E, long S, long E, int vecs) {
  vec total[WIDE] = {0};
  for (long s = 0; s < S;) {
    long end = S - s < POSITIONS ? S : s + POSITIONS;
    vec sum[WIDE] = {0};
    for (; s < end; s++)
#pragma GCC unroll 8
      for (int v = 0; v < vecs; v++) sum[v] += weight_S[s] * *(const vec *)(v_SE + s * E + v * LANES);
#pragma GCC unroll 8
    for (int v = 0; v < vecs; v++) total[v] += sum[v];
  }
  for (int v = 0; v < vecs; v++) *(vec *)(out_E + v * LANES) = total[v] / weights;
}

/* Attend from the J queries of a key-value head to S positions. score_JX: memory for the scores, `longest` each. */
static void attend(const float *q_JE, const float *k_SE, const float *v_SE, float *restrict out_JE,
                   float *restrict score_JX, long longest, long J, long S, long E) {
  float scale = 1 / sqrtf(E);
  for (long s = 0; s < S; s++) /* each key is read once for all queries */
    for (long j = 0; j < J; j++) {
      vec sum = {0};
      for (long e = 0; e < E; e += LANES) sum += *(const vec *)(q_JE + j * E + e) * *(const vec *)(k_SE + s * E + e);
      score_JX[j * longest + s] = sum_of(sum) * scale;
    }
  for (long j = 0; j < J; j++) {
    float *weight_S = score_JX + j * longest, *out_E = out_JE + j * E, weights = weigh(weight_S, S);
    long e = 0;
    for (; e + WIDE * LANES <= E; e += WIDE * LANES) average(weight_S, weights, v_SE + e, out_E + e, S, E, WIDE);
    for (; e < E; e += LANES) average(weight_S, weights, v_SE + e, out_E + e, S, E, 1);
  }
}

static void share_attention(const float *q_BHE, const float *k_BKSE, const float *v_BKSE, const long *length_B,
                            float *out_BHE, float *score_BHX, long slot, long head, long longest, long B, long K,
                            long J, long E) {
#pragma omp for schedule(static, 1)
  for (long row = 0; row < B * K; row++) {
    long b = row / K, place = b * slot + row % K * head, first = row * J;
    attend(q_BHE + first * E, k_BKSE + place, v_BKSE + place, out_BHE + first * E, score_BHX + first * longest,
           longest, J, length_B[b], E);
  }
}

void decode_attention(const float *q_BHE, const float *k_BKSE, const float *v_BKSE, const long *length_B,
                      float *out_BHE, float *score_BHX, long slot, long head, long longest, long B, long K, long J,
                      long E, int threads) {
#pragma omp parallel num_threads(threads)
  share_attention(q_BHE, k_BKSE, v_BKSE, length_B, out_BHE, score_BHX, slot, head, longest, B, K, J, E);
}

/* --- a decode step ------------------------------------------------------------------------------------------------ */

/* The weights of a layer: matrices as `prepack` lays them out; NULL for a bias or a norm of heads that it has not. */
struct layer {
  const float *attention_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *o, *o_bias;
  const float *mlp_norm, *gate_up, *gate_up_bias, *down, *down_bias;
};

/* Compute the layers for one new token of each sequence: `Block.forward` in Python, L times, with its attention.
   x_BD, added_BD: the stream is their sum, before (added_BD is zero then) and afterwards.
   cache: [L, 2, ...] with `layer_step` from a layer to the next and `kv_step` from keys to values.
   scratch: B (D + P + F + 2 H E + H longest) floats, where P is the larger of (H + 2 K) E and 2 F. */
void decode_layers(const struct layer *layers, float *x_BD, float *added_BD, const float *cos_BE, const float *sin_BE,
                   const long *position_B, const long *length_B, float *cache, float *scratch, float eps, long L,
                   long layer_step, long kv_step, long slot, long head, long longest, long B, long D, long F, long H,
                   long K, long E, int threads) {
  long width = (H + 2 * K) * E, P = width > 2 * F ? width : 2 * F;
  float *normed = scratch, *wide = normed + B * D, *inner = wide + B * P, *query = inner + B * F;
  float *attended = query + B * H * E, *score = attended + B * H * E;
#pragma omp parallel num_threads(threads)
  for (long l = 0; l < L; l++) {
    const struct layer *w = layers + l;
    float *keys = cache + l * layer_step, *k_BKE = wide + H * E;
    share_norm(x_BD, added_BD, w->attention_norm, normed, eps, B, D);
    share_product(normed, w->qkv, w->qkv_bias, wide, B, width, D);
    share_head_norms(wide, w->q_norm, eps, width, B, H, E);
    share_head_norms(k_BKE, w->k_norm, eps, width, B, K, E);
    share_rotation(wide, k_BKE, k_BKE + K * E, cos_BE, sin_BE, position_B, keys, keys + kv_step, query, width, slot,
                   head, B, K, H, E);
    share_attention(query, keys, keys + kv_step, length_B, attended, score, slot, head, longest, B, K, H / K, E);
    share_product(attended, w->o, w->o_bias, added_BD, B, D, H * E);
    share_norm(x_BD, added_BD, w->mlp_norm, normed, eps, B, D);
    share_product(normed, w->gate_up, w->gate_up_bias, wide, B, 2 * F, D);
    share_swiglu(wide, inner, B, F);
    share_product(inner, w->down, w->down_bias, added_BD, B, D, F);
  }
}
