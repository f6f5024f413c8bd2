// Lets a C++20 compiler run a file of kernels on the host: each thread of a block is a thread, one block after the other.
#include <barrier>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define THREAD host::thread
#define THREADS host::threads
#define ROW host::row
#define BARRIER host::barrier->arrive_and_wait()
#define SHARED static

namespace host {
inline thread_local long long thread;
inline long long threads, row;
inline std::unique_ptr<std::barrier<>> barrier;

template <typename Kernel> void launch(long long blocks, long long size, Kernel kernel) {
    threads = size;
    barrier = std::make_unique<std::barrier<>>(size);
    for (row = 0; row < blocks; ++row) {
        std::vector<std::jthread> block;
        for (long long index = 0; index < size; ++index) {
            block.emplace_back([=] {
                thread = index;
                kernel();
            });
        }
    }
}
}  // namespace host
