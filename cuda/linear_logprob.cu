// Row kernels of the language-model head: statistics of rows of logits, and the gradient of these rows in place.
//
// One block per row, with any number of threads up to 1024. Sums are taken in a fixed order without atomics, so a row
// gives the same bits whatever the other rows are. No header is included, because NVRTC has none. The macros THREAD,
// THREADS, ROW, BARRIER and SHARED cover the differences between a device and the host that tests this source
// (tests/support/host.h).
//
// x_j = scale * z_j are the logits at the temperature, log p_j = x_j - lse. A logit of -inf has probability 0. The
// kernels `_capped` use x_j = scale * softcap * tanh(z_j / softcap). They are separate kernels, so that the others do
// not pay for it.

typedef long long Size;
typedef unsigned int Word;
typedef unsigned short Half;

#ifndef THREAD
#define THREAD threadIdx.x
#define THREADS blockDim.x
#define ROW blockIdx.x
#define BARRIER __syncthreads()
#define SHARED __shared__
#endif

#define MOST_THREADS 1024
#define WIDTH 4  // logits that a thread loads at once: 16 bytes in one access if they are aligned

struct alignas(16) Four {
    float at[WIDTH];
};

struct alignas(8) FourHalves {
    Half at[WIDTH];
};

union Bits {
    Word bits;
    float number;
};

static __device__ __forceinline__ float negative_infinity() {
    Bits as;
    as.bits = 0xff800000u;
    return as.number;
}

static __device__ __forceinline__ bool aligned(const void* address, Size bytes) {
    return (reinterpret_cast<Size>(address) & (bytes - 1)) == 0;
}

// Round to the nearest bfloat16, ties to even; NaN stays NaN.
static __device__ __forceinline__ Half bfloat16(float value) {
    if (value != value) return 0x7fc0;
    Bits as;
    as.number = value;
    return static_cast<Half>((as.bits + 0x7fffu + ((as.bits >> 16) & 1u)) >> 16);
}

// Return a logit at the temperature.
template <bool CAPPED> static __device__ __forceinline__ float scaled(float z, float scale, float softcap) {
    return scale * (CAPPED ? softcap * tanhf(z / softcap) : z);
}

// Load four logits at the temperature; those beyond the end of the row are -inf.
template <bool CAPPED>
static __device__ __forceinline__ Four load(const float* row, Size begin, Size columns, float scale, float softcap,
                                            bool whole) {
    Four x;
    if (whole && begin + WIDTH <= columns) {
        x = *reinterpret_cast<const Four*>(row + begin);
        for (int k = 0; k < WIDTH; ++k) x.at[k] = scaled<CAPPED>(x.at[k], scale, softcap);
    } else {
        for (int k = 0; k < WIDTH; ++k) {
            x.at[k] = begin + k < columns ? scaled<CAPPED>(row[begin + k], scale, softcap) : negative_infinity();
        }
    }
    return x;
}

// Largest x so far, S = sum e^(x - largest), U = sum e^(x - largest) (x - largest).
struct Moments {
    float largest, total, weighted;
};

static __device__ __forceinline__ Moments moved(Moments m, float largest) {
    if (m.total == 0.0f) return Moments{largest, 0.0f, 0.0f};
    const float down = m.largest - largest, factor = expf(down);
    return Moments{largest, m.total * factor, factor == 0.0f ? 0.0f : factor * (m.weighted + down * m.total)};
}

static __device__ __forceinline__ Moments merged(Moments a, Moments b) {
    const float largest = a.largest > b.largest ? a.largest : b.largest;
    a = moved(a, largest);
    b = moved(b, largest);
    return Moments{largest, a.total + b.total, a.weighted + b.weighted};
}

// Write log p of each row's target, its entropy H = log S - U / S, and lse = largest + log S. Logits are read once.
template <bool CAPPED>
static __device__ __forceinline__ void statistics(const float* logits, const Size* target, const float* scales,
                                                  float* logprob, float* entropy, float* lse, Size columns, Size stride,
                                                  float softcap) {
    SHARED float largest[MOST_THREADS], total[MOST_THREADS], weighted[MOST_THREADS];
    const Size me = THREAD, threads = THREADS, row = ROW;
    const float* z = logits + row * stride;
    const float scale = scales[row];
    const bool whole = aligned(z, 16);

    Moments mine = {negative_infinity(), 0.0f, 0.0f};
    for (Size begin = me * WIDTH; begin < columns; begin += threads * WIDTH) {
        const Four x = load<CAPPED>(z, begin, columns, scale, softcap, whole);
        float most = x.at[0];
        for (int k = 1; k < WIDTH; ++k) most = x.at[k] > most ? x.at[k] : most;
        if (most > mine.largest) mine = moved(mine, most);
        float sum = 0.0f, product = 0.0f;
        for (int k = 0; k < WIDTH; ++k) {
            if (x.at[k] == negative_infinity()) continue;
            const float down = x.at[k] - mine.largest, e = expf(down);
            sum += e;
            product += e * down;
        }
        mine.total += sum;
        mine.weighted += product;
    }
    largest[me] = mine.largest;
    total[me] = mine.total;
    weighted[me] = mine.weighted;
    BARRIER;

    Size step = 1;
    while (step < threads) step *= 2;
    for (step /= 2; step > 0; step /= 2) {
        if (me < step && me + step < threads) {
            const Moments other = {largest[me + step], total[me + step], weighted[me + step]};
            mine = merged(mine, other);
            largest[me] = mine.largest;
            total[me] = mine.total;
            weighted[me] = mine.weighted;
        }
        BARRIER;
    }
    if (me == 0) {
        const float log_total = logf(mine.total);
        logprob[row] = scaled<CAPPED>(z[target[row]], scale, softcap) - mine.largest - log_total;
        entropy[row] = log_total - mine.weighted / mine.total;
        lse[row] = mine.largest + log_total;
    }
}

extern "C" __global__ void row_statistics(const float* logits, const Size* target, const float* scales, float* logprob,
                                          float* entropy, float* lse, Size columns, Size stride) {
    statistics<false>(logits, target, scales, logprob, entropy, lse, columns, stride, 0.0f);
}

extern "C" __global__ void row_statistics_capped(const float* logits, const Size* target, const float* scales,
                                                 float* logprob, float* entropy, float* lse, Size columns, Size stride,
                                                 double softcap) {
    statistics<true>(logits, target, scales, logprob, entropy, lse, columns, stride, static_cast<float>(softcap));
}

// Replace the logits by their gradient
// dL/dz_j = scale * [ g (1[j = target] - p_j) - h p_j (log p_j + H) ], where g = dL/dlogprob and h = dL/dH.
// It is written as fp32, or as bfloat16 in the first half of the row. `by_entropy` may be null: h = 0. With a soft cap
// the gradient is multiplied by 1 - tanh^2(z_j / softcap).
template <bool AS_BFLOAT16, bool CAPPED>
static __device__ __forceinline__ void gradient(float* logits, const Size* target, const float* scales, const float* lses,
                                                const float* entropies, const float* by_logprob, const float* by_entropy,
                                                Size columns, Size stride, float softcap) {
    const Size me = THREAD, threads = THREADS, row = ROW;
    float* z = logits + row * stride;
    Half* halves = reinterpret_cast<Half*>(z);
    const float scale = scales[row], lse = lses[row], g = by_logprob[row];
    const float entropy = entropies[row], h = by_entropy ? by_entropy[row] : 0.0f;
    const Size chosen = target[row];
    const bool whole = aligned(z, 16);

    for (Size tile = 0; tile < columns; tile += threads * WIDTH) {
        const Size begin = tile + me * WIDTH;
        Four d = load<CAPPED>(z, begin, columns, scale, softcap, whole);
        for (int k = 0; k < WIDTH; ++k) {
            const float log_p = d.at[k] - lse, p = expf(log_p);
            const float inner = p == 0.0f ? 0.0f : p * (g + h * (log_p + entropy));
            const float share = CAPPED ? d.at[k] / (scale * softcap) : 0.0f;
            d.at[k] = scale * ((begin + k == chosen ? g : 0.0f) - inner);
            if (CAPPED) d.at[k] *= 1.0f - share * share;
        }
        if (AS_BFLOAT16) {
            BARRIER;  // halves of this tile overwrite logits of this tile and of earlier ones: wait until all are read
            FourHalves narrow;
            for (int k = 0; k < WIDTH; ++k) narrow.at[k] = bfloat16(d.at[k]);
            if (whole && begin + WIDTH <= columns) {
                *reinterpret_cast<FourHalves*>(halves + begin) = narrow;
            } else {
                for (int k = 0; k < WIDTH; ++k) {
                    if (begin + k < columns) halves[begin + k] = narrow.at[k];
                }
            }
        } else if (whole && begin + WIDTH <= columns) {
            *reinterpret_cast<Four*>(z + begin) = d;
        } else {
            for (int k = 0; k < WIDTH; ++k) {
                if (begin + k < columns) z[begin + k] = d.at[k];
            }
        }
    }
}

extern "C" __global__ void row_gradient_float(float* logits, const Size* target, const float* scales, const float* lse,
                                              const float* entropy, const float* by_logprob, const float* by_entropy,
                                              Size columns, Size stride) {
    gradient<false, false>(logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride, 0.0f);
}

extern "C" __global__ void row_gradient_float_capped(float* logits, const Size* target, const float* scales,
                                                     const float* lse, const float* entropy, const float* by_logprob,
                                                     const float* by_entropy, Size columns, Size stride, double softcap) {
    gradient<false, true>(logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride,
                          static_cast<float>(softcap));
}

extern "C" __global__ void row_gradient_bfloat16(float* logits, const Size* target, const float* scales, const float* lse,
                                                 const float* entropy, const float* by_logprob, const float* by_entropy,
                                                 Size columns, Size stride) {
    gradient<true, false>(logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride, 0.0f);
}

extern "C" __global__ void row_gradient_bfloat16_capped(float* logits, const Size* target, const float* scales,
                                                        const float* lse, const float* entropy, const float* by_logprob,
                                                        const float* by_entropy, Size columns, Size stride, double softcap) {
    gradient<true, true>(logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride,
                         static_cast<float>(softcap));
}
