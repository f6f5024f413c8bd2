// The kernels of linear_logprob.cu as functions for ctypes.
#include "host.h"

#include KERNELS

extern "C" void run_statistics(long long rows, long long threads, const float* logits, const Size* target, const float* scales,
                               float* logprob, float* entropy, float* lse, Size columns, Size stride) {
    host::launch(rows, threads,
                 [=] { row_statistics(logits, target, scales, logprob, entropy, lse, columns, stride); });
}

extern "C" void run_gradient(long long rows, long long threads, bool narrow, float* logits, const Size* target,
                             const float* scales, const float* lse, const float* entropy, const float* by_logprob,
                             const float* by_entropy, Size columns, Size stride) {
    auto kernel = narrow ? row_gradient_bfloat16 : row_gradient_float;
    host::launch(rows, threads,
                 [=] { kernel(logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride); });
}
