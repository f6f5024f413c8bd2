// The kernels of linear_logprob.cu as functions for ctypes: run_<kernel>(blocks, threads, the kernel's own parameters).
#include "host.h"

#include KERNELS

template <auto Kernel, typename... Parameters> static void run(Size blocks, Size threads, Parameters... parameters) {
    host::launch(blocks, threads, [=] { Kernel(parameters...); });
}

extern "C" void run_row_statistics(Size blocks, Size threads, const float* logits, const Size* target, const float* scales,
                                   float* logprob, float* entropy, float* lse, Size columns, Size stride) {
    run<row_statistics>(blocks, threads, logits, target, scales, logprob, entropy, lse, columns, stride);
}

extern "C" void run_row_statistics_capped(Size blocks, Size threads, const float* logits, const Size* target,
                                          const float* scales, float* logprob, float* entropy, float* lse, Size columns,
                                          Size stride, double softcap) {
    run<row_statistics_capped>(blocks, threads, logits, target, scales, logprob, entropy, lse, columns, stride, softcap);
}

extern "C" void run_row_gradient_float(Size blocks, Size threads, float* logits, const Size* target, const float* scales,
                                       const float* lse, const float* entropy, const float* by_logprob,
                                       const float* by_entropy, Size columns, Size stride) {
    run<row_gradient_float>(blocks, threads, logits, target, scales, lse, entropy, by_logprob, by_entropy, columns, stride);
}

extern "C" void run_row_gradient_bfloat16(Size blocks, Size threads, float* logits, const Size* target, const float* scales,
                                          const float* lse, const float* entropy, const float* by_logprob,
                                          const float* by_entropy, Size columns, Size stride) {
    run<row_gradient_bfloat16>(blocks, threads, logits, target, scales, lse, entropy, by_logprob, by_entropy, columns,
                               stride);
}

extern "C" void run_row_gradient_float_capped(Size blocks, Size threads, float* logits, const Size* target,
                                              const float* scales, const float* lse, const float* entropy,
                                              const float* by_logprob, const float* by_entropy, Size columns,
                                              Size stride, double softcap) {
    run<row_gradient_float_capped>(blocks, threads, logits, target, scales, lse, entropy, by_logprob, by_entropy, columns,
                                   stride, softcap);
}

extern "C" void run_row_gradient_bfloat16_capped(Size blocks, Size threads, float* logits, const Size* target,
                                                 const float* scales, const float* lse, const float* entropy,
                                                 const float* by_logprob, const float* by_entropy, Size columns,
                                                 Size stride, double softcap) {
    run<row_gradient_bfloat16_capped>(blocks, threads, logits, target, scales, lse, entropy, by_logprob, by_entropy, columns,
                                      stride, softcap);
}
