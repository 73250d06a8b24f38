//! What the vfs says of itself in a snapshot of statistics. docs/STATS.md lists the names.

use super::Core;
use crate::stats::{Histogram, Stats};
use crate::types::FileKind;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most nodes of extent trees that one look at the statistics takes in.
const EXTENT_LEAVES_MAX: usize = 4096;

impl Core {
    /// Adds to a snapshot how files in memory lie on the device, where the engine can tell.
    pub(crate) fn add_extents(&self, out: &mut Stats) {
        let files = Histogram::default();
        let mut leaves = EXTENT_LEAVES_MAX;
        for inode in self.inodes.live() {
            if inode.kind() == FileKind::Regular
                && let Some(n) = self.engine.extents(&inode, &mut leaves)
            {
                files.note(n);
            }
        }
        out.section("files");
        crate::stat_lines! { out;
            histogram "file_extents", Count, "extents per file, of the files in memory that have blocks on the device" => files.get();
        }
    }

    /// Adds the vfs's part to a snapshot.
    pub(crate) fn add_stats(&self, out: &mut Stats) {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);

        out.section("volume");
        out.text("format", "the volume's format", self.format.name);
        crate::stat_lines! { out;
            gauge "block_bytes", Bytes, "bytes per block" => self.block();
            gauge "read_only", Switch, "changes are refused" => u64::from(self.is_read_only());
            gauge "mounted_ms", Milliseconds, "time since the mount" => self.clock_ms();
            gauge "inodes_cached", Count, "inodes in memory" => self.inodes.len() as u64;
            counter "inodes_evicted", Count, "unused inodes that left memory for others" => self.inodes.evicted.load(Ordering::Relaxed);
            counter "evict_errors", Count, "inodes that left memory with an error" => get(&c.evict_errors);
        }

        out.section("data path");
        crate::stat_lines! { out;
            counter "bytes_read", Bytes, "bytes of files read" => get(&c.bytes_read);
            counter "bytes_written", Bytes, "bytes of files written" => get(&c.bytes_written);
            counter "bytes_copied", Bytes, "bytes copied within the volume (copy_file_range)" => get(&c.copied);
            counter "bytes_copied_as_holes", Bytes, "of these, holes and unwritten blocks, which were neither read nor written"
                => get(&c.copied_holes);
            counter "fsyncs", Count, "files and directories made durable on request" => get(&c.fsyncs);
            counter "direct_completions_inline", Count, "asynchronous direct writes completed in the device's context" => get(&c.direct_inline);
            counter "direct_completions_deferred", Count, "asynchronous direct writes handed to a thread because something was left to do"
                => get(&c.direct_deferred);
            counter "direct_deferred_for_cached_pages", Count, "deferred: pages over the range were cached, or it had to go through the cache"
                => get(&c.deferred_cached);
            counter "direct_deferred_for_commit", Count, "deferred: blocks or a size had to be committed" => get(&c.deferred_commit);
            counter "direct_deferred_for_sync", Count, "deferred: the writer is synchronous and needed a flush" => get(&c.deferred_sync);
            counter "direct_deferred_for_error", Count, "deferred: the device reported an error" => get(&c.deferred_error);
            counter "direct_writes_nowait", Count, "direct writes into holes, or behind the end, for which the engine had preallocated blocks: submitted without waiting"
                => get(&c.direct_nowait);
            counter "direct_finished_where_landed", Count, "deferred, and finished by the thread that received the completion (a queue's thread)"
                => get(&c.direct_finished_here);
            counter "direct_fua_writes", Count, "O_DSYNC overwrites made durable by FUA, without a flush" => get(&c.direct_fua);
        }

        let b = &self.budget;
        out.section("page cache");
        crate::stat_lines! { out;
            gauge "cache_bytes", Bytes, "bytes of file data in the page cache" => get(&b.cached);
            gauge "cache_budget_bytes", Bytes, "bytes the page cache may have" => b.limit();
            gauge "dirty_bytes", Bytes, "bytes changed and not yet on their way to the device" => get(&b.dirty);
            gauge "dirty_background_limit_bytes", Bytes, "dirty bytes from which the flusher works" => b.background_limit();
            gauge "dirty_limit_bytes", Bytes, "dirty bytes from which writers clean pages" => b.dirty_limit();
            gauge "writeback_bytes_in_flight", Bytes, "bytes on their way to the device" => get(&b.writeback);
            counter "cache_hits", Count, "buffered reads that found everything in the cache" => c.cache_hits.get();
            counter "cache_misses", Count, "buffered reads that did not" => c.cache_misses.get();
            counter "cache_reads_past", Count, "buffered reads that went past the cache, because the front end has one (read_past)"
                => c.read_past.get();
            counter "cache_writes_past", Count, "pieces that a front end's cache wrote back past this one (write_past)" => c.write_past.get();
            counter "cache_reads", Count, "device reads that filled the cache, readahead included" => get(&c.cache_reads);
            counter "cache_bytes_reclaimed", Bytes, "bytes dropped to stay within the budget" => get(&b.reclaimed);
        }

        out.section("writeback");
        crate::stat_lines! { out;
            counter "writeback_runs", Count, "contiguous runs of dirty pages written" => get(&c.writeback_runs);
            counter "writeback_room_waits", Count, "times that writeback had the engine clean, because reserved room was not at hand"
                => get(&c.reserved_waits);
            counter "writeback_bytes_lost", Bytes, "dirty bytes that were reserved, found no room, and were lost" => get(&c.reserved_bytes_lost);
            counter "writeback_requests", Count, "device writes of dirty pages" => get(&c.writeback_requests);
            counter "writeback_bytes", Bytes, "bytes of dirty pages written" => get(&c.writeback_bytes);
            histogram "writeback_run_bytes", Bytes, "sizes of runs" => c.writeback_run_bytes.get();
            counter "writers_throttled", Count, "times a writer was made to clean pages" => get(&c.throttled);
            counter "writers_throttled_ns", Nanoseconds, "time that writers spent cleaning pages or waiting for it" => get(&c.throttled_ns);
        }
    }
}
