// Asynchronous copies of the running thread, each done when the thread waits for its group.
#include <cstring>

#include "block.h"

namespace emulator {

void start_copy(void* to, const void* from, std::size_t bytes) {
    block.self().copies.push_back({to, from, bytes, block.self().copy_groups});
}

void end_copy_group() {
    ++block.self().copy_groups;
}

void wait_for_copy_groups(std::size_t pending) {
    Thread& self = block.self();
    std::vector<Copy> later;
    for (const Copy& copy : self.copies) {
        if (copy.group + pending < self.copy_groups) {
            std::memcpy(copy.to, copy.from, copy.bytes);
        } else {
            later.push_back(copy);
        }
    }
    self.copies = std::move(later);
}

}  // namespace emulator
