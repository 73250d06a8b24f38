//! Settings of the C library's allocator, which serves everything that is not a buffer.

/// Few arenas, for a program that serves: by default every thread gets one, until there are eight per CPU, and what one gives up none of the others uses. Small
/// things are made by one thread and dropped by another here, so arenas do not even keep threads apart. Called before there are threads.
pub fn limit_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator's, under its lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        // By itself the threshold grows to 32 MiB with what is freed, and then large things make holes in heaps: those of worker threads'
        // buffers (256 KiB and a page) were as much again as all that was in use.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
    }
}

/// Gives whole free pages of all arenas back to the system. It takes milliseconds.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: works on what is free, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
